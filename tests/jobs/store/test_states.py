"""The transition table against the design."""

import pytest

from xcray.jobs.states import (
    FAILED,
    PENDING,
    RUNNING,
    STATUSES,
    STOPPED,
    SUCCEEDED,
    TERMINAL,
    TRANSITIONS,
    is_allowed,
)

MOVES = {  # written down a second time, as pairs with their reasons
    (PENDING, RUNNING): "claimed",
    (PENDING, STOPPED): "stopped while it waited",
    (PENDING, FAILED): "it expired in the queue",
    (RUNNING, PENDING): "released, or its lease expired",
    (RUNNING, STOPPED): "stopped on request",
    (RUNNING, SUCCEEDED): "published",
    (RUNNING, FAILED): "failed",
    (STOPPED, PENDING): "resumed",
    (FAILED, PENDING): "resumed",
}


def test_the_five_words_are_rays():
    from ray.job_submission import JobStatus

    assert {status.value for status in JobStatus} == set(STATUSES)


def test_every_status_has_a_row_and_every_target_is_a_status():
    assert set(TRANSITIONS) == set(STATUSES)
    assert set().union(*TRANSITIONS.values()) <= set(STATUSES)


@pytest.mark.parametrize("old", STATUSES)
@pytest.mark.parametrize("new", STATUSES)
def test_a_move_is_allowed_exactly_when_it_has_a_reason(old, new):
    assert is_allowed(old, new) == ((old, new) in MOVES)


def test_ended_jobs_are_moved_only_by_resume():
    assert {STOPPED, SUCCEEDED, FAILED} == TERMINAL
    assert all(TRANSITIONS[status] <= {PENDING} for status in TERMINAL)
    assert TRANSITIONS[SUCCEEDED] == set()
