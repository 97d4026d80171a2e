"""Selected rows of the fault table in their small form.

Each row is a separate command, in namespaces where they are allowed. The whole table: `python -m
tests.robustness.faults all --runs 5`. A row that the machine does not allow must report so; it is
not skipped.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.robustness.faults import __main__ as commands
from tests.robustness.faults import stage, strace
from tests.robustness.faults.catalogue import ROWS, TESTED
from tests.robustness.faults.invariants import check
from tests.robustness.faults.ledger import Ledger
from tests.robustness.faults.measurements import Measurements, percentile, table_line
from xcray.jobs.home import Home
from xcray.jobs.states import FAILED, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission

ROOT = Path(__file__).parents[2]
SECONDS = 3600  # only detects a hang, also on a busy machine
NEEDS = {  # row -> (whether this machine can play it, the word that its report must contain if not)
    "F8": (lambda: stage.allowed() is not None, "mounts"),
    "F12": (strace.is_available, "strace"),
}
QUICK = ("F12",)
SMALL = ("F3", "F4", "F8", "F12", "F23", "F31")


def played(row: str, place: Path) -> tuple[int, dict[str, Any], str]:
    """Play a row; return its exit status, measurements and output."""
    words = [
        sys.executable,
        "-m",
        "tests.robustness.faults",
        row,
        "--runs",
        "1",
        "--small",
        "--json",
        str(place / "measurements.json"),
    ]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    return (
        process.returncode,
        json.loads((place / "measurements.json").read_text()),
        process.stdout[-3000:] + process.stderr[-3000:],
    )


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[] if row in QUICK else pytest.mark.drill) for row in SMALL],
)
def test_no_promise_is_broken_by_the_fault(row: str, tmp_path: Path) -> None:
    code, measurements, output = played(row, tmp_path)
    can, named = NEEDS.get(row, (lambda: True, ""))
    if not can():
        assert (code, measurements["runs"]) == (1, 0)
        assert named in measurements["broken"][0], output
        return
    assert (measurements["lost"], measurements["duplicated"], measurements["wrong"]) == (0, 0, 0), (
        output
    )
    assert measurements["runs"] > 0
    assert code == 0


def test_every_row_of_the_catalogue_is_there() -> None:
    rows = [f"F{number}" for number in range(1, 32)]
    assert sorted([*ROWS, *TESTED], key=lambda name: int(name[1:])) == rows
    rows.remove("F28")  # the soak, which has a section of its own
    page = (ROOT / "docs/reliability.md").read_text()
    assert sorted(re.findall(r"^\| (F\d+) \|", page, re.MULTILINE)) == sorted(rows)


def test_the_tests_of_the_catalogue_exist() -> None:
    for row in (*ROWS.values(), *TESTED.values()):
        for test in row.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(), test


def test_a_row_that_hangs_is_ended_and_the_others_go_on() -> None:
    chosen = argparse.Namespace(runs=1, seed=0, small=True)
    slow = ROWS["F28"]._replace(limit=1.0)  # takes minutes without the limit
    measurements = commands.play_in_subprocess(slow, chosen)
    assert (measurements["row"], measurements["ok"]) == ("F28", False)


def test_the_last_line_of_a_row_has_its_figures() -> None:
    assert commands._last('F3 BROKEN\n{"row": "F3"}\n') == {"row": "F3"}
    for cut in ("", "\n", '{"row": "F', "3", "Killed"):
        assert commands._last(cut) is None


# Tests of the invariants: each broken promise must be detected.


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def judged(home: Home, ledger: Ledger) -> Measurements:
    """Return the measurements of the invariants for a home."""
    store, measurements = JobStore(home.store_url), Measurements("F0", "")
    check(measurements, ledger, store, home, secrets=["a canary"], settles=0.0)
    store.close()
    return measurements


def test_lost_duplicated_and_wrong_items_are_detected(home: Home, tmp_path: Path) -> None:
    store, ledger = JobStore(home.store_url), Ledger(tmp_path / "ledger")
    job, _ = store.jobs.submit(JobSubmission({}, name="a", idempotency_key="k"))
    ledger.acknowledged("job", job.id, key="k")
    ledger.acknowledged("job", "job_gone", key="k")
    ledger.acknowledged("dataset", "ds_gone")
    ledger.acknowledged("model", "gone:1")
    (home.datasets / "ds_orphan").mkdir()
    home.log(job.id).write_text("here is a canary\n")
    text = "\n".join(judged(home, ledger).broken)
    for sentence in (
        "job_gone was acknowledged and is gone",
        "ds_gone was acknowledged and is gone",
        "gone:1 was acknowledged and is gone",
        "key k has 2 jobs",
        "is PENDING after all has drained",
        "ds_orphan belongs to no row",
        "secret 0 is in",
    ):
        assert sentence in text
    store.close()
    ledger.close()


def test_a_result_without_its_model_is_detected_and_a_failed_job_is_accepted(
    home: Home, tmp_path: Path
) -> None:
    store, ledger = JobStore(home.store_url), Ledger(tmp_path / "ledger")
    for status, result in (
        (FAILED, None),
        (SUCCEEDED, {"model": "m", "version": 1, "sha256": "0" * 64}),
    ):
        job, _ = store.jobs.submit(JobSubmission({}, name=status.lower()))
        store.attempts.claim("me", lease_seconds=60)
        store.attempts.finish(job.id, 1, status, result=result)
        ledger.acknowledged("job", job.id)
    measurements = judged(home, ledger)
    assert [sentence.partition("I3")[1] for sentence in measurements.broken] == ["I3"]
    store.close()
    ledger.close()


def test_a_row_without_an_injected_fault_is_not_kept() -> None:
    measurements = Measurements("F0", "")
    assert not measurements.ok
    measurements.runs = 1
    assert measurements.ok
    measurements.expect(False, "so")
    assert not measurements.ok
    assert measurements.as_dict()["broken"] == ["wrong: so"]


def test_a_row_is_a_line_of_the_table() -> None:
    measurements = Measurements(
        "F3", "a fault", "a way", runs=5, recovery=[1.0, 3.0], redone=[0.25]
    )
    measurements.note("private namespaces")
    measurements.note("so")
    tests = ("tests/a.py::test_b", "tests/a.py")
    line = table_line(measurements.as_dict(), tests)
    assert line == "| F3 | a fault | a way | 5 | 2.0 / 3.0 | 25% | so | a.py |"
    measurements.lost = 1
    assert "| lost 1; so |" in table_line(measurements.as_dict(), tests)


def test_percentiles() -> None:
    assert percentile([], 0.5) == 0.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
