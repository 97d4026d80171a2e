"""The rows: number, title, injection, tests that also inject the fault; `@row` registers one.

TESTED has the rows whose faults are injected by tests of the suite alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tests.robustness.faults.stage import Stage

Play: TypeAlias = Callable[[Stage], None]


class Row(NamedTuple):
    """A row of the fault catalogue.

    tests: tests of the suite that also inject the fault. limit: seconds until the row counts as
    hung.
    """

    number: str
    title: str
    injected: str
    play: Play
    tests: tuple[str, ...]
    limit: float


ROWS: dict[str, Row] = {}


def row(
    number: str, title: str, injected: str, *tests: str, limit: float = 600.0
) -> Callable[[Play], Play]:
    """Return a decorator that registers a function as a row."""

    def add(play: Play) -> Play:
        assert number not in ROWS, number
        ROWS[number] = Row(number, title, injected, play, tests, limit)
        return play

    return add


class TestedRow(NamedTuple):
    """A row of the fault catalogue that tests of the suite play."""

    title: str
    injected: str
    tests: tuple[str, ...]


SERVICE, WORKERS, JOBS = "tests/service", "tests/workers", "tests/jobs"
TESTED: dict[str, TestedRow] = {
    "F1": TestedRow(
        "kill -9 of a solver's worker",
        "SIGKILL of an actor by its process id",
        (
            f"{WORKERS}/test_pools.py::test_kill_minus_nine_of_an_actor_changes_no_bit",
            f"{WORKERS}/ray/test_trainings.py::test_kill_minus_nine_of_a_worker_changes_no_bit",
        ),
    ),
    "F2": TestedRow(
        "kill -9 of a worker that holds rows",
        "the same for DS-MLR, whose workers hold shards of rows: back to the checkpoint",
        (
            f"{WORKERS}/ray/test_rotation_faults.py::test_kill_minus_nine_of_an_actor_changes_no_bit",
            f"{WORKERS}/ray/test_rotation_faults.py::test_dsmlr_has_the_same_bits_after_a_kill_among_exact_gradients",
        ),
    ),
    "F5": TestedRow(
        "kill -9 of a node",
        "a node of a cluster vanishes with its workers; results of cut-off workers are not accepted",
        (
            f"{WORKERS}/ray/test_rotation_faults.py::test_a_dead_node_costs_no_block",
            f"{WORKERS}/ray/test_placement.py::test_a_vanished_node_changes_no_bit_and_counts_as_no_crash",
            f"{WORKERS}/ray/test_nodes.py",
        ),
    ),
    "F7": TestedRow(
        "a suspended process resumes",
        "SIGSTOP of a runner, of a worker, and of a process that holds SQLite's write lock",
        (
            f"{JOBS}/runner/test_crash_loop.py::test_a_suspended_runner_is_replaced_and_killed",
            f"{JOBS}/runner/test_crash_loop.py::test_a_runner_suspended_during_a_write_does_not_lock_the_store_forever",
            f"{JOBS}/runner/test_monitor.py::test_a_suspended_training_checks_its_lease_before_it_continues",
            f"{JOBS}/database/test_faults.py::test_a_stuck_writer_makes_writes_unavailable_and_reads_go_on",
            f"{WORKERS}/ray/test_worker_group.py::test_a_silent_worker_is_lost_and_its_late_answer_ignored",
        ),
    ),
    "F10": TestedRow(
        "damaged files",
        "files of models, parts, checkpoints: cut, changed, missing, of another model or version",
        (
            "tests/robustness/test_fuzz.py::test_seeds_and_mutations_of_them[model-directory]",
            "tests/unit/model/test_model.py::test_every_truncated_or_missing_file_is_detected_without_verifying",
            "tests/training/test_block_store.py::test_damaged_parts_are_set_aside_and_solved_again",
            "tests/training/shards/test_checkpoints.py::test_a_damaged_file_is_corrupt",
            f"{SERVICE}/models/test_version_switch.py::test_over_http_a_corrupt_version_is_shown_and_refused",
        ),
    ),
    "F11": TestedRow(
        "an incomplete upload",
        "raw sockets: reset at 0, 50, 99 %; wrong sha256; too long; the service ends during an upload",
        (
            f"{SERVICE}/http/test_limits.py::test_an_interrupted_upload_leaves_nothing",
            f"{SERVICE}/http/test_limits.py::test_an_upload_that_differs_from_its_declaration_leaves_nothing",
            f"{SERVICE}/test_service.py::test_uploads_and_builds_of_a_crashed_service_are_swept_and_resumed",
        ),
    ),
    "F14": TestedRow(
        "clocks jump and differ",
        "the clocks of two stores on one database jump by an hour or a day while jobs run",
        (
            f"{JOBS}/store/test_queue.py::test_a_clock_jump_neither_ends_a_lease_nor_delays_a_job",
            f"{JOBS}/store/test_queue.py::test_a_new_observer_waits_for_a_full_lease",
        ),
    ),
    "F15": TestedRow(
        "SIGTERM during work",
        "SIGTERM to a runner; to a service during uploads and predictions, and again",
        (
            f"{JOBS}/supervision/test_supervisor.py::test_sigterm_makes_a_runner_release_its_job",
            f"{SERVICE}/processes/test_drain.py::test_sigterm_fails_no_accepted_request",
        ),
    ),
    "F17": TestedRow(
        "a job is stopped at every moment",
        "stop while queued, in a kernel, while it publishes, ended, twice; races of stop with finish",
        (
            f"{JOBS}/store/test_store.py::test_a_race_of_stop_and_finish_has_the_result_of_one_order",
            f"{JOBS}/store/test_state_machine.py",
            f"{JOBS}/runner/test_runner.py::test_a_stop_ends_the_training_and_keeps_finished_work",
            f"{JOBS}/runner/test_monitor.py::test_a_stop_counts_until_publishing_begins",
            f"{WORKERS}/test_pools.py::test_a_stop_reaches_into_a_long_class",
        ),
    ),
    "F18": TestedRow(
        "duplicate requests",
        "many submits of one key at once; the same key with another body; a reply that is lost",
        (
            f"{JOBS}/store/test_store.py::test_fifty_submits_with_one_key_are_one_job",
            f"{SERVICE}/http/test_api.py::test_concurrent_requests_with_one_key_create_one",
            "tests/client/test_client.py::test_a_lost_response_is_retried_with_the_same_key",
        ),
    ),
    "F19": TestedRow(
        "several replicas on one store",
        "processes claim from SQLite and from PostgreSQL; two replicas and two runners of one home",
        (
            f"{JOBS}/store/test_store.py::test_processes_never_claim_one_job_twice_and_lose_no_write",
            f"{SERVICE}/processes/test_roles.py::test_on_postgresql_replicas_share_a_home_and_a_killed_leader_is_replaced",
        ),
    ),
    "F20": TestedRow(
        "slow clients",
        "raw sockets: stalled and dripping heads and bodies, connections above the limit",
        (
            f"{SERVICE}/http/test_limits.py::test_stalled_requests_are_cut_off",
            f"{SERVICE}/http/test_limits.py::test_single_bytes_do_not_keep_a_connection_open",
            f"{SERVICE}/http/test_limits.py::test_connections_above_the_limit_are_refused_and_others_work",
        ),
    ),
    "F21": TestedRow(
        "a job that kills its runner",
        "attempts that segfault, exit, are killed, run out of memory, flood the log, fork, never end",
        (
            f"{JOBS}/runner/test_crash_loop.py::test_every_crashing_job_gets_the_exact_number_of_attempts_and_others_succeed",
            f"{JOBS}/runner/test_crash_loop.py::test_a_runner_that_never_exits_is_killed_when_its_job_is_stopped",
        ),
    ),
    "F24": TestedRow(
        "the database is not available",
        "SIGSTOP of all PostgreSQL's processes, then SIGCONT; SIGKILL and a restart",
        (
            f"{JOBS}/database/test_faults.py::test_a_server_that_is_silent_makes_it_unavailable_for_a_while",
            f"{JOBS}/database/test_faults.py::test_a_server_that_is_killed_and_started_again_has_all_that_was_acknowledged",
            f"{JOBS}/runner/test_monitor.py::test_an_unavailable_store_does_not_stop_the_training",
        ),
    ),
    "F25": TestedRow(
        "models change during predictions",
        "aliases move, versions are published and deleted, under 4 clients; each reply is one version's",
        (
            f"{SERVICE}/models/test_version_switch.py::test_switches_under_load_mix_no_versions_and_fail_no_request",
        ),
    ),
    "F26": TestedRow(
        "a rolling upgrade",
        "the next release upgrades the schema while an older one serves and trains; a rollback",
        (f"{SERVICE}/processes/test_rolling_upgrade.py",),
    ),
    "F30": TestedRow(
        "a dependency of the service is not ready",
        "the store does not answer or hangs, the disk is below its reserve, Ray is gone, the model is not loaded",
        (
            f"{SERVICE}/observability/test_readiness.py",
            f"{SERVICE}/test_service.py::test_a_full_disk_refuses_only_uploads",
        ),
    ),
}


def in_order() -> list[Row]:
    """Return the rows of ROWS by number."""
    return sorted(ROWS.values(), key=lambda each: int(each.number[1:]))
