"""What went wrong while reading: the first errors kept, all counted, and what was odd but readable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from xcray.errors import DataError


class DataErrors(DataError):
    """Several lines can't be read. It stands for its first error and tells how many there are; `.errors` lists them."""

    def __init__(self, errors: Sequence[DataError], more: bool = False) -> None:
        """errors: at least one, in file order; more: whether reading stopped before the end of the file."""
        first = errors[0]
        places = "lines" if first.row is None else "rows"
        others = (
            f" (and {len(errors) - 1} more bad {places}{', reading stopped there' if more else ''})"
            if len(errors) > 1
            else ""
        )
        super().__init__(
            first.code,
            first.problem + others,
            file=first.file,
            line=first.line,
            column=first.column,
            value=first.value,
            hint=first.hint,
            row=first.row,
        )
        self.errors = list(errors)
        self.details["errors"] = [error.as_dict() for error in errors]


class Tally:
    """The account of one reading, filled while the rows go by.

    file: base name of what is read. errors: the first `keep`; n_bad: bad lines; n_rows: good rows; warnings: a count of
    each kind of oddness. n_features, n_labels: widths seen so far, or told by a header; n_entries, n_positives: stored
    features and labels.
    skip: go on after a bad line (to leave it out, or just to count).
    """

    def __init__(self, keep: int = 20, skip: bool = False) -> None:
        self.keep = keep
        self.skip = skip
        self.file: str | None = None
        self.errors: list[DataError] = []
        self.warnings: Counter[str] = Counter()
        self.n_bad = self.n_rows = self.n_entries = self.n_positives = 0
        self.n_features = self.n_labels = 0

    def bad(self, error: DataError) -> None:
        """Count a bad line; raises DataErrors when enough are collected and they are not to be skipped."""
        self.n_bad += 1
        if len(self.errors) < self.keep:
            self.errors.append(error)
        if not self.skip and len(self.errors) == self.keep:
            raise DataErrors(self.errors, more=True)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """While reading: an error that ends the reading comes after the bad lines already found, not in their place."""
        try:
            yield
        except DataErrors:
            raise
        except DataError as error:
            if self.errors and not self.skip:
                raise DataErrors([*self.errors, error]) from error
            raise

    def close(self) -> None:
        """The end of the file: raise DataErrors for the errors collected, unless they are to be skipped."""
        if self.errors and not self.skip:
            raise DataErrors(self.errors)

    def as_dict(self) -> dict[str, Any]:
        """Skipped lines, the first reasons, and warnings, JSON-ready, for a manifest."""
        return {
            "skipped": self.n_bad,
            "skipped_reasons": [error.as_dict() for error in self.errors],
            "warnings": {name: count for name, count in sorted(self.warnings.items()) if count},
        }
