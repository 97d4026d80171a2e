"""Checkpoints of a training by shards: files that workers write and read.

A checkpoint (`xcray.storage.checkpoints`) has a file for each block, with its weights and state,
then for the further objects of blocks, and one for each row shard, with the state that it keeps
between sweeps. Workers write and read their own files if they see the directory. Otherwise the
driver does it, one file at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from xcray.schedule.calls import Call, ObjectHandle, at_worker
from xcray.solvers.group_contract import PlacedBlock
from xcray.storage.array_files import Arrays, read_arrays, write_arrays
from xcray.storage.checkpoints import CheckpointFolder, SavedFiles, file_of
from xcray.training.shards.shard_worker import ShardWorker
from xcray.workers.call_queue import call, call_many, fetch, require_ref
from xcray.workers.worker_group import WorkerGroup

# an object of a worker, or none if it has none to give
Handle: TypeAlias = ObjectHandle[Any] | None


class _SavedFile(NamedTuple):
    """How a file is saved: by its worker, which returns the SHA-256, or by packing its arrays."""

    save: Call[None, str | None]
    pack: Call[Arrays, None]


def save_checkpoint(
    checkpoints: CheckpointFolder,
    group: WorkerGroup,
    number: int,
    note: Mapping[str, Any],
    blocks: Sequence[PlacedBlock],
    owners: Sequence[str],
) -> None:
    """Save blocks and the snapshots of all shards as checkpoint `number`.

    note: JSON. owners: owner of each shard. Raises WorkerLost, and OSError if the disk is full;
    then nothing is published.
    """

    def write(staged: Path) -> dict[str, str]:
        folder, files = str(staged), dict[str, _SavedFile]()
        for number, (worker, handle) in enumerate(blocks):
            name, block = _block_name(number), at_worker(handle)
            files[name] = _SavedFile(
                Call(worker, ShardWorker.save_block, block, folder, name),
                Call(worker, ShardWorker.pack_block, block),
            )
        for shard, owner in enumerate(owners):
            name = _shard_name(shard)
            files[name] = _SavedFile(
                Call(owner, ShardWorker.save_shard, shard, folder, name),
                Call(owner, ShardWorker.get_snapshot, shard),
            )
        replies = list(call_many(group, [file.save for file in files.values()]))
        digests = {}
        for (name, file), reply in zip(files.items(), replies, strict=True):
            digests[name] = reply.result or write_arrays(
                file_of(staged, name), fetch(group, call(group, file.pack).ref)
            )
        return digests

    checkpoints.save_files(number, note, write)


def load_checkpoint(
    group: WorkerGroup, saved: SavedFiles, owners: Sequence[str], n_blocks: int
) -> list[PlacedBlock]:
    """Restore all shards, and load each block on a worker; return their places.

    owners: owner of each shard. n_blocks: number of label blocks, so that a further object goes to
    the worker of its block. Raises Corrupt if a file was changed, and WorkerLost.
    """
    folder, files, shards = str(saved.path), saved.files, range(len(owners))
    loads = [
        Call(owners[s], ShardWorker.load_shard, s, folder, _shard_name(s), files[_shard_name(s)])
        for s in shards
    ]
    replies = list(call_many(group, loads))
    for shard in [shard for shard in shards if not replies[shard].result]:
        arrays = group.put(_read(saved, _shard_name(shard)))
        call(group, Call(owners[shard], ShardWorker.restore_shard, shard, at_worker(arrays)))
    names = [_block_name(j) for j in range(len(files) - len(owners))]
    workers = [owners[j % n_blocks * len(owners) // n_blocks] for j in range(len(names))]
    block_loads = [
        Call(worker, ShardWorker.load_block, folder, name, files[name])
        for worker, name in zip(workers, names, strict=True)
    ]
    handles: list[Handle] = [reply.ref for reply in call_many(group, block_loads)]
    for j in [j for j, handle in enumerate(handles) if handle is None]:
        arrays = group.put(_read(saved, names[j]))
        request = Call(workers[j], ShardWorker.unpack_block, at_worker(arrays))
        handles[j] = call(group, request).ref
    return [
        PlacedBlock(worker, require_ref(handle))
        for worker, handle in zip(workers, handles, strict=True)
    ]


def _read(saved: SavedFiles, name: str) -> Arrays:
    """Return the arrays of a file. Raises Corrupt."""
    return read_arrays(file_of(saved.path, name), saved.files[name])


def _block_name(number: int) -> str:
    """Return the name of the file of an object."""
    return f"block-{number:05d}"


def _shard_name(number: int) -> str:
    """Return the name of the file of a shard."""
    return f"shard-{number:05d}"
