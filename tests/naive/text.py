"""Naive text features: a dictionary of terms, a Counter per text, and Python strings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from xcray.arrays import CSR, csr
from xcray.data.text.pipeline import TextPipeline
from xcray.data.text.tokenizer import IDENTIFIER_PART, TextParams, normalise

SIBILANT = re.compile(r"(?:ss|sh|x|tch|nch|rch)es$")


def transform(pipeline: TextPipeline, texts: Sequence[str]) -> CSR:
    """Return rows of length 1: tf * idf summed over ascending columns, in float64 until the end."""
    number = {term: j for j, term in enumerate(pipeline.terms.to_pylist())}
    idf = np.log((1.0 + pipeline.n_texts) / (1.0 + pipeline.df)) + 1.0
    indptr, ids, counts = [0], [], []
    for text in texts:
        row = Counter(number[term] for term in terms(pipeline.params, text) if term in number)
        ids += sorted(row)
        counts += [row[j] for j in sorted(row)]
        indptr.append(len(ids))
    weights = np.array(counts, np.float64)
    if pipeline.params.sublinear_tf:
        weights = np.log(weights) + 1.0
    weights *= idf[np.array(ids, np.int64)]
    row_of = np.repeat(np.arange(len(texts)), np.diff(indptr))
    weights /= np.sqrt(np.bincount(row_of, weights * weights, minlength=len(texts)))[row_of]
    return csr(indptr, ids, weights, len(number))


def terms(params: TextParams, text: str) -> list[str]:
    """Return the terms of a text in order, by the rules of `TextParams`."""
    text = normalise(text)
    if params.lowercase and not params.split_identifiers:
        text = text.lower()
    words, wholes = [], []
    for token in re.findall(params.token_pattern, text):
        parts = IDENTIFIER_PART.findall(token) if params.split_identifiers else []
        if len(parts) > 1:
            words += [part for part in parts if len(part) > 1]
            wholes.append(token)
        else:
            words.append(token)
    if params.lowercase and params.split_identifiers:
        words, wholes = [w.lower() for w in words], [w.lower() for w in wholes]
    if params.fold_plurals:
        words = [singular(w) for w in words]
    words = [dict(params.aliases).get(w, w) for w in words]
    runs = range(1, params.ngram_max + 1)
    return [" ".join(words[i : i + n]) for n in runs for i in range(len(words) - n + 1)] + wholes


def singular(word: str) -> str:
    """Return the singular by Harman's s-rules."""
    if len(word) < 4 or word.endswith(("us", "ss", "is")) or not word.endswith("s"):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-2] if SIBILANT.search(word) else word[:-1]
