"""What comes out: committed parts while the work goes on, then one directory of Parquet files with a manifest.

run directory  run.json   part-00007-SHA256.parquet   timeline-0001.arrows     a part is there whole, or not at all
output         part-00000.parquet, part-00001.parquet, ...   _manifest.json    appears by one rename, and never changes

A part in the run directory is named by the hash of its bytes, and holds the facts about itself: a later run takes it up when
the hash still fits, and sets it aside when not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from xcray.batch.chunk_task import FACTS, REASONS, Part
from xcray.batch.plan import Plan
from xcray.errors import Conflict, Corrupt
from xcray.storage.atomic import (
    discard_directory,
    publish_directory,
    read_json,
    sha256_file,
    staging_directory,
    verify_files,
    write_bytes,
    write_json,
)
from xcray.training.block_store import claim

MANIFEST: Final = "_manifest.json"  # tools that read a directory of Parquet files pass over names with an underscore
SCHEMA_VERSION: Final = 1
KEPT: Final = re.compile(r"part-(\d{5,})-([0-9a-f]{32})\.parquet")


class KeptPart(NamedTuple):
    """A committed part: its file, size and SHA-256; rows answered and skipped, and the first reasons."""

    path: Path
    n_bytes: int
    sha256: str
    rows: int
    skipped: int
    reasons: tuple[dict[str, Any], ...]


class OutputParts:
    """The parts of one run in `directory`. Raises Conflict when it belongs to another run.

    damaged: names of parts found there that were not what was written; they are set aside and made again.
    """

    def __init__(self, directory: Path, fingerprint: Mapping[str, Any], plan: Plan) -> None:
        self._directory = directory
        self._plan = plan
        self._fingerprint = fingerprint
        directory.mkdir(parents=True, exist_ok=True)
        claim(directory, fingerprint)
        self._kept: dict[int, KeptPart] = {}
        self.damaged: list[str] = []
        for path in sorted(directory.glob("part-*.parquet")):
            self._adopt(path)

    @property
    def missing(self) -> list[int]:
        """Chunks that no part holds, in order."""
        return [chunk.number for chunk in self._plan.chunks if chunk.number not in self._kept]

    @property
    def rows_read(self) -> int:
        """Rows of the chunks that are done, bad ones too."""
        return sum(self._plan.chunks[number].n_rows for number in self._kept)

    def commit(self, part: Part) -> None:
        """Make a part durable; when this returns, no crash loses it."""
        content = part.content.tobytes()
        digest = hashlib.sha256(content).hexdigest()
        path = self._directory / f"part-{part.chunk:05d}-{digest[:32]}.parquet"
        write_bytes(path, content)
        self._kept[part.chunk] = _described(path, digest)

    def publish(
        self, out: Path, about: Mapping[str, Any], check: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Publish all parts with their manifest as the directory `out`; the manifest.

        about: more for the manifest, JSON. check: raises when this process may not publish any more; asked just before the rename.
        The parts stay in the run directory. Raises Conflict when `out` exists and is another's.
        """
        manifest = self._manifest(about)
        staged = (
            self._directory / "publish"
            if _same_disk(self._directory, out)
            else staging_directory(out)
        )
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        try:
            for number, kept in sorted(self._kept.items()):
                _place(kept.path, staged / file_name(number))
            write_json(staged / MANIFEST, manifest)
            check()
            publish_directory(staged, out)
        except Conflict:
            other = published(
                out, self._fingerprint
            )  # another attempt of the same work was quicker
            if other is None:
                raise
            return other
        finally:
            discard_directory(staged)
        return manifest

    def _adopt(self, path: Path) -> None:
        """Take up a part of an earlier run, or set it aside."""
        named = KEPT.fullmatch(path.name)
        digest = sha256_file(path)
        number = int(named[1]) if named else -1
        if named and digest.startswith(named[2]) and number < len(self._plan.chunks):
            self._kept[number] = _described(path, digest)
        else:
            path.rename(path.with_suffix(".damaged"))
            self.damaged.append(path.name)

    def _manifest(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """What the output is, and where it came from."""
        parts = [_entry(self._plan, number, kept) for number, kept in sorted(self._kept.items())]
        schema = pq.read_schema(self._kept[0].path)
        return {
            "schema_version": SCHEMA_VERSION,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "fingerprint": digest_of(self._fingerprint),
            "rows": self._plan.n_rows,
            "answered": sum(kept.rows for kept in self._kept.values()),
            "skipped": sum(kept.skipped for kept in self._kept.values()),
            "skipped_reasons": [
                reason for _, kept in sorted(self._kept.items()) for reason in kept.reasons
            ][:REASONS],
            "columns": {field.name: str(field.type) for field in schema},
            "parts": parts,
            **about,
        }


def read_manifest(path: Path, verify: bool = False) -> dict[str, Any]:
    """The manifest of an output directory; verify: compare every part with its checksum. Raises NotFound, Corrupt."""
    manifest: dict[str, Any] = read_json(path / MANIFEST)
    try:
        known = manifest["schema_version"] == SCHEMA_VERSION
        files = {
            part["file"]: {"bytes": part["bytes"], "sha256": part["sha256"]}
            for part in manifest["parts"]
        }
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{MANIFEST} of {path.name} lacks {error}") from None
    if not known:
        raise Corrupt(
            f"{MANIFEST} has schema version {manifest['schema_version']}, this xcray reads {SCHEMA_VERSION}"
        )
    if verify:
        verify_files(path, files)
    return manifest


def found(path: Path) -> dict[str, Any] | None:
    """The manifest of an output that is there; None when there is none. Raises Corrupt."""
    return read_manifest(path) if (path / MANIFEST).is_file() else None


def published(path: Path, fingerprint: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of an output that is this very work's; None when there is none, or another's."""
    manifest = found(path)
    return (
        manifest
        if manifest is not None and manifest.get("fingerprint") == digest_of(fingerprint)
        else None
    )


def digest_of(fingerprint: Mapping[str, Any]) -> str:
    """SHA-256 of what makes two runs the same run."""
    return hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()


def file_name(number: int) -> str:
    """The name of a part in the output."""
    return f"part-{number:05d}.parquet"


def _entry(plan: Plan, number: int, kept: KeptPart) -> dict[str, Any]:
    """A part in the manifest: which rows of the input it answers."""
    chunk = plan.chunks[number]
    counts = {
        "first_row": chunk.first_row,
        "rows_read": chunk.n_rows,
        "rows": kept.rows,
        "skipped": kept.skipped,
    }
    return {"file": file_name(number), **counts, "bytes": kept.n_bytes, "sha256": kept.sha256}


def _described(path: Path, digest: str) -> KeptPart:
    """A committed part by the facts it holds. Raises Corrupt."""
    try:
        facts = json.loads(pq.read_schema(path).metadata[FACTS])
        reasons = tuple(facts["skipped_reasons"])
        return KeptPart(
            path, path.stat().st_size, digest, int(facts["rows"]), int(facts["skipped"]), reasons
        )
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"{path.name} is no part of an output: {type(error).__name__}; remove it"
        ) from None


def _place(source: Path, target: Path) -> None:
    """A second name for a part where the file system can do that, else a durable copy."""
    with suppress(OSError):
        os.link(source, target)
        return
    write_bytes(target, source.read_bytes())


def _same_disk(directory: Path, out: Path) -> bool:
    """Whether a rename can bring a directory from here to `out`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    return directory.stat().st_dev == out.parent.stat().st_dev
