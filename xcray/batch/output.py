"""Output of a batch prediction: committed parts, then one directory with a manifest.

run directory  run.json   part-00007-SHA256.parquet   timeline-0001.arrows
               a part is complete or missing
output         part-00000.parquet, part-00001.parquet, ...   _manifest.json
               appears by one rename, and never changes

A part in the run directory is named by the hash of its bytes and contains a summary. A later
run reuses the part if the hash is correct, and sets it aside otherwise.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from xcray.batch.chunk_task import MAX_REASONS, PART_KEY, AnswerPart
from xcray.batch.plan import BatchPlan
from xcray.errors import Conflict, Corrupt
from xcray.predict.input_warnings import InputCounts, input_warnings
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    link_file,
    publish_directory,
    read_json,
    sha256_file,
    write_bytes,
    write_json,
)
from xcray.training.block_store import claim_directory

# Tools that read a directory of Parquet files ignore names with an underscore.
MANIFEST: Final = "_manifest.json"
SCHEMA_VERSION: Final = 1
PART_PATTERN: Final = re.compile(r"part-(\d{5,})-([0-9a-f]{32})\.parquet")


class CommittedPart(NamedTuple):
    """A committed part: file, size, SHA-256, answered and skipped rows, first reasons, counts."""

    path: Path
    n_bytes: int
    sha256: str
    rows: int
    skipped: int
    reasons: tuple[dict[str, Any], ...]
    inputs: InputCounts


class OutputParts:
    """The parts of one run in `directory`. Raises Conflict if it belongs to another run.

    damaged: names of damaged parts; they are set aside and computed again.
    """

    def __init__(self, directory: Path, fingerprint: Mapping[str, Any], plan: BatchPlan) -> None:
        self._directory = directory
        self._plan = plan
        self._fingerprint = fingerprint
        directory.mkdir(parents=True, exist_ok=True)
        claim_directory(directory, fingerprint)
        self._committed: dict[int, CommittedPart] = {}
        self.damaged: list[str] = []
        for path in sorted(directory.glob("part-*.parquet")):
            self._adopt_part(path)

    @property
    def missing(self) -> list[int]:
        """Return the chunks that no part holds, in order."""
        return [chunk.number for chunk in self._plan.chunks if chunk.number not in self._committed]

    @property
    def rows_read(self) -> int:
        """Return the number of rows of finished chunks, including invalid rows."""
        return sum(self._plan.chunks[number].n_rows for number in self._committed)

    def commit(self, part: AnswerPart) -> None:
        """Make a part durable: it survives any crash after this call."""
        content = part.content.tobytes()
        digest = hashlib.sha256(content).hexdigest()
        path = self._directory / f"part-{part.chunk:05d}-{digest[:32]}.parquet"
        write_bytes(path, content)
        self._committed[part.chunk] = _read_committed(path, digest)

    def publish(
        self, out: Path, entries: Mapping[str, Any], check: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Publish all parts with their manifest as the directory `out` and return the manifest.

        entries: additional manifest entries, JSON. check: called just before the rename; raises if
        this process is no longer allowed to publish. The parts stay in the run directory.
        Raises Conflict if `out` exists and belongs to another run.
        """
        manifest = self._make_manifest(entries)
        staged = (
            self._directory / "publish"
            if _same_disk(self._directory, out)
            else create_staging_directory(out)
        )
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        try:
            for number, part in sorted(self._committed.items()):
                link_file(part.path, staged / part_file_name(number))
            write_json(staged / MANIFEST, manifest)
            check()
            publish_directory(staged, out)
        except Conflict:
            # Another attempt of the same work can be quicker.
            other = find_own_manifest(out, self._fingerprint)
            if other is None:
                raise
            return other
        finally:
            discard_directory(staged)
        return manifest

    def _adopt_part(self, path: Path) -> None:
        """Reuse a part of an earlier run, or set it aside."""
        match = PART_PATTERN.fullmatch(path.name)
        digest = sha256_file(path)
        number = int(match[1]) if match else -1
        if match and digest.startswith(match[2]) and number < len(self._plan.chunks):
            self._committed[number] = _read_committed(path, digest)
        else:
            path.rename(path.with_suffix(".damaged"))
            self.damaged.append(path.name)

    def _make_manifest(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the manifest: content and origin of the output."""
        parts = [
            _part_entry(self._plan, number, part)
            for number, part in sorted(self._committed.items())
        ]
        schema = pq.read_schema(self._committed[0].path)
        return {
            "schema_version": SCHEMA_VERSION,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "fingerprint": fingerprint_digest(self._fingerprint),
            "rows": self._plan.n_rows,
            "answered": sum(part.rows for part in self._committed.values()),
            "skipped": sum(part.skipped for part in self._committed.values()),
            "skipped_reasons": [
                reason for _, part in sorted(self._committed.items()) for reason in part.reasons
            ][:MAX_REASONS],
            "warnings": self._warnings(),
            "columns": {field.name: str(field.type) for field in schema},
            "parts": parts,
            **entries,
        }

    def _warnings(self) -> list[dict[str, Any]]:
        """Return the warnings about the rows of all parts; the first one has counted words."""
        counts = [part.inputs for part in self._committed.values()]
        total = self._committed[0].inputs._replace(
            rows=sum(each.rows for each in counts), empty=sum(each.empty for each in counts)
        )
        return input_warnings(total)


def read_manifest(path: Path, verify: bool = False) -> dict[str, Any]:
    """Return the manifest of an output directory. Raises NotFound, Corrupt.

    verify: compare every part with its checksum.
    """
    manifest: dict[str, Any] = read_json(path / MANIFEST)
    try:
        known = manifest["schema_version"] == SCHEMA_VERSION
        parts = [(path / part["file"], part["sha256"]) for part in manifest["parts"]]
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{MANIFEST} of {path.name} lacks {error}") from None
    if not known:
        raise Corrupt(
            f"{MANIFEST} has schema version {manifest['schema_version']}, "
            f"this xcray reads {SCHEMA_VERSION}"
        )
    for part, digest in parts if verify else ():
        if not part.is_file() or sha256_file(part) != digest:
            raise Corrupt(f"{path.name}: {part.name} is not what was written", file=part.name)
    return manifest


def find_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest of an output, or None if missing. Raises Corrupt."""
    return read_manifest(path) if (path / MANIFEST).is_file() else None


def find_own_manifest(path: Path, fingerprint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of an output of the same run; None if missing or of another run."""
    manifest = find_manifest(path)
    return (
        manifest
        if manifest is not None and manifest.get("fingerprint") == fingerprint_digest(fingerprint)
        else None
    )


def fingerprint_digest(fingerprint: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a run's fingerprint."""
    return hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()


def part_file_name(number: int) -> str:
    """Return the name of a part in the output."""
    return f"part-{number:05d}.parquet"


def _part_entry(plan: BatchPlan, number: int, part: CommittedPart) -> dict[str, Any]:
    """Return a part's manifest entry, with its range of input rows."""
    chunk = plan.chunks[number]
    counts = {
        "first_row": chunk.first_row,
        "rows_read": chunk.n_rows,
        "rows": part.rows,
        "skipped": part.skipped,
    }
    return {"file": part_file_name(number), **counts, "bytes": part.n_bytes, "sha256": part.sha256}


def _read_committed(path: Path, digest: str) -> CommittedPart:
    """Return a committed part from the summary in its file. Raises Corrupt."""
    try:
        summary = json.loads(pq.read_schema(path).metadata[PART_KEY])
        reasons = tuple(summary["skipped_reasons"])
        return CommittedPart(
            path,
            path.stat().st_size,
            digest,
            int(summary["rows"]),
            int(summary["skipped"]),
            reasons,
            InputCounts(**summary["inputs"]),
        )
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Corrupt(
            f"{path.name} is not a part of an output: {type(error).__name__}; remove it"
        ) from None


def _same_disk(directory: Path, out: Path) -> bool:
    """Return whether a rename can move a directory from here to `out`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    return directory.stat().st_dev == out.parent.stat().st_dev
