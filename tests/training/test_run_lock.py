"""A run directory has one training at a time, and published files are complete."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from xcray.batch import BatchPredictSpec, predict_batch
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, Refused, Stopped
from xcray.model.model import Model
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    publish_directory,
    write_bytes,
)
from xcray.storage.run_directory import TOKEN_FILE, remove_unused
from xcray.telemetry.progress import Progress
from xcray.training import TrainSpec, run_lock, train
from xcray.training.run_lock import lock_run_directory
from xcray.training.tune import TuneSpec, tune
from xcray.workers.pool import StopFlag


def test_a_second_training_in_a_run_directory_is_refused(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "WAIT_SECONDS", 0.0)
    spec, inside, go_on = (
        TrainSpec(str(tiny.path), pool="serial"),
        threading.Event(),
        threading.Event(),
    )

    def hold(progress: Progress) -> None:
        if progress.phase == "PUBLISHING":
            inside.set()
            assert go_on.wait(600)

    def run_first() -> None:
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "m", progress=hold)

    first = threading.Thread(target=run_first)
    first.start()
    assert inside.wait(600)
    staged = {path.name for path in tmp_path.glob(".*.part")}
    with pytest.raises(Conflict, match="another process uses the run directory") as caught:
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "m")
    assert caught.value.code == "RUN_DIR_IN_USE"
    assert {path.name for path in tmp_path.glob(".*.part")} == staged
    go_on.set()
    first.join(600)
    assert Model.open(tmp_path / "m").n_labels == tiny.n_labels


def test_searches_and_batch_predictions_refuse_a_run_directory_in_use(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "WAIT_SECONDS", 0.0)
    search = TuneSpec(TrainSpec(str(tiny.path), pool="serial"), {"C": (0.1,)})
    batch = BatchPredictSpec(str(tmp_path / "model"), str(tmp_path / "rows.jsonl"), "jsonl")
    options = {"run_dir": tmp_path / "run", "out": tmp_path / "out"}
    with lock_run_directory(tmp_path / "run", StopFlag()):
        for run in (partial(tune, search, **options), partial(predict_batch, batch, **options)):
            with pytest.raises(Conflict) as caught:
                run()
            assert caught.value.code == "RUN_DIR_IN_USE"


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from xcray.training.run_lock import lock_run_directory\n"
        "from xcray.workers.pool import StopFlag\n"
        "with lock_run_directory(Path(sys.argv[1]), StopFlag()): print('held', flush=True); "
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert f"process {holder.pid}" in (tmp_path / "lock").read_text()
        holder.kill()
        holder.wait()
    with lock_run_directory(tmp_path, StopFlag()):
        assert f"process {holder.pid}" not in (tmp_path / "lock").read_text()


def test_a_stop_ends_the_wait_for_the_lock(tmp_path: Path) -> None:
    stop = StopFlag()
    stop.set()
    with (
        lock_run_directory(tmp_path, StopFlag()),
        pytest.raises(Stopped),
        lock_run_directory(tmp_path, stop),
    ):
        pass


def test_a_discarded_directory_is_not_published(tmp_path: Path) -> None:
    staged = create_staging_directory(tmp_path / "m")
    write_bytes(staged / "weights.arrow", b"weights")
    discard_directory(staged)
    with pytest.raises(FileNotFoundError):
        write_bytes(staged / "manifest.json", b"{}")
    with pytest.raises(Conflict, match="another process discarded"):
        publish_directory(staged, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_whose_removal_is_under_way_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that the removal has not reached yet are not published by another process."""
    staged = create_staging_directory(tmp_path / "m")
    write_bytes(staged / "manifest.json", b"{}")
    monkeypatch.setattr("xcray.storage.atomic.shutil.rmtree", lambda *args, **kwargs: None)
    discard_directory(staged)
    with pytest.raises(Conflict, match="another process discarded"):
        publish_directory(staged, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_an_incomplete_model_is_written_again_by_resume(
    tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(tiny.path), "--pool", "serial", "--out", str(tmp_path / "m"), "--json"]
    assert main(words) == 0
    before = json.loads(capsys.readouterr().out)["sha256"]
    for path in (tmp_path / "m").rglob("*.arrow"):
        path.unlink()
    assert main(words) == 1
    assert "--run-dir" in capsys.readouterr().err
    assert main([*words, "--run-dir", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == before
    assert Model.open(tmp_path / "m").sha256 == before
    assert len(list(tmp_path.glob("m.damaged-*"))) == 1


def test_a_run_without_finished_work_leaves_no_directory(tmp_path: Path) -> None:
    def fail_after(*files: str) -> None:
        with lock_run_directory(tmp_path / "run", StopFlag()):
            for name in files:
                (tmp_path / "run" / name).touch()
            raise Refused("it does not fit")

    for files, is_kept in (
        ((), False),
        (("run.json", TOKEN_FILE), False),
        (("part-a.arrow",), True),
    ):
        with pytest.raises(Refused):
            fail_after(*files)
        assert (tmp_path / "run").exists() == is_kept


def test_a_lock_file_that_was_removed_by_its_holder_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    def wait(lock: IO[str], *_: Any, **__: Any) -> bool:
        waited.append(lock)
        if len(waited) == 1:  # the holder fails while this process waits
            remove_unused(tmp_path / "run")
        return True

    monkeypatch.setattr(run_lock, "wait_for_lock", wait)
    with lock_run_directory(tmp_path / "run", StopFlag()):
        assert (tmp_path / "run" / "lock").read_text().startswith("process ")
    assert len(waited) == 2
