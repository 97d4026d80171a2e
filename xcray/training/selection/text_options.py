"""Choose the options of the texts of a data set, on held-out training rows.

Options are added one after the other, the order being that of their gain per second on the public
sets. Each is kept if the rows of a sample are answered better by the rule of `is_better`. The data
set keeps its texts, so each try fits a pipeline to the texts to learn from, and trains on its rows.
Options that the data set was built with stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Int64, frozen
from xcray.data.dataset import Dataset
from xcray.data.text.fields import SEPARATOR, TEXT, Field
from xcray.data.text.pipeline import TextPipeline
from xcray.data.text.stems import AUTO, detect, stemmer_version
from xcray.data.text.tokenizer import UNSPACED_RUNS, TextParams, is_unspaced
from xcray.data.texts import texts_of
from xcray.errors import ParameterError, Unavailable
from xcray.kernels.sparse import take_pattern_rows
from xcray.solvers import SOLVERS
from xcray.storage.atomic import read_json, sha256_arrays, write_json
from xcray.training.selection.coordinate_search import gain_over, is_better
from xcray.training.selection.evaluate import Evaluator
from xcray.training.selection.held_out import LearnRows, selection_of, split_training_rows
from xcray.workers.pool import StopFlag

MAX_ROWS: Final = 100_000  # of the sample, four fifths of them to learn from
MAX_CHARACTERS: Final = 400  # of the mean text, up to which runs of characters are tried
FIELD_WEIGHTS: Final = (2.0, 4.0)
MAX_TRIES: Final = 9  # with two text fields
SECONDS_PER_ENTRY: Final = 5e-6  # of the rows of a try, to fit a pipeline
MAX_DETECTED: Final = 500  # texts whose language is detected
ONE_LANGUAGE: Final = 0.9  # share of them from which all are read as texts of one language


class TextTry(NamedTuple):
    """Options to compare. name: for readers. params: of the texts; solver: of the training."""

    name: str
    params: TextParams
    solver: dict[str, Any]


class TextSelector:
    """Chooses text options of a data set.

    solver, params: its name and given parameters, which are not varied. select: the measure. path:
    keeps measured tries. tick: called with the number and the name of a try; its exceptions end the
    work. is_late: returns whether the time is up.
    """

    def __init__(
        self,
        data: Dataset,
        solver: str,
        params: Mapping[str, Any],
        select: str,
        workers: int,
        path: Path,
        *,
        stop: StopFlag | None = None,
        tick: Callable[[int, str], None] = lambda *_: None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.solver, self.given, self.select = solver, dict(params), select
        self.workers, self.path, self.stop = workers, path, stop
        self.tick, self.is_late = tick, is_late
        assert data.text is not None
        self.params = data.text.params
        self.fields = self.params.fields or tuple(map(Field, data.text_fields))
        rows = np.random.default_rng(0).permutation(data.train.n_rows)[:MAX_ROWS]
        rows = np.sort(rows)
        self.texts = [*texts_of(data, rows)]
        self.Y = take_pattern_rows(data.train.Y, frozen(rows, np.int64))
        weights = data.train.weights
        self.weights = None if weights is None else frozen(weights[rows], np.float32)
        self.learn, self.held = split_training_rows(len(rows))
        self.identity = f"{data.content_hash} {solver} {sorted(self.given.items())} {select}"
        self.results: dict[str, dict[str, Any]] = read_json(path) if path.exists() else {}

    def run(self) -> tuple[TextParams, dict[str, Any]]:
        """Return the chosen options, and what was tried; JSON."""
        best = TextTry("as built", self.params, {})
        first = value = self._evaluate(best, 0)
        tried, skipped = [self._row(best, first, first, True)], list[str]()
        for make in self._makers():
            new = make(best)
            if isinstance(new, str):
                skipped.append(new)
            elif self.is_late():
                skipped.append(f"{new.name}: the time is up")
            else:
                try:
                    result = self._evaluate(new, len(tried))
                except ParameterError as error:  # no term is left
                    skipped.append(f"{new.name}: {error.message}")
                    continue
                kept = is_better(result, value)
                tried.append(self._row(new, result, value, kept))
                if kept:
                    best, value = new, result
        report = {
            "select": self.select,
            "rows": len(self.learn),
            "held_out": len(self.held),
            "tried": tried,
            "over_start": gain_over(value, first),
            "not_tried": skipped,
            "chosen": _changes(best.params, self.params),
        }
        return best.params, report

    def _makers(self) -> Iterator[Callable[[TextTry], TextTry | str]]:
        """Yield what makes the next try from the best one, or says why it is left out."""
        texts = [field.name for field in self.fields if field.kind == TEXT]
        if len(texts) > 1 and not any(field.weight for field in self.fields):
            for name in sorted(texts, key=self._field_length):
                for weight in FIELD_WEIGHTS:
                    yield partial(self._weigh, name, weight)
        together = SOLVERS[self.solver].tuning.together
        if together and not set(together) & set(self.given):
            text = " ".join(f"{name}={value}" for name, value in together.items())
            yield lambda best: TextTry(text, best.params, dict(together))
        if not self.params.sublinear_tf:
            yield lambda best: _with(best, "sublinear_tf=true", sublinear_tf=True)
        if self.params.char_ngrams is None:
            yield self._add_characters
        if self.params.language is None:
            yield self._add_stems
        if self.params.ngram_max == 1:
            yield lambda best: _with(best, "ngram_max=2 min_df=2", ngram_max=2, min_df=2)

    def _weigh(self, name: str, weight: float, best: TextTry) -> TextTry | str:
        """Return the best try with a weight of a field, or why it is not worth a try."""
        text, fields = f"{name}:{weight:g}", best.params.fields or self.fields
        own = next(field for field in fields if field.name == name)
        before = FIELD_WEIGHTS[FIELD_WEIGHTS.index(weight) - 1]
        if weight != FIELD_WEIGHTS[0] and own.weight != before:
            return f"{text}: {name}:{before:g} was not better"
        if any(field.weight for field in fields if field != own):
            return f"{text}: another field has a weight"
        others = tuple(replace(each, weight=weight) if each == own else each for each in fields)
        return _with(best, text, fields=others)

    def _add_characters(self, best: TextTry) -> TextTry | str:
        """Return the best try with runs of characters, unless texts are long."""
        if is_unspaced(self.texts[:MAX_DETECTED]):
            text = f"char_ngrams={[*UNSPACED_RUNS]}"
            return _with(best, text, char_ngrams=UNSPACED_RUNS)
        mean = sum(map(len, self.texts)) / len(self.texts)
        if mean > MAX_CHARACTERS:
            return f"char_ngrams: texts of {mean:.0f} characters, more than {MAX_CHARACTERS}"
        return _with(best, "char_ngrams=[4,6]", char_ngrams=(4, 6))

    def _add_stems(self, best: TextTry) -> TextTry | str:
        """Return the best try with stems of the language of the texts."""
        try:
            stemmer_version()
            language = frequent_language(self.texts)
        except Unavailable as error:
            return f"language: {error.message}"
        return _with(best, f"language={language}", language=language)

    def _field_length(self, name: str) -> int:
        """Return the characters of a field in all texts."""
        place = [field.name for field in self.fields].index(name)
        return sum(len(text.split(SEPARATOR)[place]) for text in self.texts if SEPARATOR in text)

    def _evaluate(self, new: TextTry, number: int) -> dict[str, Any]:
        """Fit a pipeline, train and measure, or return the stored result."""
        self.tick(number, f"text options, step {number + 1} of at most {MAX_TRIES}: {new.name}")
        key = sha256_arrays({"try": repr((self.identity, new.params, new.solver))})
        if key not in self.results:
            learn, held = ([self.texts[i] for i in rows] for rows in (self.learn, self.held))
            pipeline, X = TextPipeline.fit_transform(learn, new.params)
            rows = LearnRows(X, self._labels(self.learn), self._weights())
            data = selection_of(rows, pipeline.transform(held), self._labels(self.held), step=1)
            compared = SOLVERS[self.solver].tuning.while_compared
            shared = {**self.given, **compared}
            evaluator = Evaluator(
                self.solver,
                shared,
                data,
                self.select,
                workers=self.workers,
                with_groups=True,
                stop=self.stop,
            )
            self.results[key] = evaluator.evaluate(new.solver)
            write_json(self.path, self.results)
        return self.results[key]

    def _labels(self, rows: Int64) -> Any:
        """Return the label sets of rows of the sample."""
        return take_pattern_rows(self.Y, rows)

    def _weights(self) -> Any:
        """Return the weights of the rows to learn from, or None."""
        return None if self.weights is None else frozen(self.weights[self.learn], np.float32)

    def _row(
        self, new: TextTry, result: dict[str, Any], before: dict[str, Any], stays: bool
    ) -> dict[str, Any]:
        """Return the entry of the report for a try. before: the best result before it."""
        value = {name: result[name] for name in ("value", "measures", "weights", "work")}
        return {"name": new.name, **value, **gain_over(result, before), "kept": stays}


def text_seconds(rows: int, entries: int, training: float) -> float:
    """Estimate the core seconds of all tries. rows, entries: of the training part.

    training: core seconds of a training of all rows.
    """
    share = min(1.0, MAX_ROWS / max(rows, 1))
    return MAX_TRIES * share * (training + SECONDS_PER_ENTRY * entries)


def frequent_language(texts: Sequence[str]) -> str:
    """Return the code of the language of nearly all texts; AUTO if there are several.

    Of a sample of all texts, because files can be in the order of languages. Raises Unavailable if
    py3langid is missing.
    """
    sample = texts[:: max(1, len(texts) // MAX_DETECTED)]
    [(language, n)] = Counter(map(detect, sample)).most_common(1)
    return language if n >= ONE_LANGUAGE * len(sample) else AUTO


def _with(best: TextTry, name: str, **changes: Any) -> TextTry:
    """Return the best try with other text options."""
    return TextTry(name, replace(best.params, **changes), best.solver)


def _changes(params: TextParams, before: TextParams) -> dict[str, Any]:
    """Return the options that differ; JSON."""
    old = asdict(before)
    return {name: value for name, value in asdict(params).items() if value != old[name]}
