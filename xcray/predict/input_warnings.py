"""Warnings about rows that a model can hardly answer: no features, unknown words, no language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from xcray.arrays import CSR
from xcray.data.text.pipeline import TextPipeline, count_empty_rows
from xcray.errors import excerpt

UNKNOWN_SHARE: Final = 0.5  # share of unknown words from which a warning is given
MAX_TEXTS: Final = 256  # texts whose words are looked up
MAX_WORDS: Final = 5  # unknown words in a message


class InputCounts(NamedTuple):
    """Counts of rows: all, and those without a feature.

    words: distinct words of the first MAX_TEXTS texts; unknown: those outside the vocabulary, and
    `examples` of them. no_language: of these texts, those whose field of the language is empty.
    """

    rows: int = 0
    empty: int = 0
    words: int = 0
    unknown: int = 0
    examples: tuple[str, ...] = ()
    no_language: int = 0


def count_inputs(rows: Any, X: CSR, text: TextPipeline | None) -> InputCounts:
    """Count rows without a feature, and unknown words.

    rows: what was encoded as X (n x D), a list of texts or feature rows. text: of the model.
    """
    empty = count_empty_rows(X)
    if text is None or not isinstance(rows, list):
        return InputCounts(X.n_rows, empty)
    first = rows[:MAX_TEXTS]
    words = _words(first, text)
    known = pc.is_in(pa.array(words, pa.large_string()), value_set=text.terms).to_pylist()
    unknown = [word for word, is_known in zip(words, known, strict=True) if not is_known]
    examples = tuple(unknown[:MAX_WORDS])
    # a language that is detected is never empty
    read = None if text.analyzer.detects_language else text.analyzer.language
    no_language = 0 if read is None else sum(read(each) == "" for each in first)
    return InputCounts(X.n_rows, empty, len(words), len(unknown), examples, no_language)


def input_warnings(counts: InputCounts) -> list[dict[str, Any]]:
    """Return warnings with a code and a message: EMPTY_ROWS, UNKNOWN_WORDS, NO_LANGUAGE."""
    out = []
    if counts.empty:
        out.append(empty_rows_warning(counts.rows, counts.empty))
    if counts.unknown > UNKNOWN_SHARE * counts.words:
        shown = ", ".join(repr(excerpt(word, 40)) for word in counts.examples)
        message = (
            f"{counts.unknown:,} of {counts.words:,} words are not in the vocabulary of the model, "
            f"like {shown}: check that the texts are of the kind that it was trained on"
        )
        out.append({"code": "UNKNOWN_WORDS", "message": message})
    texts = min(counts.rows, MAX_TEXTS)
    if counts.no_language > UNKNOWN_SHARE * texts:
        message = (
            f"{counts.no_language:,} of {texts:,} texts leave the field of the language empty, by "
            "which the model chooses the stems of words: give it, such as --field lang=en"
        )
        out.append({"code": "NO_LANGUAGE", "message": message})
    return out


def empty_rows_warning(n_rows: int, n_empty: int) -> dict[str, Any]:
    """Return the warning EMPTY_ROWS about `n_empty` of `n_rows` rows."""
    message = (
        f"{n_empty:,} of {n_rows:,} rows have no feature (an empty text, or only unknown words), "
        "so the bias alone answers them: check the input"
    )
    return {"code": "EMPTY_ROWS", "message": message}


def _words(texts: Sequence[str], text: TextPipeline) -> list[str]:
    """Return the distinct words of texts in order, without n-grams."""
    analyzer = text.analyzer
    words: dict[str, None] = {}
    for each in texts:
        for part in analyzer.parts(each):
            stems, _, wholes = analyzer.words(part)
            words.update(dict.fromkeys((*stems, *wholes)))
    return [*words]
