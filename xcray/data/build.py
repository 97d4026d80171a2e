"""Building a data set from files: `build("xc", {"train": path, "test": path}, target, options)`.

All work happens in a hidden directory next to the target. One rename publishes the complete data
set; after an error nothing is published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.data.build_options import BuildOptions
from xcray.data.dataset import MANIFEST, Dataset, reading_of
from xcray.data.demo import TEXT_PARAMS, documents
from xcray.data.documents import build_documents
from xcray.data.feature_space import FeatureSpace
from xcray.data.matrices import build_matrices, split_rows
from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.formats import FEATURES, FORMATS, FORMATS_OF, GENERATED_FORMATS
from xcray.data.readers.label_names import LabelNames
from xcray.data.readers.parquet import label_names, parquet_layout, parquet_records
from xcray.data.readers.records import Record, read_records
from xcray.data.splits import RowSplit
from xcray.data.synthetic import generate
from xcray.data.text.fields import LANGUAGE, Field
from xcray.data.text.pipeline import TextPipeline
from xcray.data.text.stems import AUTO, algorithm
from xcray.data.text.tokenizer import TextParams
from xcray.data.writer import DatasetWriter, name_of
from xcray.errors import ParameterError, excerpt, similar_or_all
from xcray.storage.atomic import read_json

__all__ = ["BuildOptions", "build"]

# options of Parquet that a file of the other content does not have
OF_TEXTS: Final = {"category_fields", "number_fields", "vector_fields", "id_field", "text"}
OF_FEATURES: Final = {name for name, formats in FORMATS_OF.items() if formats == FEATURES}
DEFAULT_TEST_FRACTION = 0.1  # of generated formats, which have no test file


def build(
    format: str,
    sources: Mapping[str, Path | str],
    target: Path | str,
    options: BuildOptions | None = None,
) -> Dataset:
    """Build and publish the data set `target`, and return it opened.

    format: one of `FORMATS`; pydocs and synthetic need no sources. sources: {"train": path},
    optionally with "test".
    Train and test share one set of labels and features. D and K come from a header, from
    n_features and n_labels, or from the training part. Named labels that do not occur in
    training are left out of the test part and counted in the manifest, together with skipped
    lines and warnings.
    Raises DataErrors or DataError for invalid input (nothing is published), Conflict if the
    target exists, ParameterError, and ShapeMismatch if names do not fit.
    """
    options = options or BuildOptions()
    if format not in FORMATS:
        raise ParameterError(
            f"there is no format {excerpt(format)!r}{similar_or_all(format, FORMATS)}"
        )
    if format not in GENERATED_FORMATS and "train" not in sources:
        raise ParameterError(f"format {format} needs a training file; give sources['train']")
    if set(sources) - {"train", "test"}:
        raise ParameterError(
            f"sources are 'train' and 'test', not {sorted(set(sources) - {'train', 'test'})[0]!r}"
        )
    options.check(format, sources)
    target = Path(target)
    options = _with_language(_read_like(format, options))
    names = LabelNames.read(options.label_names_file)
    with DatasetWriter(target, name=options.name or name_of(target.name)) as writer:
        return BUILDERS[format](_BuildInputs(format, sources, writer, options, names))


def _read_like(format: str, options: BuildOptions) -> BuildOptions:
    """Return the options with those of `like`, unless others are set."""
    if options.like is None or not (Path(options.like) / MANIFEST).is_file():
        return options  # a missing `like` is reported with the features
    return options.with_reading(format, reading_of(read_json(Path(options.like) / MANIFEST)))


def _with_language(options: BuildOptions) -> BuildOptions:
    """Return the options with the field that holds the language of a row, if `text` names one."""
    language = options.text and options.text.language
    if not language or language == AUTO or algorithm(language) is not None:
        return options
    names = options.read.text_fields
    texts = options.fields or tuple(Field(name) for name in names)
    read = replace(
        options.read,
        text_fields=(*names, language),
        value_fields=(*options.read.value_fields, language),
    )
    return replace(options, fields=(*texts, Field(language, LANGUAGE)), read=read)


class _BuildInputs(NamedTuple):
    """What a builder needs. names: of the labels, if there is a file of them."""

    format: str
    sources: Mapping[str, Path | str]
    writer: DatasetWriter
    options: BuildOptions
    names: LabelNames | None

    def provenance(self, collectors: Mapping[str, ErrorCollector]) -> dict[str, Any]:
        """Return the origin of the rows for the manifest.

        It has base names, options, skipped lines and warnings.
        """
        options = self.options
        return {
            "format": self.format,
            "files": {part: Path(path).name for part, path in self.sources.items()},
            "options": options.as_dict(),
            **({} if options.like is None else {"like": Path(options.like).name}),
            **({} if options.origin is None else {"origin": dict(options.origin)}),
            "skipped": sum(collector.n_bad for collector in collectors.values()),
            "parts": {part: collector.as_dict() for part, collector in collectors.items()},
        }


def _matrix_files(inputs: _BuildInputs, numbers: Mapping[str, int] | None = None) -> Dataset:
    """Build from svmlight, XC, NumPy, or Parquet with features.

    numbers: ids of the labels in the files, if they are names.
    """
    options, names = inputs.options, inputs.names
    rows, read = options.test_rows_file, options.read
    split = options.hash_split() if rows is None else RowSplit(rows)
    if names is not None and read.n_labels is None and inputs.format != "xc":
        read = replace(read, n_labels=len(names.names))
    like = _matrix_feature_space(options)
    if like is not None:
        read = replace(read, n_features=like.n_features)
    collectors = build_matrices(inputs.format, inputs.sources, inputs.writer, read, split, numbers)
    return inputs.writer.finish(
        label_names=names and names.names,
        feature_names=like and like.names,
        source=inputs.provenance(collectors),
    )


def _text_files(inputs: _BuildInputs) -> Dataset:
    """Build from JSON lines, CSV, TSV, fastText, or Parquet with texts."""
    options, sources = inputs.options, inputs.sources
    collectors = {
        part: ErrorCollector(options.read.max_errors, options.read.skip_bad)
        for part in ("train", "test")
        if part in sources
    }
    reader = parquet_records if inputs.format == "parquet" else partial(read_records, inputs.format)
    streams = {
        part: reader(sources[part], options.read, collector)
        for part, collector in collectors.items()
    }
    default = TextParams() if inputs.format == "fasttext" else TextParams(fields=options.fields)
    unpublished = build_documents(
        streams["train"],
        streams.get("test"),
        inputs.writer,
        _text_features(options, default),
        options.hash_split(),
        inputs.names,
        collectors,
        label_ids=options.read.label_ids,
        has_ids=options.read.id_field is not None,
    )
    return unpublished.publish(inputs.provenance(collectors))


def _parquet_files(inputs: _BuildInputs) -> Dataset:
    """Build from Parquet with texts or features, by the columns of the training file.

    The test file must have the same column layout.
    """
    sources, options, names = inputs.sources, inputs.options, inputs.names
    layout = parquet_layout(sources["train"], options.read)
    for path in [sources[part] for part in sources if part != "train"]:
        other = parquet_layout(path, options.read)
        if other != layout:
            problem = (
                f"the column layout differs from {Path(sources['train']).name}: "
                f"{other.describe()} here, {layout.describe()} there"
            )
            raise Source(path, options.read).error("SCHEMA_MISMATCH", problem)
    content, unused = ("texts", OF_FEATURES) if layout.text else ("features", OF_TEXTS)
    for name in sorted(options.names & unused):
        raise ParameterError(f"the file has {content}: leave out {name}")
    if layout.text:
        return _text_files(inputs)
    if not layout.named_labels:
        return _matrix_files(inputs)
    if names is not None:
        numbers = names.ids(options.read.label_ids)
    else:
        names = LabelNames(label_names(sources["train"], options.read), Path(sources["train"]).name)
        if not names.names:
            raise Source(sources["train"], options.read).error("NO_POSITIVES", "no row has a label")
        numbers = {name: k for k, name in enumerate(names.names)}
    return _matrix_files(inputs._replace(names=names), numbers)


def _pydocs(inputs: _BuildInputs) -> Dataset:
    """Build from the docstrings of this Python installation."""
    collectors = {"train": ErrorCollector()}
    stream = (Record(document.id, document.text, document.labels) for document in documents())
    split = inputs.options.hash_split(DEFAULT_TEST_FRACTION)
    features = _text_features(inputs.options, TEXT_PARAMS)
    unpublished = build_documents(
        stream, None, inputs.writer, features, split, inputs.names, collectors
    )
    return unpublished.publish(inputs.provenance(collectors))


def _text_features(options: BuildOptions, default: TextParams) -> TextParams | TextPipeline:
    """Return text parameters to fit, or the fitted pipeline of an existing model or data set."""
    like = FeatureSpace.read(options.like)
    if like is None:
        return default if options.text is None else replace(options.text, fields=default.fields)
    if options.text is not None:
        raise ParameterError("like has its own text pipeline; leave out the text options")
    return like.require_pipeline()


def _matrix_feature_space(options: BuildOptions) -> FeatureSpace | None:
    """Return the feature space of `like` for a matrix, or None."""
    like = FeatureSpace.read(options.like)
    if like is not None and like.text is not None:
        raise ParameterError("like was built from text; give text as well: jsonl, csv or tsv")
    if like is not None and options.read.n_features not in (None, like.n_features):
        raise ParameterError(
            f"n_features is {options.read.n_features}, like has {like.n_features}; "
            "give only one of them"
        )
    return like


def _synthetic(inputs: _BuildInputs) -> Dataset:
    """Build from the synthetic generator."""
    options, names = inputs.options, inputs.names
    like = _matrix_feature_space(options)
    if like is not None and like.n_features != options.synthetic.features:
        raise ParameterError(
            f"like has {like.n_features} features; set synthetic.features={like.n_features}"
        )
    X, Y = generate(options.synthetic)
    split = options.hash_split(DEFAULT_TEST_FRACTION)
    for part, x, y in split_rows(X, Y, split.mask(0, X.n_rows)):
        inputs.writer.add(part, x, y)
    return inputs.writer.finish(
        label_names=names and names.names,
        feature_names=like and like.names,
        source=inputs.provenance({}) | {"synthetic": asdict(options.synthetic)},
    )


BUILDERS: dict[str, Callable[[_BuildInputs], Dataset]] = {
    "svmlight": _matrix_files,
    "xc": _matrix_files,
    "jsonl": _text_files,
    "csv": _text_files,
    "tsv": _text_files,
    "fasttext": _text_files,
    "parquet": _parquet_files,
    "npz": _matrix_files,
    "npy": _matrix_files,
    "pydocs": _pydocs,
    "synthetic": _synthetic,
}
