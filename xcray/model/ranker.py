"""A ranker: decision trees over the best labels of the search and the labels named in the text.

ranker/labels.arrow      all labels that can be answered: those of the model, then labels of the
                         vocabulary without a training row; name and training rows of each
ranker/names.arrow       the names as sequences of words, with every beginning of one
ranker/lookup.arrow      their hash table
ranker/label_rows.arrow  tf-idf rows of the labels' texts
ranker/trees.arrow       the nodes of all trees
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Int32, Int64, frozen
from xcray.data.label_texts import LabelText, LabelTexts
from xcray.data.text.pipeline import TextPipeline
from xcray.data.text.vocabulary import build_vocabulary, read_lookup, string_bytes, write_lookup
from xcray.errors import Corrupt
from xcray.kernels.canonical import FAULTS, first_fault
from xcray.kernels.search.names import LabelNameTable
from xcray.kernels.search.ranked_candidates import FEATURES
from xcray.kernels.search.trees import Trees, tabulate_trees
from xcray.kernels.text import SEPARATOR
from xcray.storage.arrow import read_column, read_csr, read_table, write_matrix, write_table
from xcray.storage.atomic import sha256_arrays
from xcray.storage.names import Names

RANKER: Final = "ranker"
LABELS, NAMES, ROWS, TREES = "labels.arrow", "names.arrow", "label_rows.arrow", "trees.arrow"
QUALIFIER: Final = re.compile(r"\s*\([^()]*\)\s*$")  # "Python (programming language)"
JOINT: Final = chr(SEPARATOR)
NODE_TYPES: Final = {
    "feature": pa.int32(),
    "threshold": pa.float64(),
    "left": pa.int32(),
    "right": pa.int32(),
    "missing_left": pa.uint8(),
    "value": pa.float64(),
}


class LabelIndex(NamedTuple):
    """What candidates are made from: V labels, of which the first K are those of the model.

    label_names: V ids; counts: (V,) int64, training rows; names: their names; texts: (V, D) tf-idf
    rows of name, other names and description.
    """

    label_names: Names
    counts: Int64
    names: LabelNameTable
    texts: CSR

    def as_arrays(self) -> dict[str, Any]:
        """Return all content as arrays, for a hash."""
        words = string_bytes(self.label_names.array)
        return {
            "label_bytes": words.letters,
            "label_offsets": words.offsets - words.offsets[0],
            "counts": self.counts,
            "name_bytes": self.names.prefixes.words.letters,
            "name_offsets": self.names.prefixes.words.offsets,
            "name_starts": self.names.starts,
            "name_labels": self.names.labels,
            "text_indptr": self.texts.indptr,
            "text_indices": self.texts.indices,
            "text_data": self.texts.data,
        }


class Ranker:
    """Trees over candidates. Immutable; evaluated by `xcray.predict.ranking`."""

    def __init__(self, labels: LabelIndex, trees: Trees, baseline: float) -> None:
        """Initialise. baseline: the raw prediction without trees. Raises Corrupt for no trees."""
        self.labels = labels
        self.trees = trees
        self.baseline = float(baseline)
        try:
            self.table = tabulate_trees(trees, len(FEATURES))
        except ValueError as error:
            raise Corrupt(
                f"{TREES} is not a list of trees: {error}", file=f"{RANKER}/{TREES}"
            ) from None

    @cached_property
    def sha256(self) -> str:
        """Content hash over labels and trees."""
        trees = {f"tree_{name}": array for name, array in self.trees._asdict().items()}
        baseline = np.array([self.baseline])
        return sha256_arrays({**self.labels.as_arrays(), **trees, "baseline": baseline})

    def save(self, directory: Path) -> None:
        """Write the files. The directory is created."""
        directory.mkdir()
        labels = self.labels
        ids = {"name": labels.label_names.array, "train_rows": pa.array(labels.counts)}
        write_table(directory / LABELS, pa.table(ids))
        lists = pa.LargeListArray.from_arrays(
            pa.array(labels.names.starts), pa.array(labels.names.labels)
        )
        words = labels.names.prefixes.words
        prefixes = pa.LargeStringArray.from_buffers(
            len(words.offsets) - 1, pa.py_buffer(words.offsets), pa.py_buffer(words.letters)
        )
        write_table(directory / NAMES, pa.table({"prefix": prefixes, "labels": lists}))
        write_lookup(directory, labels.names.prefixes)
        write_matrix(directory / ROWS, labels.texts)
        nodes = {
            name: pa.array(getattr(self.trees, name), kind) for name, kind in NODE_TYPES.items()
        }
        metadata = {
            "baseline": self.baseline.hex(),
            "roots": " ".join(map(str, self.trees.starts.tolist())),
        }
        write_table(directory / TREES, pa.table(nodes).replace_schema_metadata(metadata))

    @classmethod
    def load(cls, directory: Path, shape: tuple[int, int], verify: bool) -> Ranker:
        """Map the files that `save` wrote. shape: labels and features of the model.

        verify: look up every name. Raises NotFound, Corrupt if kernels cannot read the arrays.
        """
        try:
            labels = _load_labels(directory, verify)
            table = read_table(directory / TREES)
            columns = {
                name: frozen(
                    read_column(table, name, kind, TREES).to_numpy(), kind.to_pandas_dtype()
                )
                for name, kind in NODE_TYPES.items()
            }
            roots = [int(each) for each in table.schema.metadata[b"roots"].split()]
            baseline = float.fromhex(table.schema.metadata[b"baseline"].decode())
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"the ranker is not readable: {error!r}") from None
        _check(labels, shape)
        return cls(labels, Trees(starts=frozen(roots, np.int32), **columns), baseline)


def _load_labels(directory: Path, verify: bool) -> LabelIndex:
    """Map what candidates are made from."""
    ids, names = read_table(directory / LABELS), read_table(directory / NAMES)
    prefixes = read_column(names, "prefix", pa.large_string(), NAMES)
    lists = read_column(names, "labels", pa.large_list(pa.int32()), NAMES)
    return LabelIndex(
        Names(read_column(ids, "name", pa.large_string(), LABELS)),
        frozen(read_column(ids, "train_rows", pa.int64(), LABELS).to_numpy(), np.int64),
        LabelNameTable(
            read_lookup(directory, prefixes, verify),
            frozen(lists.offsets.to_numpy(), np.int64),
            frozen(lists.values.to_numpy(), np.int32),
        ),
        read_csr(directory / ROWS),
    )


def _check(labels: LabelIndex, shape: tuple[int, int]) -> None:
    """Raise Corrupt unless kernels can read all arrays."""
    (K, D), V = shape, len(labels.label_names)
    code, row = first_fault(labels.texts)
    if code:
        raise Corrupt(f"{ROWS}, row {row}: {FAULTS[code]}", file=f"{RANKER}/{ROWS}")
    if V < K or labels.texts.shape != (V, D) or len(labels.counts) != V:
        raise Corrupt(f"the ranker has {V} labels and rows {labels.texts.shape}, the model {K, D}")
    starts, numbers = labels.names.starts, labels.names.labels
    n_names = len(labels.names.prefixes.words.offsets) - 1
    ordered = len(starts) == n_names + 1 and starts[0] == 0 and (np.diff(starts) >= 0).all()
    if not ordered or starts[-1] != len(numbers) or (numbers < 0).any() or (numbers >= V).any():
        raise Corrupt(f"{NAMES} does not list labels 0 to {V - 1}", file=f"{RANKER}/{NAMES}")


def index_labels(
    label_names: Names,
    counts: Int64,
    texts: LabelTexts,
    pipeline: TextPipeline,
    languages: Sequence[str] = (),
) -> LabelIndex:
    """Return the index of the K labels and of the other entries of their vocabulary.

    label_names: K ids; counts: (K,) training rows of each. languages: values of the language field
    in texts; names are analysed as in each of them, descriptions as in the first.
    """
    known = label_names.to_pylist()
    entries = {entry.id: entry for entry in texts.entries()}
    others = sorted(set(entries) - set(known))
    ids = [*known, *others]
    ordered = [entries.get(each) for each in ids]
    language = next(iter(languages), "")
    rows = pipeline.transform(
        "" if each is None else pipeline.analyzer.document(full_text(each), language)
        for each in ordered
    )
    return LabelIndex(
        Names(pa.array(ids, pa.large_string())),
        frozen(np.concatenate([counts, np.zeros(len(others), np.int64)]), np.int64),
        _name_table(ordered, pipeline, languages),
        rows,
    )


def full_text(entry: LabelText) -> str:
    """Return everything that is known of a label as one text."""
    return " ".join((entry.name, *entry.other_names, entry.description))


def _name_table(
    entries: Iterable[LabelText | None], pipeline: TextPipeline, languages: Sequence[str]
) -> LabelNameTable:
    """Return the names of labels, in the order of their numbers."""
    labels_of: dict[str, list[int]] = {}
    for label, entry in enumerate(entries):
        for words in () if entry is None else _names(entry, pipeline, languages):
            for end in range(1, len(words)):
                labels_of.setdefault(JOINT.join(words[:end]), [])
            owners = labels_of.setdefault(JOINT.join(words), [])
            if not owners or owners[-1] != label:
                owners.append(label)
    prefixes = sorted(labels_of)
    starts = np.cumsum([0, *(len(labels_of[each]) for each in prefixes)])
    numbers: Int32 = np.array([j for each in prefixes for j in labels_of[each]], np.int32)
    vocabulary = build_vocabulary(pa.array(prefixes, pa.large_string()))
    return LabelNameTable(vocabulary, frozen(starts, np.int64), frozen(numbers, np.int32))


def _names(
    entry: LabelText, pipeline: TextPipeline, languages: Sequence[str]
) -> Iterator[list[str]]:
    """Yield the words of each name of a label, also without a qualifier in brackets at the end."""
    for name in (entry.name, *entry.other_names):
        for form in dict.fromkeys((name, QUALIFIER.sub("", name))):
            yield from filter(None, pipeline.name_tokens(form, languages))
