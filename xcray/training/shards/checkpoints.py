"""Checkpoints of a rotation training: after a crash a checkpoint is complete or is not used.

DIRECTORY/run.json           identity of the run
DIRECTORY/checkpoint-000012/ published by one rename:
    block-00000.arrow ...    weights and state of each label block, then their L-BFGS histories
    shard-00000.arrow ...    state that each row shard keeps between sweeps
    checkpoint.json          progress, and a SHA-256 of every file's content and of itself

Workers write and read their own files if they see the directory. Otherwise the driver does it, one
block at a time. The two newest checkpoints are kept, in case the newest is damaged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Corrupt, XcrayError
from xcray.schedule.calls import Call, at_worker
from xcray.solvers.rotation_contract import PlacedBlock
from xcray.storage.array_files import read_arrays, write_arrays
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    publish_directory,
    read_json,
    sha256_arrays,
    write_json,
)
from xcray.training.block_store import claim_directory
from xcray.training.shards.shard_worker import ShardWorker
from xcray.workers.rpc import call, call_many, fetch, require_ref
from xcray.workers.worker_group import WorkerGroup

METADATA_FILE: Final = "checkpoint.json"
FORMAT_VERSION: Final = 1
# Maximum share of the time for checkpoints, unless one is due at each sync point.
MAX_WRITE_SHARE: Final = 0.1
FIRST_SECONDS: Final = 1.0  # of work before the first one of a run
N_KEPT: Final = 2  # the newest, and one to go back to if it is damaged


def block_file(number: int) -> str:
    """Return the file name of block `number` in a checkpoint."""
    return f"block-{number:05d}.arrow"


def shard_file(number: int) -> str:
    """Return the file name of shard `number` in a checkpoint."""
    return f"shard-{number:05d}.arrow"


class Checkpoint(NamedTuple):
    """A checkpoint on disk.

    metadata: as passed to `Checkpoints.write`. blocks, shards: SHA-256 of each one's arrays.
    """

    path: Path
    metadata: dict[str, Any]
    blocks: tuple[str, ...]
    shards: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one run in its own `directory`; `fingerprint` (JSON) identifies the run.

    seconds: between two, at least; slow ones are written less often (MAX_WRITE_SHARE); 0: always
    due. The first one of a run is due after FIRST_SECONDS, so that a loss never costs much more.
    damaged: names of those that were set aside. Raises Conflict if the directory belongs to another
    run.
    """

    def __init__(self, directory: Path, fingerprint: Mapping[str, Any], *, seconds: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        claim_directory(directory, fingerprint)
        for partial in directory.glob(".checkpoint-*.part"):  # of a driver that died during a write
            discard_directory(partial)
        self._directory = directory
        self._seconds = seconds
        self._written_at = time.monotonic()
        self._write_seconds = 0.0
        self.damaged: list[str] = []

    @property
    def due(self) -> bool:
        """Whether it is time for the next one."""
        interval = max(self._seconds, self._write_seconds / MAX_WRITE_SHARE)
        if not self._seconds:
            interval = 0.0
        elif not self._write_seconds and not self._paths():
            interval = min(interval, FIRST_SECONDS)
        return time.monotonic() - self._written_at >= interval

    @property
    def seconds_to_write(self) -> float:
        """Seconds that the last one took; 0 before the first."""
        return self._write_seconds

    def write(
        self,
        group: WorkerGroup,
        number: int,
        metadata: Mapping[str, Any],
        blocks: Sequence[PlacedBlock],
        block_workers: Sequence[str],
    ) -> None:
        """Write checkpoint `number` durably, then remove all older ones except the newest.

        metadata: JSON. blocks: worker and handle of each block and of each history. owners: owner
        of each shard, which writes its snapshot. Raises WorkerLost, and OSError if the disk is
        full; then nothing is published.
        """
        started, target = time.monotonic(), self._directory / f"checkpoint-{number:06d}"
        staged = create_staging_directory(target)
        try:
            digests = {
                "blocks": self._write_blocks(group, staged, blocks),
                "shards": self._write_shards(group, staged, block_workers),
            }
            write_json(
                staged / METADATA_FILE,
                _with_digest({"format": FORMAT_VERSION, "metadata": dict(metadata), **digests}),
            )
            if target.exists():
                self._set_aside(target)
            publish_directory(staged, target)
        except BaseException:
            discard_directory(staged)
            raise
        self._written_at = time.monotonic()
        self._write_seconds = self._written_at - started
        for older in self._paths()[N_KEPT:]:
            discard_directory(older)

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint with valid metadata or None; damaged ones are set aside."""
        for path in self._paths():
            try:
                content = read_json(path / METADATA_FILE)
                if (
                    not isinstance(content, dict)
                    or content != _with_digest(content)
                    or content["format"] != FORMAT_VERSION
                ):
                    raise Corrupt(f"{path.name} is not what was written")
            except XcrayError:
                self._set_aside(path)
                continue
            return Checkpoint(
                path, content["metadata"], tuple(content["blocks"]), tuple(content["shards"])
            )
        return None

    def load(
        self, group: WorkerGroup, checkpoint: Checkpoint, owners: Sequence[str], n_blocks: int
    ) -> list[PlacedBlock]:
        """Restore all shards, and load each block on a worker; return its name and the handle.

        owners: the owner of each shard. n_blocks: number of label blocks, so that a history goes
        to the worker of its block. Raises Corrupt if a file was changed, and WorkerLost.
        """
        path, shards, blocks = (
            str(checkpoint.path),
            range(len(owners)),
            range(len(checkpoint.blocks)),
        )
        block_workers = [owners[block % n_blocks * len(owners) // n_blocks] for block in blocks]
        calls = [
            Call(owners[s], ShardWorker.load_shard, s, path, shard_file(s), checkpoint.shards[s])
            for s in shards
        ]
        missing = [
            shard for shard, reply in enumerate(list(call_many(group, calls))) if not reply.result
        ]
        for shard in missing:
            arrays = group.put(
                read_arrays(checkpoint.path / shard_file(shard), checkpoint.shards[shard])
            )
            call(group, Call(owners[shard], ShardWorker.restore_shard, shard, at_worker(arrays)))
        block_calls = [
            Call(block_workers[j], ShardWorker.load_block, path, block_file(j), digest)
            for j, digest in enumerate(checkpoint.blocks)
        ]
        handles = [reply.ref for reply in call_many(group, block_calls)]
        for block in blocks:
            if handles[block] is None:
                arrays = group.put(
                    read_arrays(checkpoint.path / block_file(block), checkpoint.blocks[block])
                )
                request = Call(block_workers[block], ShardWorker.unpack_block, at_worker(arrays))
                handles[block] = call(group, request).ref
        return [
            PlacedBlock(owner, require_ref(handle))
            for owner, handle in zip(block_workers, handles, strict=True)
        ]

    def set_aside(self, checkpoint: Checkpoint) -> None:
        """Rename a checkpoint whose files are damaged."""
        self._set_aside(checkpoint.path)

    def clear(self) -> None:
        """Remove all checkpoints after the training."""
        for path in self._paths():
            discard_directory(path)

    def _write_blocks(
        self,
        group: WorkerGroup,
        staged: Path,
        blocks: Sequence[PlacedBlock],
    ) -> list[str]:
        """Write every block; return the SHA-256 of each."""
        calls = [
            Call(worker, ShardWorker.save_block, at_worker(handle), str(staged), block_file(j))
            for j, (worker, handle) in enumerate(blocks)
        ]
        digests = []
        for reply, (block, (worker, handle)) in zip(
            list(call_many(group, calls)), enumerate(blocks), strict=True
        ):
            digest = reply.result
            if digest is None:  # its node does not see the directory
                request = Call(worker, ShardWorker.pack_block, at_worker(handle))
                arrays = fetch(group, call(group, request).ref)
                digest = write_arrays(staged / block_file(block), arrays)
            digests.append(digest)
        return digests

    def _write_shards(
        self, group: WorkerGroup, staged: Path, block_workers: Sequence[str]
    ) -> list[str]:
        """Write the snapshot of every shard; return the SHA-256 of each."""
        calls = [
            Call(owner, ShardWorker.save_shard, shard, str(staged), shard_file(shard))
            for shard, owner in enumerate(block_workers)
        ]
        digests = []
        for reply, (shard, owner) in zip(
            list(call_many(group, calls)), enumerate(block_workers), strict=True
        ):
            digest = reply.result
            if digest is None:
                request = Call(owner, ShardWorker.get_snapshot, shard)
                arrays = fetch(group, call(group, request).ref)
                digest = write_arrays(staged / shard_file(shard), arrays)
            digests.append(digest)
        return digests

    def _paths(self) -> list[Path]:
        """Return published checkpoints, newest first."""
        return sorted(self._directory.glob("checkpoint-[0-9]*[0-9]"), reverse=True)

    def _set_aside(self, path: Path) -> None:
        """Rename a damaged checkpoint so that it is not used; the last one of its name is kept."""
        aside = path.with_suffix(".damaged")
        discard_directory(aside)
        path.rename(aside)
        self.damaged.append(path.name)


def _with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata with a SHA-256 of everything else."""
    plain = {name: value for name, value in content.items() if name != "sha256"}
    return {**plain, "sha256": sha256_arrays({"content": json.dumps(plain, sort_keys=True)})}
