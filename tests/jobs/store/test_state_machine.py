"""Any sequence of calls on the job store gives the same results as a model of dictionaries."""

import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.job_store import Clock, claim, submit
from xcray.errors import Conflict, Fenced, NotFound
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED, TERMINAL, TRANSITIONS
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobFilter


class StoreMachine(RuleBasedStateMachine):
    """Compares the store with a model of one dictionary per job; rules are named after calls."""

    ids = Bundle("ids")
    empty_store = None  # a function set by the test; returns the URL of an empty store

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.steady = Clock(0.0)
        self.url = type(self).empty_store()
        self.store = self.opened()
        self.model = {}
        self.turns = {}
        self.history_lengths = {}
        self.numbers = itertools.count()

    def opened(self):
        return JobStore(self.url, now=self.clock, monotonic=self.steady)

    def teardown(self):
        self.store.close()

    @rule(target=ids, priority=st.integers(0, 2), tenant=st.sampled_from("ab"))
    def submit(self, priority, tenant):
        job = submit(self.store, priority=priority, tenant=tenant)
        self.model[job.id] = {
            "tenant": tenant,
            "status": PENDING,
            "attempt": 0,
            "priority": priority,
            "lease": None,
            "seen": None,
            "stop": False,
            "losses": 0,
            "number": next(self.numbers),
            "results": 0,
        }
        self.history_lengths[job.id] = 0
        return job.id

    @rule(lease=st.sampled_from([5.0, 50.0]), most=st.sampled_from([None, 1]))
    def claim(self, lease, most):
        job = claim(self.store, lease=lease, quota=lambda tenant: most)
        running = Counter(m["tenant"] for m in self.model.values() if m["status"] == RUNNING)
        waiting = [
            (
                -m["priority"],
                running[m["tenant"]],
                self.turns.get(m["tenant"], 0),
                m["tenant"],
                m["number"],
                job_id,
            )
            for job_id, m in self.model.items()
            if m["status"] == PENDING and (most is None or running[m["tenant"]] < most)
        ]
        assert (job and job.id) == (min(waiting)[-1] if waiting else None)
        if job:
            mine = self.model[job.id]
            self.turns[mine["tenant"]] = max(self.turns.values(), default=0) + 1
            mine.update(status=RUNNING, attempt=mine["attempt"] + 1, lease=lease, seen=None)

    @rule(job_id=ids, back=st.integers(0, 1), end=st.sampled_from([SUCCEEDED, FAILED, STOPPED]))
    def finish(self, job_id, back, end):
        mine = self.model.get(job_id)
        attempt = (mine["attempt"] if mine else 1) - back
        if mine and mine["status"] == RUNNING and not back:
            self.store.attempts.finish(
                job_id, attempt, end, result={"a": 1} if end == SUCCEEDED else None
            )
            mine.update(
                status=end, lease=None, stop=False, results=mine["results"] + (end == SUCCEEDED)
            )
            return
        with pytest.raises(Fenced):
            self.store.attempts.finish(job_id, attempt, end)

    @rule(job_id=ids)
    def heartbeat(self, job_id):
        mine = self.model.get(job_id)
        if mine and mine["status"] == RUNNING:
            assert (
                self.store.attempts.heartbeat(job_id, mine["attempt"], lease_seconds=50)
                == mine["stop"]
            )
            mine.update(lease=50, seen=None)
            return
        with pytest.raises(Fenced):
            self.store.attempts.heartbeat(job_id, mine["attempt"] if mine else 1, lease_seconds=50)

    @rule(job_id=ids)
    def release(self, job_id):
        mine = self.model.get(job_id)
        if mine and mine["status"] == RUNNING:
            assert self.store.attempts.release(job_id, mine["attempt"]).attempt == mine["attempt"]
            mine.update(status=STOPPED if mine["stop"] else PENDING, lease=None, stop=False)

    @rule(job_id=ids)
    def stop(self, job_id):
        mine = self.model.get(job_id)
        if mine is None:
            return
        self.store.jobs.request_stop(job_id, mine["tenant"])
        if mine["status"] == PENDING:
            mine["status"] = STOPPED
        elif mine["status"] == RUNNING:
            mine["stop"] = True

    @rule(job_id=ids)
    def resume(self, job_id):
        mine = self.model.get(job_id)
        if mine is None:
            return
        if mine["status"] == SUCCEEDED or mine["stop"]:
            with pytest.raises(Conflict):
                self.store.jobs.resume(job_id, mine["tenant"])
            return
        self.store.jobs.resume(job_id, mine["tenant"])
        if mine["status"] in TERMINAL:
            mine.update(status=PENDING, losses=0)

    @rule(job_id=consumes(ids))
    def delete(self, job_id):
        mine = self.model.get(job_id)
        if mine["status"] not in TERMINAL:
            with pytest.raises(Conflict):
                self.store.jobs.delete(job_id, mine["tenant"])
            return
        self.store.jobs.delete(job_id, mine["tenant"])
        del self.model[job_id], self.history_lengths[job_id]
        with pytest.raises(NotFound):
            self.store.jobs.get(job_id, mine["tenant"])

    @rule(job_id=ids, tenant=st.sampled_from("ab"))
    def look_over_the_fence(self, job_id, tenant):
        mine = self.model.get(job_id)
        if mine is None or mine["tenant"] != tenant:
            with pytest.raises(NotFound):
                self.store.jobs.get(job_id, tenant)

    @rule(
        seconds=st.sampled_from([1.0, 10.0, 60.0]),
        jump=st.sampled_from([0.0, 0.0, 86_400.0, -86_400.0]),
    )
    def wait(self, seconds, jump):
        self.steady.seconds += seconds
        self.clock.seconds += seconds + jump

    @precondition(lambda self: any(m["status"] == RUNNING for m in self.model.values()))
    @rule()
    def expire(self):
        lost, now = set(), self.steady.seconds
        for job_id, mine in self.model.items():
            if mine["status"] == RUNNING:
                mine["seen"] = now if mine["seen"] is None else mine["seen"]
                if now - mine["seen"] > mine["lease"]:
                    lost.add(job_id)
        assert {job.id for job in self.store.attempts.expire(max_attempts=2)} == lost
        for job_id in lost:
            self.count_a_loss(self.model[job_id])

    @rule(job_id=ids)
    def lose(self, job_id):
        mine = self.model.get(job_id)
        if mine and mine["status"] == RUNNING:
            self.store.attempts.mark_lost(job_id, mine["attempt"], max_attempts=2)
            self.count_a_loss(mine)

    def count_a_loss(self, mine):
        losses = mine["losses"] + (not mine["stop"])
        status = STOPPED if mine["stop"] else FAILED if losses >= 2 else PENDING
        mine.update(status=status, losses=losses, lease=None, stop=False)

    @rule()
    def reopen(self):
        self.store.close()
        self.store = self.opened()
        for mine in self.model.values():
            mine["seen"] = None  # a reopened store has observed no heartbeat

    @invariant()
    def agrees(self):
        jobs = {job.id: job for job in self.store.jobs.list_page(JobFilter(None), limit=1000)[0]}
        assert set(jobs) == set(self.model)
        for job_id, mine in self.model.items():
            job = jobs[job_id]
            assert (job.status, job.attempt, job.stop_requested) == (
                mine["status"],
                mine["attempt"],
                mine["stop"],
            )
            assert (job.finished is not None) == (job.status in TERMINAL)
            assert mine["results"] <= 1
            assert (job.result is not None) == bool(mine["results"])

    @invariant()
    def history_is_a_walk_over_the_table(self):
        for job_id in self.model:
            walk = [
                e.data["status"]
                for e in self.store.jobs.list_events(job_id, None)
                if e.kind == "status"
            ]
            assert walk[0] == PENDING
            assert walk[-1] == self.model[job_id]["status"]
            assert all(new in TRANSITIONS[old] for old, new in itertools.pairwise(walk))
            assert len(walk) >= self.history_lengths[job_id]  # the history only grows
            self.history_lengths[job_id] = len(walk)


def play(empty_store, examples):
    StoreMachine.empty_store = staticmethod(empty_store)
    how = settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
    )
    run_state_machine_as_test(StoreMachine, settings=how)


def test_any_sequence_of_calls_agrees_with_the_model_on_sqlite(tmp_path):
    numbers = itertools.count()
    play(lambda: f"sqlite:///{tmp_path / str(next(numbers))}.db", 30)


def test_any_sequence_of_calls_agrees_with_the_model_on_postgresql(postgres):
    play(postgres.emptied, 8)
