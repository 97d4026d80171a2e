"""From a file to a data set: `build("xc", {"train": path, "test": path}, target, options)`.

Everything happens in a hidden directory beside the target; it appears whole, by one rename, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from xcray.data.dataset import Dataset
from xcray.data.demo import TEXT_PARAMS, documents
from xcray.data.documents import build_documents
from xcray.data.feature_space import Like
from xcray.data.matrices import build_matrices, split_rows
from xcray.data.readers.error_log import Tally
from xcray.data.readers.label_names import Names
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet import label_names, parquet_form, parquet_records
from xcray.data.readers.records import Record, read_records
from xcray.data.splits import HashSplit, RowSplit
from xcray.data.synthetic import SyntheticParams, make
from xcray.data.text.pipeline import TextPipeline
from xcray.data.text.tokenizer import TextParams
from xcray.data.writer import DatasetWriter
from xcray.errors import DataError, ParameterError

FORMATS = ("svmlight", "xc", "jsonl", "csv", "tsv", "parquet", "pydocs", "synthetic")
FILELESS = ("pydocs", "synthetic")
HELD_OUT = 0.1  # of the rows, where there is no test file and a test part is always wanted


@dataclass(frozen=True)
class BuildOptions:
    """How to build a data set.

    read: how files are read. name: of the data set; by default made from the target's.
    test_fraction: share of rows held out by a hash of their id (or row number) when there is no test file; None means none,
        but 0.1 for pydocs and synthetic. seed: another seed, another split.
    test_rows_file: a file of row numbers from 1 (a split file of the XC repository) to hold out instead.
    label_names_file: one label name a line, in the order of the ids; for text, other labels are errors.
    text: tf-idf parameters; None takes the defaults of the format. synthetic: parameters of the generator.
    like: a model or data set directory whose features the new data set shall have: text goes through its pipeline as it is.
        It is a path of this machine, and not taken from JSON.
    """

    read: ReadOptions = field(default_factory=ReadOptions)
    name: str | None = None
    test_fraction: float | None = None
    seed: int = 0
    test_rows_file: str | None = None
    label_names_file: str | None = None
    text: TextParams | None = None
    synthetic: SyntheticParams = field(default_factory=SyntheticParams)
    like: str | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BuildOptions:
        """Options from JSON: reading options beside these, `text` and `synthetic` as objects. Raises ParameterError."""
        mine = {
            name: values[name]
            for name in ("name", "test_fraction", "seed", "test_rows_file", "label_names_file")
            if name in values
        }
        rest = {
            name: value
            for name, value in values.items()
            if name not in mine and name not in ("text", "synthetic")
        }
        text = values.get("text")
        synthetic = dict(values.get("synthetic") or {})
        unknown = sorted(set(synthetic) - set(SyntheticParams.__dataclass_fields__))
        if unknown:
            known = ", ".join(SyntheticParams.__dataclass_fields__)
            raise ParameterError(f"synthetic has no parameter {unknown[0]!r}; it has {known}")
        return cls(
            read=ReadOptions.from_dict(rest),
            text=None if text is None else TextParams.from_dict(dict(text)),
            synthetic=SyntheticParams(**synthetic),
            **mine,
        )

    def as_dict(self) -> dict[str, Any]:
        """The options that shaped the data, JSON-ready, without file paths."""
        kept = {"test_fraction": self.test_fraction, "seed": self.seed, **self.read.as_dict()}
        for name in ("labels_file",):
            if name in kept:
                kept[name] = Path(str(kept[name])).name
        return kept


def build(
    format: str,
    sources: Mapping[str, Path | str],
    target: Path | str,
    options: BuildOptions | None = None,
) -> Dataset:
    """Build and publish the data set `target` from `sources` {"train": path, "test": path or absent}; gives it opened.

    format: one of `FORMATS`; pydocs and synthetic need no sources. Train and test share one space of labels and features;
    D and K come from a header, from n_features and n_labels, or from the training part. Named labels never seen in training
    are kept out of the test part and counted in the manifest, which also tells skipped lines and warnings.
    Raises DataErrors and DataError for input (nothing is published then), Conflict when the target exists, ParameterError,
    ShapeMismatch when names do not fit.
    """
    options = options or BuildOptions()
    if format not in FORMATS:
        raise ParameterError(f"there is no format {format!r}; there are {', '.join(FORMATS)}")
    if format not in FILELESS and "train" not in sources:
        raise ParameterError(f"format {format} needs a training file; give sources['train']")
    if set(sources) - {"train", "test"}:
        raise ParameterError(
            f"sources are 'train' and 'test', not {sorted(set(sources) - {'train', 'test'})[0]!r}"
        )
    target = Path(target)
    names = Names.read(options.label_names_file)
    with DatasetWriter(target, name=options.name or _name_of(target)) as writer:
        return BUILDERS[format](format, sources, writer, options, names)


def _name_of(target: Path) -> str:
    """A safe name made from the last part of a path."""
    name = (
        re.sub(r"\.{2,}", ".", re.sub(r"[^a-z0-9._-]", "-", target.name.lower()))
        .strip("._-")[:64]
        .rstrip(".")
    )
    return name or "data"


def _account(
    format: str,
    sources: Mapping[str, Path | str],
    options: BuildOptions,
    tallies: Mapping[str, Tally],
) -> dict[str, Any]:
    """Where the rows came from, for the manifest: base names, options, what was skipped and what was odd."""
    return {
        "format": format,
        "files": {part: Path(path).name for part, path in sources.items()},
        "options": options.as_dict(),
        **({} if options.like is None else {"like": Path(options.like).name}),
        "skipped": sum(tally.n_bad for tally in tallies.values()),
        "parts": {part: tally.as_dict() for part, tally in tallies.items()},
    }


def _split(options: BuildOptions, has_test: bool, default: float) -> HashSplit | RowSplit:
    """How rows of the training source are held out."""
    if has_test and (options.test_fraction or options.test_rows_file):
        raise ParameterError(
            "there is a test file and a split of the training file; give only one of them"
        )
    if options.test_rows_file:
        return RowSplit(options.test_rows_file)
    wanted = options.test_fraction
    return HashSplit((0.0 if has_test else default) if wanted is None else wanted, options.seed)


def _matrix_files(
    format: str,
    sources: Mapping[str, Path | str],
    writer: DatasetWriter,
    options: BuildOptions,
    names: Names | None,
    named: bool = False,
) -> Dataset:
    """svmlight, XC, and Parquet with features. named: labels in the files are the names, and not their places in them."""
    split = _split(options, "test" in sources, 0.0)
    read = options.read
    if names is not None and read.n_labels is None and format != "xc":
        read = replace(read, n_labels=len(names.names))
    like = _matrix_like(options)
    if like is not None:
        read = replace(read, n_features=like.n_features)
    numbers = (
        {name: k for k, name in enumerate(names.names)} if names is not None and named else None
    )
    tallies = build_matrices(format, sources, writer, read, split, numbers)
    account = _account(format, sources, options, tallies)
    return writer.finish(
        label_names=names and names.names, feature_names=like and like.names, source=account
    )


def _text_files(
    format: str,
    sources: Mapping[str, Path | str],
    writer: DatasetWriter,
    options: BuildOptions,
    names: Names | None,
) -> Dataset:
    """JSON lines, CSV, TSV, and Parquet with texts."""
    split = _hash_split(options, "test" in sources, 0.0)
    tallies = {
        part: Tally(options.read.max_errors, options.read.skip_bad)
        for part in ("train", "test")
        if part in sources
    }
    reader = parquet_records if format == "parquet" else partial(read_records, format)
    streams = {part: reader(sources[part], options.read, tally) for part, tally in tallies.items()}
    how = _text_how(options, TextParams())
    built = build_documents(
        streams["train"], streams.get("test"), writer, how, split, names, tallies
    )
    return built.finish(_account(format, sources, options, tallies))


def _parquet_files(
    format: str,
    sources: Mapping[str, Path | str],
    writer: DatasetWriter,
    options: BuildOptions,
    names: Names | None,
) -> Dataset:
    """Parquet: texts or features, by the columns of the training file; the test file must have the same."""
    form = parquet_form(sources["train"], options.read)
    for path in [sources[part] for part in sources if part != "train"]:
        found = parquet_form(path, options.read)
        if found != form:
            first = Path(sources["train"]).name
            problem = f"columns are read otherwise than in {first}: {found.told()} here, {form.told()} there"
            raise DataError(
                "SCHEMA_MISMATCH",
                problem,
                file=Path(path).name,
                hint="give both files the same columns and types",
            )
    if form.text:
        return _text_files(format, sources, writer, options, names)
    if form.named and names is None:
        names = Names(label_names(sources["train"], options.read), Path(sources["train"]).name)
        if not names.names:
            raise DataError(
                "NO_POSITIVES",
                "no row has a label",
                file=names.file,
                hint="give at least one row a label",
            )
    return _matrix_files(format, sources, writer, options, names, form.named)


def _pydocs(
    format: str,
    sources: Mapping[str, Path | str],
    writer: DatasetWriter,
    options: BuildOptions,
    names: Names | None,
) -> Dataset:
    """The documentation strings of this Python."""
    tally = Tally()
    stream = (Record(document.id, document.text, document.labels) for document in documents())
    split = _hash_split(options, False, HELD_OUT)
    built = build_documents(
        stream, None, writer, _text_how(options, TEXT_PARAMS), split, names, {"train": tally}
    )
    return built.finish(_account(format, {}, options, {"train": tally}))


def _text_how(options: BuildOptions, default: TextParams) -> TextParams | TextPipeline:
    """How text becomes features: learnt with parameters, or by the pipeline of something that exists."""
    like = Like.read(options.like)
    if like is None:
        return options.text or default
    if options.text is not None:
        raise ParameterError("like brings its own text pipeline; leave the text options out")
    return like.pipeline()


def _matrix_like(options: BuildOptions) -> Like | None:
    """The features that a matrix shall have, when something that exists says so."""
    like = Like.read(options.like)
    if like is not None and like.text is not None:
        raise ParameterError(
            "like names something made from text; give text as it was given: jsonl, csv or tsv"
        )
    if like is not None and options.read.n_features not in (None, like.n_features):
        raise ParameterError(
            f"n_features is {options.read.n_features}, like has {like.n_features}; give only one of them"
        )
    return like


def _hash_split(options: BuildOptions, has_test: bool, default: float) -> HashSplit:
    """A split by document ids."""
    split = _split(options, has_test, default)
    if isinstance(split, RowSplit):
        raise ParameterError(
            "test_rows_file is for svmlight, xc and parquet with features; use test_fraction for documents"
        )
    return split


def _synthetic(
    format: str,
    sources: Mapping[str, Path | str],
    writer: DatasetWriter,
    options: BuildOptions,
    names: Names | None,
) -> Dataset:
    """The synthetic generator."""
    like = _matrix_like(options)
    if like is not None and like.n_features != options.synthetic.features:
        raise ParameterError(
            f"like has {like.n_features} features; set synthetic.features={like.n_features}"
        )
    X, Y = make(options.synthetic)
    split = _split(options, False, HELD_OUT)
    for part, x, y in split_rows(X, Y, split.mask(0, X.n_rows)):
        writer.add(part, x, y)
    source = _account(format, {}, options, {}) | {"synthetic": asdict(options.synthetic)}
    return writer.finish(
        label_names=names and names.names, feature_names=like and like.names, source=source
    )


Builder = Callable[
    [str, Mapping[str, Path | str], DatasetWriter, BuildOptions, Names | None], Dataset
]
BUILDERS: dict[str, Builder] = {
    "svmlight": _matrix_files,
    "xc": _matrix_files,
    "jsonl": _text_files,
    "csv": _text_files,
    "tsv": _text_files,
    "parquet": _parquet_files,
    "pydocs": _pydocs,
    "synthetic": _synthetic,
}
