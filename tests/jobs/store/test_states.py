"""The table of status transitions agrees with the design."""

import pytest

from xcray.jobs.states import (
    FAILED,
    PENDING,
    RUNNING,
    STATUSES,
    STOPPED,
    SUCCEEDED,
    is_allowed,
)

MOVES = {  # written independently of the code: each transition with its reason
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


def test_the_statuses_are_those_of_ray_jobs():
    from ray.job_submission import JobStatus

    assert {status.value for status in JobStatus} == set(STATUSES)


@pytest.mark.parametrize("old", STATUSES)
@pytest.mark.parametrize("new", STATUSES)
def test_a_transition_is_allowed_exactly_when_it_has_a_reason(old, new):
    assert is_allowed(old, new) == ((old, new) in MOVES)
