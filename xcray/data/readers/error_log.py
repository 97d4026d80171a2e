"""Collection of errors and warnings while a file is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from xcray.data.readers.blocks import Source
from xcray.errors import DataError


class DataErrors(DataError):
    """Several lines could not be read.

    Its attributes are those of the first error, and the message gives the count. `.errors`
    lists all.
    """

    def __init__(self, errors: Sequence[DataError], more: bool = False) -> None:
        """Initialise from errors in file order.

        errors: at least one; more: whether reading stopped before the end of the file.
        """
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


class ErrorCollector:
    """Errors, warnings and counts of one reading, updated while rows are read.

    file: base name of the input. errors: the first `max_errors`; n_bad: bad lines; n_rows: good
    rows; warnings: count per kind. n_features, n_labels: widths so far, or from a header;
    n_entries, n_positives: stored features and labels. pending_rows: good rows of the block that is
    being read, not yet in n_rows.
    skip_bad: continue after bad lines (to leave them out, or only to count them).
    """

    def __init__(self, max_errors: int = 20, skip_bad: bool = False) -> None:
        self.max_errors = max_errors
        self.skip_bad = skip_bad
        self.file: str | None = None
        self.errors: list[DataError] = []
        self.warnings: Counter[str] = Counter()
        self.n_bad = self.n_rows = self.n_entries = self.n_positives = 0
        self.n_features = self.n_labels = self.pending_rows = 0

    def add(self, error: DataError) -> None:
        """Count a bad line.

        Raises DataErrors once `max_errors` are collected, unless bad lines are skipped.
        """
        self.n_bad += 1
        if len(self.errors) < self.max_errors:
            self.errors.append(error)
        if not self.skip_bad and len(self.errors) == self.max_errors:
            raise DataErrors(self.errors, more=True)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Wrap the reading of a file.

        If an error ends the reading, the bad lines collected before are raised together
        with it.
        """
        try:
            yield
        except DataErrors:
            raise
        except DataError as error:
            if self.errors and not self.skip_bad:
                raise DataErrors([*self.errors, error]) from error
            raise

    def raise_errors(self) -> None:
        """Raise DataErrors for the collected errors, unless bad lines are skipped.

        Call it at the end of the file.
        """
        if self.errors and not self.skip_bad:
            raise DataErrors(self.errors)

    def finish(self, source: Source) -> None:
        """Raise the collected errors unless they are skipped, and EMPTY_FILE if there is no row."""
        self.raise_errors()
        if not self.n_rows:
            empty = source.error("EMPTY_FILE", "the file has no rows")
            raise DataErrors(self.errors) if self.errors else empty

    def as_dict(self) -> dict[str, Any]:
        """Return skipped lines, the first reasons, and warnings, JSON-ready, for a manifest."""
        return {
            "skipped": self.n_bad,
            "skipped_reasons": [error.as_dict() for error in self.errors],
            "warnings": {name: count for name, count in sorted(self.warnings.items()) if count},
        }
