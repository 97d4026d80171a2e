"""Synthetic corpora with the shape of large public sets.

Words follow the law of Zipf and Mandelbrot; labels belong to topics, topics to fields.

A word is its rank: in the background, word r is drawn ~ (r + shift)^-exponent. A field has a list
of words, most common first. A topic takes half of its list from its field's. A label takes most of
its profile from its topic's list, and the share `own` from rare words. The frequencies of labels
follow a power law with a minimum. Uses of labels are assigned to rows topic by topic, so that the
labels of a row are mostly siblings. A word of a row comes from the profile of one of its labels,
from the list of one of their topics, or from the background. Words later in a list are rarer. Some
labels of a row contribute no word; these cannot be learned. Counts become 1 + ln tf, times 1 + ln(N
/ df), in float32 rows of length 1.

The numbers of words and labels are shuffled, so that adjacent numbers are unrelated. Rows are
generated in blocks with one random stream each (`synthetic.stream`); lists and the assignment of
labels are drawn before. A shape and its seed define one corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern, csr, distinct, pattern
from xcray.data.dataset import Dataset
from xcray.data.synthetic import random_stream
from xcray.data.writer import DatasetWriter

BLOCK = 4096  # rows that share a random stream; another value gives another corpus
COMMON, MIDDLE, RARE = (
    (1.05, 30.0),
    (0.8, 50.0),
    (0.5, 200.0),
)  # exponent and shift: of the background, of lists, of own words
FALLING = (1.0, 3.0)  # the same along a list
SPREAD = 0.5  # standard deviation of the logarithm of a row's length
SHARED = 0.5  # share of a topic's list that comes from its field's
FIELD = 25  # mean number of topics per field


@dataclass(frozen=True)
class Shape:
    """Parameters of a corpus.

    labels, features: K and D. rows, held_out: rows of the training part and of the test part.
    words_per_row: mean number of words drawn; fewer are distinct. labels_per_row: mean, at least
    one each. least, most: rows of the rarest label, and share of rows of the most common one.
    topic: mean number of labels per topic. profile, listed: words in the list of a label, and of a
    topic.

    Shares: from_labels and from_topics, of a row's words; own, of rare words in a profile; kin, of
    the uses of a label that are assigned together with its siblings, at most half of a topic's
    rows; silent, of labels that contribute no word to their row.
    """

    name: str
    labels: int
    features: int
    rows: int
    words_per_row: float
    labels_per_row: float
    held_out: int = 5000
    least: int = 1
    most: float = 0.004
    topic: int = 40
    profile: int = 40
    listed: int = 300
    from_labels: float = 0.2
    from_topics: float = 0.3
    own: float = 0.3
    kin: float = 0.8
    silent: float = 0.2
    seed: int = 0

    def scaled(self, scale: float) -> Shape:
        """Return the shape with `scale` times the rows and labels, and sqrt(scale) times the words.

        Vocabularies grow approximately with the square root (Heaps' law).
        """
        rows, labels = max(int(self.rows * scale), 2), max(int(self.labels * scale), 2)
        features = max(int(self.features * scale**0.5), self.listed)
        return replace(
            self,
            rows=rows,
            labels=labels,
            features=features,
            held_out=min(self.held_out, max(rows // 10, 1)),
        )

    @property
    def total(self) -> int:
        """Return the number of rows of both parts."""
        return self.rows + self.held_out


class Lists(NamedTuple):
    """Ranks of words by topic (T, listed) and by label (K, profile), and the topics of labels (K,).

    All are int32.
    """

    topics: Int32
    labels: Int32
    topic_of: Int32


class Dealt(NamedTuple):
    """Labels of all rows, those of the test part last.

    Row i has labels[indptr[i] : indptr[i + 1]], unordered, possibly with duplicates.
    """

    indptr: Int64
    labels: Int32


class Counted(NamedTuple):
    """The words of a block: the number of distinct words per row, their numbers, and their counts.

    The numbers of a row are ascending.
    """

    lengths: Int64
    words: Int32
    counts: Float32


EMPTY = Counted(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


def generate(shape: Shape, path: Path) -> Dataset:
    """Generate the corpus and publish it as the data set `path`.

    Memory: 8 bytes for each entry of X, twice, and the lists.
    """
    rng = random_stream(shape.seed, 0)
    lists = make_lists(shape, rng)
    dealt = deal(shape, lists.topic_of, rng)
    numbers = rng.permutation(shape.features).astype(np.int32)  # of words, by rank
    starts = range(0, shape.total, BLOCK)
    blocks = [count_words(shape, lists, dealt, numbers, start) for start in starts]
    idf = inverse_frequencies(shape, starts, blocks)
    with DatasetWriter(
        path, name=shape.name, n_features=shape.features, n_labels=shape.labels
    ) as writer:
        for i, start in enumerate(starts):
            X, Y = weighted(blocks[i], idf), label_sets(shape, dealt, start)
            blocks[i] = EMPTY  # frees the memory
            for part, rows, labels in by_part(shape, start, X, Y):
                writer.add(part, rows, labels)
        return writer.finish(source={"format": "generated", "shape": asdict(shape)})


def make_lists(shape: Shape, rng: np.random.Generator) -> Lists:
    """Draw the hierarchy and its words."""
    n_topics = max(shape.labels // shape.topic, 1)
    n_fields = max(n_topics // FIELD, 1)
    fields = ranks(rng.random((n_fields, shape.listed)), shape.features, *MIDDLE)
    topics = ranks(rng.random((n_topics, shape.listed)), shape.features, *MIDDLE)
    at = ranks(rng.random(topics.shape), shape.listed, *FALLING)
    shared = rng.random(topics.shape) < SHARED
    topics = np.where(shared, fields[rng.integers(0, n_fields, n_topics)[:, None], at], topics)
    topic_of = (n_topics * rng.random(shape.labels) ** 1.5).astype(
        np.int32
    )  # some have many labels
    labels = ranks(rng.random((shape.labels, shape.profile)), shape.features, *RARE)
    at = ranks(rng.random(labels.shape), shape.listed, *FALLING)
    labels = np.where(rng.random(labels.shape) >= shape.own, topics[topic_of[:, None], at], labels)
    return Lists(topics, labels, topic_of)


def deal(shape: Shape, topic_of: Int32, rng: np.random.Generator) -> Dealt:
    """Order the uses of all labels by topic, cut them into rows, and shuffle the rows."""
    counts = label_uses(
        shape.labels,
        int(shape.total * shape.labels_per_row),
        shape.least,
        max(int(shape.total * shape.most), shape.least),
    )
    uses = np.repeat(rng.permutation(shape.labels).astype(np.int32), counts)
    n_topics = int(topic_of.max()) + 1
    nth, of_label = (
        np.arange(len(uses)) - np.repeat(np.cumsum(counts) - counts, counts),
        counts.repeat(counts),
    )
    room = np.bincount(topic_of[uses], minlength=n_topics)[topic_of[uses]] / (
        2 * shape.labels_per_row
    )  # half of a topic's rows
    kin = rng.random(len(uses)) * np.maximum(of_label / room, 1.0) < shape.kin
    place = np.where(kin, topic_of[uses], rng.integers(0, n_topics, len(uses)))
    uses = uses[
        np.argsort(place + (nth + rng.random(len(uses))) / of_label)
    ]  # spreads the uses of a label
    lengths = 1 + np.bincount(
        rng.integers(0, shape.total, max(len(uses) - shape.total, 0)), minlength=shape.total
    )
    starts = np.cumsum(lengths) - lengths
    order = rng.permutation(shape.total)
    starts, lengths = starts[order], lengths[order]
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    selection = np.repeat(starts - indptr[:-1], lengths) + np.arange(indptr[-1])
    return Dealt(
        indptr, uses[selection % len(uses)]
    )  # wraps around if there are fewer uses than rows


def label_uses(n: int, total: int, least: int, most: int) -> Int64:
    """Return the frequency of each of n labels, descending.

    It is a power law from `least`, cut at `most`, with a sum of about `total`.
    """
    places = (np.arange(n) + 0.5) / n
    low, high = 0.0, 4.0
    for _ in range(60):
        slope = (low + high) / 2
        counts = np.minimum(np.floor(least * places**-slope), most).astype(np.int64)
        low, high = (slope, high) if counts.sum() < total else (low, slope)
    return counts


def ranks(u: Any, n: int, exponent: float, shift: float) -> Int32:
    """Return ranks 0 to n - 1 for uniform u in [0, 1); r has probability ~ (r + shift)^-exponent.

    It is the inverse of the integral. An exponent of 1 is replaced by 1 - 1e-9, so that one formula
    covers all cases.
    """
    power = (1.0 - exponent) or 1e-9
    low, high = shift**power, (n + shift) ** power
    result: Int32 = np.minimum((low + u * (high - low)) ** (1.0 / power) - shift, n - 1).astype(
        np.int32
    )
    return result


def count_words(shape: Shape, lists: Lists, dealt: Dealt, numbers: Int32, start: int) -> Counted:
    """Draw the words of the block that begins with row `start`."""
    rng = random_stream(shape.seed, 1 + start // BLOCK)
    stop = min(start + BLOCK, shape.total)
    first, n_labels = dealt.indptr[start:stop], np.diff(dealt.indptr[start : stop + 1])
    longer = np.exp(SPREAD * rng.standard_normal(stop - start) - SPREAD**2 / 2)  # mean 1
    row = np.repeat(
        np.arange(stop - start), np.maximum(shape.words_per_row * longer, 3).astype(np.int64)
    )
    reports = np.maximum(rng.binomial(n_labels, 1.0 - shape.silent), 1)
    label = dealt.labels[first[row] + (rng.random(len(row)) * reports[row]).astype(np.int64)]
    source, u = rng.random(len(row)), rng.random(len(row))
    words = ranks(u, shape.features, *COMMON)
    own = source < shape.from_labels
    kin = ~own & (source < shape.from_labels + shape.from_topics)
    words[own] = lists.labels[label[own], ranks(u[own], shape.profile, *FALLING)]
    words[kin] = lists.topics[lists.topic_of[label[kin]], ranks(u[kin], shape.listed, *FALLING)]
    cells, counts = np.unique(row * np.int64(shape.features) + numbers[words], return_counts=True)
    rows, columns = np.divmod(cells, shape.features)
    return Counted(
        np.bincount(rows, minlength=stop - start),
        columns.astype(np.int32),
        counts.astype(np.float32),
    )


def inverse_frequencies(shape: Shape, starts: range, blocks: list[Counted]) -> Float64:
    """Return 1 + ln(N / df) of every word, (D,), from the training rows.

    Words that no training row has count as seen once.
    """
    df = np.zeros(shape.features, np.int64)
    for start, block in zip(starts, blocks, strict=True):
        trained = int(block.lengths[: max(shape.rows - start, 0)].sum())
        df += np.bincount(block.words[:trained], minlength=shape.features)
    idf: Float64 = 1.0 + np.log(shape.rows / np.maximum(df, 1))
    return idf


def weighted(block: Counted, idf: Float64) -> CSR:
    """Return rows of (1 + ln tf) idf, scaled to length 1."""
    values = (1.0 + np.log(block.counts)) * idf[block.words]
    row = np.repeat(np.arange(len(block.lengths)), block.lengths)
    norms = np.sqrt(np.bincount(row, values * values, minlength=len(block.lengths)))
    return csr(
        np.concatenate(([0], np.cumsum(block.lengths))), block.words, values / norms[row], len(idf)
    )


def label_sets(shape: Shape, dealt: Dealt, start: int) -> Pattern:
    """Return the labels of the block that begins with row `start`, without duplicates."""
    stop = min(start + BLOCK, shape.total)
    row = np.repeat(np.arange(stop - start), np.diff(dealt.indptr[start : stop + 1]))
    cells = distinct(
        row * np.int64(shape.labels) + dealt.labels[dealt.indptr[start] : dealt.indptr[stop]]
    )
    rows, columns = np.divmod(cells, shape.labels)
    return pattern(
        np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=stop - start)))),
        columns,
        shape.labels,
    )


def by_part(shape: Shape, start: int, X: CSR, Y: Pattern) -> Iterator[tuple[str, CSR, Pattern]]:
    """Yield the rows of a block for the training part, then those for the test part."""
    edge = min(max(shape.rows - start, 0), X.n_rows)
    for part, lo, hi in (("train", 0, edge), ("test", edge, X.n_rows)):
        if lo < hi:
            x, y = X.indptr[lo : hi + 1], Y.indptr[lo : hi + 1]
            rows = csr(x - x[0], X.indices[x[0] : x[-1]], X.data[x[0] : x[-1]], X.n_cols)
            yield part, rows, pattern(y - y[0], Y.indices[y[0] : y[-1]], Y.n_cols)
