"""Checkpoints of a training whose blocks go round: what is there after a crash is whole, or is not taken.

DIRECTORY/run.json           whose checkpoints these are
DIRECTORY/rest-000012/       published by one rename:
    block-00000.arrow ...    the weights and state of each block of labels; then, in the same order, what they remember, if anything
    shard-00000.arrow ...    what each shard of rows keeps from lap to lap
    rest.json                how far the training was, and a SHA-256 of every file's content; sealed by one of its own

Workers write and read the files of what they hold where they see the directory; for those that don't, the driver does, one block at
a time. The two newest are kept: should one turn out damaged, the one before is still there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.errors import Corrupt, XcrayError
from xcray.storage.arrow import read_table, write_table
from xcray.storage.atomic import (
    discard_directory,
    publish_directory,
    read_json,
    sha256_arrays,
    staging_directory,
    write_json,
)
from xcray.training.block_store import claim
from xcray.workers.rpc import Errand, errands, fetched, made, run
from xcray.workers.worker_group import Handle, Team

NOTE: Final = "rest.json"
FORMAT: Final = 1
BUSY: Final = (
    0.1  # of the time, at most, that checkpoints may take, unless one is wanted at each rest
)
KEPT: Final = 2  # checkpoints on disk: the newest, and one to go back to should it be damaged

Arrays = dict[str, np.ndarray]


def block_file(number: int) -> str:
    """The file of block `number` in a checkpoint."""
    return f"block-{number:05d}.arrow"


def shard_file(number: int) -> str:
    """The file of shard `number` in a checkpoint."""
    return f"shard-{number:05d}.arrow"


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write arrays of numbers durably, each as a list in a table of one row; the SHA-256 of their content. Nothing is copied."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    flat = {name: pa.array(array.reshape(-1)) for name, array in whole.items()}
    lists = {
        name: pa.LargeListArray.from_arrays([0, len(values)], values)
        for name, values in flat.items()
    }
    shapes = {name: list(array.shape) for name, array in whole.items()}
    write_table(path, pa.table(lists).replace_schema_metadata({"shapes": json.dumps(shapes)}))
    return sha256_arrays(whole)


def read_arrays(path: Path, digest: str) -> Arrays:
    """Map what `write_arrays` wrote: read-only views of the file. Raises Corrupt when it is missing or its content is another."""
    try:
        table = read_table(path)
        shapes = json.loads(table.schema.metadata[b"shapes"])
        arrays = {
            name: table.column(name).chunk(0).values.to_numpy().reshape(shapes[name])
            for name in table.column_names
        }
        sound = sha256_arrays(arrays) == digest
    except (
        XcrayError,
        pa.ArrowException,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
    ):
        sound = False
    if not sound:
        raise Corrupt(f"{path.parent.name}/{path.name} is not what was written", file=path.name)
    return arrays


class Found(NamedTuple):
    """A checkpoint on disk. note: what `Checkpoints.write` was told; blocks, shards: SHA-256 of each one's arrays."""

    path: Path
    note: dict[str, Any]
    blocks: tuple[str, ...]
    shards: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one run in `directory`, its own; `fingerprint` (JSON) says what run it is.

    seconds: between two, at least; those that take long to write come less often (BUSY); 0: all are due. damaged: names of those
    that were set aside. Raises Conflict when the directory belongs to another run.
    """

    def __init__(self, directory: Path, fingerprint: Mapping[str, Any], *, seconds: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        claim(directory, fingerprint)
        for left in directory.glob(".rest-*.part"):  # of a driver that died while it wrote
            discard_directory(left)
        self._directory = directory
        self._seconds = seconds
        self._last = time.monotonic()
        self._took = 0.0
        self.damaged: list[str] = []

    @property
    def due(self) -> bool:
        """Whether it is time for the next one."""
        wanted = max(self._seconds, self._took / BUSY) if self._seconds else 0.0
        return time.monotonic() - self._last >= wanted

    @property
    def seconds_to_write(self) -> float:
        """What the last one took; 0 before there was one."""
        return self._took

    def write(
        self,
        team: Team,
        number: int,
        note: Mapping[str, Any],
        blocks: Sequence[tuple[str, Handle]],
        homes: Sequence[str],
    ) -> None:
        """Make rest `number` durable; older ones go after it is, but for the one before.

        note: JSON; blocks: of each block, and of what each remembers, who is to write it, and its handle; homes: who holds each
        shard, and is to write what it keeps of it. Raises WorkerLost, and OSError when the disk is full; nothing is published then.
        """
        began, target = time.monotonic(), self._directory / f"rest-{number:06d}"
        staged = staging_directory(target)
        try:
            digests = {
                "blocks": self._write_blocks(team, staged, blocks),
                "shards": self._write_shards(team, staged, homes),
            }
            write_json(staged / NOTE, _sealed({"format": FORMAT, "note": dict(note), **digests}))
            if target.exists():
                self._set_aside(target)
            publish_directory(staged, target)
        except BaseException:
            discard_directory(staged)
            raise
        self._last = time.monotonic()
        self._took = self._last - began
        for older in self._paths()[KEPT:]:
            discard_directory(older)

    def newest(self) -> Found | None:
        """The newest whose note is sound, None when there is none; damaged ones are set aside."""
        for path in self._paths():
            try:
                told = read_json(path / NOTE)
                if not isinstance(told, dict) or told != _sealed(told) or told["format"] != FORMAT:
                    raise Corrupt(f"{path.name} is not what was written")
            except XcrayError:
                self._set_aside(path)
                continue
            return Found(path, told["note"], tuple(told["blocks"]), tuple(told["shards"]))
        return None

    def load(
        self, team: Team, found: Found, homes: Sequence[str], n_blocks: int
    ) -> list[tuple[str, Handle]]:
        """Give shards back what they kept, and have each block at some worker: its name, and the handle.

        homes: who holds each shard now; n_blocks: of labels, so that what a block remembers goes where the block does. Raises
        Corrupt when a file is not what was written, and WorkerLost.
        """
        where, shards, blocks = str(found.path), range(len(homes)), range(len(found.blocks))
        owners = [homes[block % n_blocks * len(homes) // n_blocks] for block in blocks]
        asks = [
            Errand(homes[s], "load_shard", s, where, shard_file(s), found.shards[s]) for s in shards
        ]
        unseen = [
            shard for shard, answer in enumerate(list(errands(team, asks))) if not answer.told
        ]
        for shard in unseen:
            arrays = team.put(read_arrays(found.path / shard_file(shard), found.shards[shard]))
            run(team, Errand(homes[shard], "take", shard, arrays))
        asks = [
            Errand(owners[j], "load_block", where, block_file(j), found.blocks[j]) for j in blocks
        ]
        handles = [answer.bulk for answer in errands(team, asks)]
        for block in blocks:
            if handles[block] is None:
                arrays = team.put(read_arrays(found.path / block_file(block), found.blocks[block]))
                handles[block] = run(team, Errand(owners[block], "unpack", arrays)).bulk
        return [(owner, made(handle)) for owner, handle in zip(owners, handles, strict=True)]

    def set_aside(self, found: Found) -> None:
        """Take a checkpoint whose files are damaged out of the way."""
        self._set_aside(found.path)

    def clear(self) -> None:
        """Remove all of them: what they were kept for is done."""
        for path in self._paths():
            discard_directory(path)

    def _write_blocks(
        self, team: Team, staged: Path, blocks: Sequence[tuple[str, Handle]]
    ) -> list[str]:
        """Have every block written; the SHA-256 of each."""
        asks = [
            Errand(worker, "save_block", handle, str(staged), block_file(j))
            for j, (worker, handle) in enumerate(blocks)
        ]
        digests = [answer.told for answer in errands(team, asks)]
        for block, (worker, handle) in enumerate(blocks):
            if digests[block] is None:  # its node does not see the directory
                arrays = fetched(team, run(team, Errand(worker, "pack", handle)).bulk)
                digests[block] = write_arrays(staged / block_file(block), arrays)
        return digests

    def _write_shards(self, team: Team, staged: Path, homes: Sequence[str]) -> list[str]:
        """Have what every shard keeps written; the SHA-256 of each."""
        asks = [
            Errand(home, "save_shard", shard, str(staged), shard_file(shard))
            for shard, home in enumerate(homes)
        ]
        digests = [answer.told for answer in errands(team, asks)]
        for shard, home in enumerate(homes):
            if digests[shard] is None:
                arrays = fetched(team, run(team, Errand(home, "kept", shard)).bulk)
                digests[shard] = write_arrays(staged / shard_file(shard), arrays)
        return digests

    def _paths(self) -> list[Path]:
        """Published checkpoints, newest first."""
        return sorted(self._directory.glob("rest-[0-9]*[0-9]"), reverse=True)

    def _set_aside(self, path: Path) -> None:
        """Rename a damaged checkpoint so that nobody takes it; the last one of its name stays for a look."""
        aside = path.with_suffix(".damaged")
        discard_directory(aside)
        path.rename(aside)
        self.damaged.append(path.name)


def _sealed(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is told, with the SHA-256 of all of it but the seal."""
    plain = {name: value for name, value in told.items() if name != "sha256"}
    return {**plain, "sha256": sha256_arrays({"told": json.dumps(plain, sort_keys=True)})}
