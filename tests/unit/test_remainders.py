"""Arrays that wait stay remainders: for clusters, other jobs, licences and processors."""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy

import pytest

from metasched.core.array_remainder import MAX_RUNS, SHORT_RUN, run_length
from metasched.core.dependency_status import TargetSummary
from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    ClusterUnreachable,
    Dispatch,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    TimerExpired,
    UserRequested,
)
from metasched.core.gates import MAX_RELEASED_PER_STEP
from metasched.core.ineligible_tasks import MAX_REASONS_PER_STEP
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import Core
from metasched.core.transitions import LIVE
from metasched.model.dependencies import DependencyTarget
from metasched.model.job import Reason, State
from metasched.model.licence import LicencePool
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, facts, job

DEPTH = 10  # tasks of a user that may wait in a cluster's queue
SIZE = 5_000  # tasks


@pytest.mark.parametrize("limit", ["", f"%{MAX_RELEASED_PER_STEP + 1}", f"%{SIZE}"])
def test_a_released_array_has_few_tasks_while_clusters_are_full(limit: str) -> None:
    site = Site(queue_depth=DEPTH)
    dispatches = site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}{limit}")))
    assert all(isinstance(dispatch, Dispatch) for dispatch in dispatches)
    assert len(site.core.tasks) == 2 * DEPTH + 1  # the last waits for all others
    assert sum(task.state in LIVE for task in site.core.tasks.values()) == 2 * DEPTH
    assert site.core.count_open(1) == SIZE
    waiting = site.core.find_task((1, SIZE))
    assert waiting is not None
    assert (waiting.state, waiting.reason) == (State.QUEUED, Reason.PRIORITY)
    assert site.core.next_due is None  # nothing is left to release


def test_the_reason_of_a_waiting_array_is_one_line_of_its_story() -> None:
    site = Site(queue_depth=DEPTH)
    for name in ("left", "right"):
        site.step(ClusterDrained(NOW, name, "op", "new kernel", False))
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}")))
    lines = [(line.index, line.run_last, line.reason) for line in site.out.changes]
    drained = Reason.CLUSTER_DRAINED
    assert lines == [(1, None, ""), (2, SIZE, ""), (1, None, drained), (2, SIZE, drained)]


def test_reasons_of_arrays_of_many_runs_reach_their_stories_in_portions() -> None:
    """Before, one change of reasons added the lines of all runs of all arrays in a step."""
    site = Site(queue_depth=DEPTH)
    site.step(ClusterDrained(NOW, "left", "op", "new kernel", False))
    runs, arrays = 300, (1, 2, 3, 4)
    indices = ",".join(f"{first}-{first + 18}" for first in range(0, 20 * runs, 20))
    for id in arrays:  # of equal tasks, and of others
        array = job(id, array=indices, cpus=1 + id // 3, clusters=("left",))
        site.step(JobSubmitted(NOW, array))
    while site.core.next_due is not None:
        site.step(TimerExpired(NOW))
    lines = dict.fromkeys(arrays, 0)
    portions = []
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    while True:
        of_runs = [line for line in site.out.changes if line.run_last is not None]
        assert all(line.cause == "no answer" for line in of_runs)
        assert all(line.reason == Reason.CLUSTER_DOWN for line in of_runs)
        for line in of_runs:
            lines[line.job] += 1
        portions.append(len(of_runs))
        if site.core.next_due is None:
            break
        site.step(TimerExpired(NOW))
    assert max(portions) < MAX_REASONS_PER_STEP + runs
    assert lines == dict.fromkeys(arrays, runs)


def test_a_reason_that_ended_before_its_line_was_written_is_not_in_the_story() -> None:
    site = Site(queue_depth=DEPTH)
    site.step(ClusterDrained(NOW, "left", "op", "new kernel", False))
    indices = ",".join(f"{first}-{first + 18}" for first in range(0, 8_000, 20))
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, array=indices, clusters=("left",))))
    site.step(ClusterUnreachable(NOW, "left", "no answer"))
    assert {line.job for line in site.out.changes if line.run_last is not None} == {1}
    site.step(UserRequested(NOW, "hold", 2))
    while site.core.next_due is not None:
        site.step(TimerExpired(NOW))
        assert not site.out.changes
    assert site.core.remainders[2].reason == Reason.HELD


def test_a_resumed_cluster_gets_tasks_of_a_waiting_array_in_the_same_step() -> None:
    site = Site(queue_depth=DEPTH)
    for name in ("left", "right"):
        site.step(ClusterDrained(NOW, name, "op", "new kernel", False))
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}")))
    [dispatch] = site.step(ClusterResumed(NOW, "left", "op"))
    assert dispatch == Dispatch(1, 1, "left", tuple(range(1, DEPTH + 1)))


def test_single_tasks_of_another_user_leave_a_large_array_its_turns() -> None:
    """The single tasks alone fill the portion of a step."""
    site = Site(queue_depth=100)
    later = NOW + 10
    for id, user, size in ((1, "a", SIZE), (2, "b", 2 * MAX_RELEASED_PER_STEP)):
        site.step(JobSubmitted(NOW, job(id, user=user, array=f"1-{size}", begin=later)))
    places = Counter[int]()
    for dispatch in site.step(TimerExpired(later)):
        assert isinstance(dispatch, Dispatch)
        places[dispatch.job] += len(dispatch.indices)
    assert places.total() == 200
    assert abs(places[1] - places[2]) <= 2


# Dependencies


def submit_dependent(site: Site, kind: str, target: str = f"1-{SIZE}", **fields: object) -> None:
    """Submit held job 1, an array or not, and an array, job 2, that depends on it."""
    site.step(JobSubmitted(NOW, job(1, array=target or None, held=True)))
    size = len(site.core.open_tasks[1]) + len(site.core.remainders.get(1, ()))
    summary = TargetSummary(DependencyTarget(1), size, array=bool(target))
    dependent = job(2, 1, array=f"1-{SIZE}", dependency=f"{kind}:1", **fields)
    site.step(JobSubmitted(NOW, dependent, (summary,)))


def end(site: Site, index: int, state: State, id: int = 1) -> None:
    """Let a task of job 1 run and end on the left cluster."""
    site.step(UserRequested(NOW, "release", id, (index,)))
    [sent] = [action for action in site.out.actions if isinstance(action, Dispatch)]
    site.step(DispatchStarted(NOW, id, sent.dispatch_id))
    site.step(DispatchAccepted(NOW, id, sent.dispatch_id, {index: f"7_{index}"}))
    tag = tag_of("cafe", id, sent.dispatch_id)
    row = JobStatus(tag, index, f"7_{index}", state, started=NOW, ended=NOW)
    site.seen(sent.cluster, None, row)


def test_an_array_that_waits_for_a_job_is_a_range_before_and_after_its_end() -> None:
    site = Site(queue_depth=DEPTH)
    submit_dependent(site, "afterok", target="")
    assert [(line.index, line.run_last) for line in site.out.changes] == [(1, None), (2, SIZE)]
    assert {line.cause for line in site.out.changes} == {
        "submitted; afterok:1 is not met yet: 1 has not started"
    }
    assert (len(site.core.tasks), site.core.remainders[2].reason) == (2, Reason.DEPENDENCY)
    end(site, 0, State.COMPLETED)
    live = [task for task in site.core.tasks.values() if task.state in LIVE]
    assert (len(live), len(site.core.tasks)) == (2 * DEPTH, 2 * DEPTH + 1)
    assert site.core.count_open(2) == SIZE


@pytest.mark.parametrize("kill", [False, True])
def test_a_range_whose_dependency_can_never_be_met(kill: bool) -> None:
    site = Site(queue_depth=DEPTH)
    submit_dependent(site, "afterok", target="", kill_on_invalid_dep=kill)
    end(site, 0, State.FAILED)
    lines = [(line.index, line.run_last) for line in site.out.changes if line.job == 2]
    assert set(lines) == {(1, None), (2, SIZE)}
    assert site.core.count_open(2) == (0 if kill else SIZE)
    assert site.out.cancelled_runs == ([(2, (2, SIZE, 1))] if kill else [])


def test_a_dependent_array_released_after_its_target_failed_is_cancelled_as_a_range() -> None:
    site = Site()
    submit_dependent(site, "afterok", target="", kill_on_invalid_dep=True, held=True)
    end(site, 0, State.FAILED)
    assert site.core.count_open(2) == SIZE
    site.step(UserRequested(NOW, "release", 2))
    assert site.core.count_open(2) == 0
    assert [run_length(run) for _, run in site.out.cancelled_runs] == [SIZE - 2]


def test_tasks_that_wait_for_counterparts_leave_the_range_as_these_succeed() -> None:
    site = Site(queue_depth=DEPTH)
    submit_dependent(site, "aftercorr")
    assert len(site.core.open_tasks[2]) == 1
    end(site, 7, State.COMPLETED)
    assert set(site.core.open_tasks[2]) == {1, 7}
    assert site.core.tasks[2, 7].state in LIVE
    end(site, 9, State.FAILED)
    assert set(site.core.open_tasks[2]) == {1, 7}
    assert ("aftercorr:1 can never be met", 9) in {
        (line.cause.partition(":" + " ")[0], line.index) for line in site.out.changes
    }
    # cancelled as a range, the counterparts of others can never be met: these stay a range
    site.step(UserRequested(NOW, "cancel", 1))
    assert set(site.core.open_tasks[2]) == {1, 7}
    assert site.core.count_open(2) == SIZE


def test_short_runs_become_single_and_the_longest_stay() -> None:
    """The runs of tasks whose counterparts have not ended are as many as tasks run at a time."""
    site = Site(queue_depth=DEPTH)
    number, long = MAX_RUNS + 20, 40_001  # of runs of 10 tasks; first task of a long one
    short = (f"{first}-{first + 9}" for first in range(0, 20 * number, 20))
    site.step(JobSubmitted(NOW, job(1, array=",".join([*short, f"{long}-50000"]), held=True)))
    rest = site.core.remainders[1]
    assert (len(rest.runs), rest.runs[-1]) == (MAX_RUNS, (long, 50_000, 1))
    assert site.core.count_open(1) == 10 * number + 10_000
    assert len(site.core.tasks) == 10 * (number + 1 - MAX_RUNS)


@pytest.mark.parametrize("action", ["cancel", "hold"])
@pytest.mark.parametrize("named", [200, 3 * MAX_RUNS])
def test_a_request_for_spread_tasks_makes_no_other_tasks_single(action: str, named: int) -> None:
    """Runs longer than `SHORT_RUN` are kept, however many they are."""
    size, site = 100_000, Site(queue_depth=DEPTH)
    for name in ("left", "right"):
        site.step(ClusterDrained(NOW, name, "op", "new kernel", False))
    site.step(JobSubmitted(NOW, job(1, array=f"1-{size}")))
    spread = sorted(
        random.Random(1).sample(range(SHORT_RUN + 2, size - SHORT_RUN, SHORT_RUN + 1), named)
    )
    site.step(UserRequested(NOW, action, 1, tuple(spread)))  # type: ignore[arg-type]
    state = State.CANCELLED if action == "cancel" else State.HELD
    assert len(site.core.remainders[1].runs) <= named + 1
    assert len(site.core.tasks) == (1 if action == "cancel" else 1 + named)
    assert site.core.count_open(1) == size - (named if action == "cancel" else 0)
    ended = [line for line in site.out.changes if line.after is state]
    assert [line.index for line in ended] == spread
    assert len(site.out.changes) == named
    assert len(site.out.run_changes[1]) <= named + 1
    # the next change of the array stores no more than it changes
    site.step(UserRequested(NOW, action, 1, (size // 2,)))  # type: ignore[arg-type]
    assert len(site.out.run_changes[1]) <= 2


def test_the_next_head_of_an_array_of_many_runs_changes_one_of_them() -> None:
    site = Site(queue_depth=DEPTH)
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}")))
    site.step(UserRequested(NOW, "hold", 1, tuple(range(100, SIZE, 100))))
    (first, last, step), *others = site.core.remainders[1].runs
    site.step(UserRequested(NOW, "cancel", 1, (first - 1,)))
    assert (1, first) in site.core.tasks
    shorter = (first + 1, last, step)
    assert site.core.remainders[1].runs == [shorter, *others]
    assert site.out.run_changes == {1: {first: None, first + 1: shorter}}


# Licences and late binding

FLOATING = (LicencePool(name="a", total=4),)


def test_an_array_that_waits_for_licences_has_as_many_tasks_as_there_are_tokens() -> None:
    site = Site(pools=FLOATING)
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}", licences={"a": 1}, time_limit=60.0)))
    live = [task for task in site.core.tasks.values() if task.state in LIVE]
    assert (len(live), len(site.core.tasks)) == (4, 5)
    assert site.core.remainders[1].reason == Reason.LICENCE_BUSY
    status = site.core.licences.status("a", NOW)
    assert (status.leased_tokens, status.waiting_tokens, status.requests) == (4, SIZE - 4, SIZE - 4)
    assert site.core.licences.rho == {"a": (SIZE - 4) / 4}
    assert site.core.next_due is None
    # a token that comes back goes to the next task in the same step
    site.step(UserRequested(NOW, "cancel", 1, (2,)))
    assert [task.index for task in site.core.tasks.values() if task.state in LIVE] == [1, 3, 4, 5]
    assert len(site.core.tasks) == 5


def test_the_next_task_waits_for_licences_in_place_of_a_cancelled_head() -> None:
    site = Site(pools=FLOATING)
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}", licences={"a": 1}, time_limit=60.0)))
    site.step(UserRequested(NOW, "cancel", 1, (5,)))
    assert sorted(site.core.open_tasks[1]) == [1, 2, 3, 4, 6]
    assert site.core.licences.status("a", NOW).waiting_tokens == SIZE - 5
    site.step(UserRequested(NOW, "cancel", 1, (1,)))
    assert site.core.tasks[1, 6].state in LIVE


def test_the_next_task_waits_for_licences_also_while_no_cluster_has_a_place() -> None:
    """Before, it alone of all tasks waited for a place, and lost the turn of the former head."""
    site = Site(pools=FLOATING, queue_depth=2)
    for cluster, cpus in (("left", 8), ("right", 4)):
        site.seen(cluster, facts(cpus, free=0))
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}", licences={"a": 1}, time_limit=60.0)))
    assert site.core.remainders[1].reason == Reason.LICENCE_BUSY
    waiting = site.core.licences.status("a", NOW).waiting_tokens
    site.step(UserRequested(NOW, "cancel", 1, (5,)))
    assert (1, 6) in site.core.licences
    assert site.core.remainders[1].reason == Reason.LICENCE_BUSY
    assert site.core.licences.status("a", NOW).waiting_tokens == waiting - 1


def test_after_a_restart_a_remainder_waits_for_its_clusters_as_all_tasks_do() -> None:
    """Its stored reason, of the licences, is not taken for a turn in their new queue."""
    site = Site(pools=FLOATING)
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}", licences={"a": 1})))
    assert site.core.remainders[1].reason == Reason.LICENCE_BUSY
    again = Core()
    again.restore(
        RecoveredState(
            tasks=deepcopy(list(site.core.tasks.values())),
            last_dispatches={},
            info={"left": facts(8), "right": facts(4)},
            margins=[],
            drains=[],
            leases=list(site.core.licences.leases.values()),
            remainders=deepcopy(list(site.core.remainders.values())),
        )
    )
    for core in (again, site.core):  # restored, and replayed
        core.step(site.started(NOW + 1))
        queued = {task_id: t.reason for task_id, t in core.tasks.items() if t.attempt is None}
        assert set(queued.values()) == {Reason.CLUSTER_DOWN}
        assert core.remainders[1].reason == Reason.CLUSTER_DOWN


def test_an_array_that_waits_for_processors_stays_a_range() -> None:
    site = Site(send="late")
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}")))
    live = [task for task in site.core.tasks.values() if task.state in LIVE]
    assert (len(live), len(site.core.tasks)) == (12, 13)
    assert site.core.remainders[1].reason == Reason.PRIORITY
    site.seen("left", facts(16, 12))
    live = [task for task in site.core.tasks.values() if task.state in LIVE]
    assert len(site.core.tasks) == len(live) + 1


def test_slots_of_a_released_array_go_by_index() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, array=f"1-{SIZE}%2", held=True)))
    site.step(UserRequested(NOW, "release", 1))
    live = [task.index for task in site.core.tasks.values() if task.state in LIVE]
    assert live == [1, 2]
