"""Warnings about data sets that are readable and probably not what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.data.dataset import Dataset
from xcray.data.feature_scales import feature_scales, mean_squares
from xcray.data.readers.labels import split_labels
from xcray.data.text.tokenizer import UNSPACED_RUNS, is_unspaced
from xcray.data.texts import texts_at
from xcray.errors import excerpt
from xcray.kernels.fingerprint import fingerprints

SEPARATORS: Final = (",", ";", "|", "\t", "/", " ")
SAMPLE_NAMES: Final = 20_000  # label names that are examined
SEPARATED_SHARE: Final = 0.5  # share of names with the separator from which it is suspicious
# distinct parts over distinct names; names of several words share many words, so " " needs less;
# single labels hardly ever have the marks that can have more
PARTS_SHARE: Final = {" ": 0.1, ";": 2.0, "|": 2.0, "\t": 2.0}
DEFAULT_PARTS_SHARE: Final = 0.5
UNSEEN_SHARE: Final = 0.5
EMPTY_SHARE: Final = 0.05
COPIED_SHARE: Final = 0.05
SAMPLE_TEXTS: Final = 16  # training texts that are read; each can be in another compressed batch
SAMPLE_CHARACTERS: Final = 2000  # of each text
# neither addresses of mails in angle brackets nor type parameters and references of code
MARKUP: Final = re.compile(
    r"</[a-zA-Z]+>|<(?:br|hr|img|li|p)\b[^<>]*>|&(?:amp|gt|lt|nbsp|quot|#\d+);"
)
MIN_TEST_ROWS: Final = 5  # of which the features per row are compared
FEWER_FEATURES: Final = 0.5  # features per test text, as a share of those per training text


class DataWarning(NamedTuple):
    """A warning: a code that does not change, and a message with the fix."""

    code: str
    message: str


def data_warnings(data: Dataset, copies: bool = True) -> list[dict[str, Any]]:
    """Return the warnings about a data set as dictionaries with code and message.

    LABEL_SEPARATOR, LABEL_BRACKETS: label names look like lists of labels. UNSEEN_LABELS: most
    test labels do not occur in training. LARGE_FEATURES: features whose values hide all others.
    EMPTY_ROWS: rows without features, which the bias alone answers. UNLABELLED_ROWS: test rows
    without labels. UNKNOWN_WORDS: test texts have far fewer features than training texts.
    NO_BLANKS, MARKUP, NO_LANGUAGE: see `_text_warnings`.
    COPIED_ROWS: test rows that equal training rows in all features (one pass over all features;
    not if `copies` is False).
    """
    names = data.label_names[:SAMPLE_NAMES].to_pylist()
    warnings = [label_warning(names), _unseen_labels(data), _large_features(data)]
    warnings += [_empty_rows(data, part) for part in data.splits]
    warnings += [_unlabelled_rows(data), _unknown_words(data), *_text_warnings(data)]
    warnings += [_copied_rows(data)] if copies else []
    return [each._asdict() for each in warnings if each is not None]


def label_warning(names: Sequence[str]) -> DataWarning | None:
    """Return a warning if label names look like lists of labels."""
    return separator_warning(names) or _bracket_warning(names)


def separator_warning(names: Sequence[str]) -> DataWarning | None:
    """Return a warning if many label names contain a separator and share most of their parts.

    The separator named in it gives the fewest labels, and no empty one.
    """
    found = [each for each in map(partial(_Separated.read, names), SEPARATORS) if each is not None]
    if not found:
        return None
    separator, joined, parts = min(found, key=lambda each: each.parts)
    return DataWarning(
        "LABEL_SEPARATOR",
        f"{joined:,} of {len(names):,} label names contain {separator!r} and have "
        f"{parts:,} different parts: if each part is a label, build the data set with "
        f"--label-separator {separator!r} (label_separator)",
    )


class _Separated(NamedTuple):
    """Label names split by a separator: how many contain it, and their different parts."""

    separator: str
    joined: int
    parts: int

    @classmethod
    def read(cls, names: Sequence[str], separator: str) -> _Separated | None:
        """Split names as the readers do; None if they look like single labels, or are invalid."""
        joined = sum(separator in name.strip() for name in names)
        if joined < SEPARATED_SHARE * len(names):
            return None
        labels = [label for name in names for label in split_labels(name, separator)[0]]
        parts = {str(label).strip() for label in labels}
        limit = PARTS_SHARE.get(separator, DEFAULT_PARTS_SHARE)
        if len(parts) > limit * len(names):
            return None
        others = tuple(mark for mark in SEPARATORS if mark != separator)
        # "a, b" split by blanks leaves "a,"
        is_rest = separator == " " and any(part.endswith(others) for part in parts)
        if not parts or "" in parts or is_rest:
            return None
        return cls(separator, joined, len(parts))


def _bracket_warning(names: Sequence[str]) -> DataWarning | None:
    """Return a warning if many label names are in brackets, as lists written in another way."""
    inside = [name for name in names if name[:1] + name[-1:] in ("[]", "()", "{}")]
    if not inside or len(inside) < SEPARATED_SHARE * len(names):
        return None
    return DataWarning(
        "LABEL_BRACKETS",
        f"{len(inside):,} of {len(names):,} label names are in brackets, such as "
        f"{excerpt(inside[0])!r}: if they are lists of labels, write them as JSON, or with a "
        "separator (--label-separator)",
    )


def _unseen_labels(data: Dataset) -> DataWarning | None:
    """Return a warning if most labels of test rows have no training row."""
    if data.test is None:
        return None
    parts = data.manifest.get("source", {}).get("parts", {})
    dropped = sum(
        part.get("warnings", {}).get("labels_unseen_in_train", 0) for part in parts.values()
    )
    Y = data.test.Y
    labels = Y.indices[Y.indptr[0] : Y.indptr[-1]]
    unseen = dropped + int(np.count_nonzero(np.asarray(data.label_counts)[labels] == 0))
    total = dropped + Y.nnz
    if unseen <= UNSEEN_SHARE * total:
        return None
    return DataWarning(
        "UNSEEN_LABELS",
        f"{unseen:,} of {total:,} labels of the test rows do not occur in training: they cannot be "
        "predicted and count as misses; check that both files name labels in the same way",
    )


def _large_features(data: Dataset) -> DataWarning | None:
    """Return a warning if the values of some features are far larger than all others together."""
    scales = feature_scales(mean_squares(data.train.X))
    large = np.flatnonzero(scales > 1.0)
    if not len(large):
        return None
    largest = int(np.argmax(scales))
    name = data.feature_names[largest]
    return DataWarning(
        "LARGE_FEATURES",
        f"{len(large):,} features, such as {name!r}, have values far larger than those of all "
        "others together, so that solvers can stop early: divide them, this one by about "
        f"{scales[largest]:.0e}, or leave them out",
    )


def _empty_rows(data: Dataset, part: str) -> DataWarning | None:
    """Return a warning if many rows of a part have no feature."""
    n_rows = data[part].n_rows
    empty = int(np.count_nonzero(np.diff(data[part].X.indptr) == 0))
    if empty <= EMPTY_SHARE * n_rows:
        return None
    cause = (
        "their texts are empty or have only unknown words: check the text column, or lower min_df"
        if data.text is not None
        else "check the file"
    )
    return DataWarning(
        "EMPTY_ROWS",
        f"{empty:,} of {n_rows:,} {part} rows have no feature, so the bias alone answers them: "
        f"{cause}",
    )


def _unlabelled_rows(data: Dataset) -> DataWarning | None:
    """Return a warning if test rows have no label."""
    if data.test is None:
        return None
    unlabelled = data.test.n_rows - data.test.n_labelled
    if not unlabelled:
        return None
    return DataWarning(
        "UNLABELLED_ROWS",
        f"{unlabelled:,} of {data.test.n_rows:,} test rows have no label: measures leave them out",
    )


def _unknown_words(data: Dataset) -> DataWarning | None:
    """Return a warning if test texts have far fewer features than training texts."""
    if data.test is None or data.text is None or not data.train.n_rows:
        return None
    if data.test.n_rows < MIN_TEST_ROWS:
        return None
    test, train = (
        split.X.nnz / max(1, int(np.count_nonzero(np.diff(split.X.indptr))))
        for split in (data.test, data.train)
    )
    if not test or test >= FEWER_FEATURES * train:
        return None
    return DataWarning(
        "UNKNOWN_WORDS",
        f"test texts have {test:.1f} features each, training texts {train:.1f}: many words of the "
        "test texts do not occur in training: check that both are of the same kind and language",
    )


def _text_warnings(data: Dataset) -> Iterator[DataWarning]:
    """Yield warnings about what a sample of the training texts looks like.

    NO_BLANKS: scripts without blanks, read as words. MARKUP: most of the texts have tags or
    entities of HTML. NO_LANGUAGE: no text has the field that holds its language.
    """
    if data.text is None or not data.train.n_rows:
        return
    rows = np.unique(np.linspace(0, data.train.n_rows - 1, SAMPLE_TEXTS).astype(int)).tolist()
    texts = texts_at(data, "train", rows)
    starts = [text[:SAMPLE_CHARACTERS] for text in texts]
    if data.text.params.char_ngrams is None and is_unspaced(starts):
        yield DataWarning(
            "NO_BLANKS",
            "the texts have no blanks between words, so that whole sentences are read as words: "
            "build the data set with runs of characters, "
            f"--option text.char_ngrams={[*UNSPACED_RUNS]}, or train with --auto",
        )
    if 2 * sum(map(bool, map(MARKUP.search, starts))) > len(starts):
        yield DataWarning(
            "MARKUP",
            "the texts contain tags or entities of HTML, which are read as words, and requests "
            "must have them too: remove them from both",
        )
    language = data.text.analyzer.language
    if texts and not data.text.analyzer.detects_language and {*map(language, texts)} == {""}:
        yield DataWarning(
            "NO_LANGUAGE",
            f"text.language={data.text.params.language} is not a language with stems, and none of "
            f"{len(texts)} texts has a field of that name, so words are not read as stems: name a "
            "language, such as de, auto, or a field of the rows",
        )


def _copied_rows(data: Dataset) -> DataWarning | None:
    """Return a warning if many test rows equal a training row."""
    if data.test is None or not data.test.n_rows:
        return None
    test, train = (
        fingerprints(split.X, split.X.data.view(np.uint32), 0) for split in (data.test, data.train)
    )
    filled = np.diff(data.test.X.indptr) > 0
    copied = int(np.count_nonzero(np.isin(test, train) & filled))
    if copied <= COPIED_SHARE * data.test.n_rows:
        return None
    return DataWarning(
        "COPIED_ROWS",
        f"{copied:,} of {data.test.n_rows:,} test rows equal a training row, so measures on them "
        "are too high: remove the copies",
    )
