"""Selected tasks as they are when they change, and the portions in which they change."""

from __future__ import annotations

from types import SimpleNamespace

from metasched.api.changes import PORTION, _is_in, _portions, _user_request
from metasched.api.selection import SelectedTasks, _with_present_states
from metasched.core.events import JobSubmitted, UserRequested
from metasched.model.job import State
from tests.unit.core_site import NOW, Site, job

SIZE = 5_000  # tasks
ARRAY = f"1-{SIZE}"


def run(first: int, last: int, job_id: int = 1) -> SelectedTasks:
    return SelectedTasks(job_id, ARRAY, range(first, last + 1), State.QUEUED, True, "ada")


def single(index: int, job_id: int = 1) -> SelectedTasks:
    return SelectedTasks(job_id, ARRAY, range(index, index + 1), State.QUEUED, False, "ada")


def test_a_task_that_left_its_run_and_ended_since_it_was_read_is_listed() -> None:
    site = Site(queue_depth=2)
    site.step(JobSubmitted(NOW, job(1, array=ARRAY)))
    site.step(UserRequested(NOW, "cancel", 1, (2,)))
    assert (1, 2) not in site.core.tasks
    selected = _with_present_states(site.core, [], [run(1, SIZE)])
    assert selected is not None
    states = {index: tasks.state for tasks in selected for index in tasks.indices}
    assert list(states) == sorted(states) == list(range(1, SIZE + 1))
    assert (states[1], states[2], states[SIZE]) == (
        State.DISPATCHING,
        State.CANCELLED,
        State.QUEUED,
    )


def test_tasks_that_were_cancelled_as_a_run_are_read_again() -> None:
    site = Site(queue_depth=2)
    site.step(JobSubmitted(NOW, job(1, array=ARRAY)))
    site.step(UserRequested(NOW, "cancel", 1, tuple(range(1_000, 3_001))))
    assert _with_present_states(site.core, [], [run(1, SIZE)]) is None
    assert _with_present_states(site.core, [], [run(1, 999), run(3_001, SIZE)]) is not None


def test_portions_have_few_tasks_and_all_of_them() -> None:
    own = [single(index) for index in range(PORTION + 10)] + [run(2 * PORTION, SIZE)]
    other = [single(0, job_id) for job_id in range(2, PORTION)]
    portions = list(_portions(Site().core, "cancel", own + other))
    assert all(sum(map(len, portion)) <= PORTION for portion in portions)
    flat = [tasks for portion in portions for of_job in portion for tasks in of_job]
    assert flat == [own[-1], *own[:-1], *other]
    assert all(len({tasks.job for tasks in of_job}) == 1 for p in portions for of_job in p)


def test_named_tasks_that_left_the_remainder_are_cancelled_and_no_others() -> None:
    """As many have left it as were not named: the counts are equal."""
    site = Site(queue_depth=3)
    site.step(JobSubmitted(NOW, job(1, array=ARRAY)))
    remainder = site.core.remainders[1]
    first, last, _ = remainder.runs[0]
    selected = [run(first, last - 3)]
    remainder.remove([first, first + 1, first + 2])  # in an earlier portion
    event = _user_request(
        SimpleNamespace(core=site.core),  # type: ignore[arg-type]
        NOW,
        "cancel",
        selected,
        SimpleNamespace(user="ada"),  # type: ignore[arg-type]
    )
    assert not event.with_remainder
    assert event.indices == tuple(range(first, last - 2))


def test_a_whole_remainder_and_tasks_that_left_it_are_cancelled() -> None:
    site = Site(queue_depth=3)
    site.step(JobSubmitted(NOW, job(1, array=ARRAY)))
    remainder = site.core.remainders[1]
    first, last, _ = remainder.runs[0]
    remainder.remove([first])
    event = _user_request(
        SimpleNamespace(core=site.core),  # type: ignore[arg-type]
        NOW,
        "cancel",
        [run(first, last)],
        SimpleNamespace(user="ada"),  # type: ignore[arg-type]
    )
    assert (event.with_remainder, event.indices) == (True, (first,))


def test_a_task_that_left_the_selected_states_is_left_out() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1)))
    task = SelectedTasks(1, None, range(1), State.QUEUED, False, "ada")
    assert site.state() is State.DISPATCHING
    assert not _is_in(site.core, task, frozenset({"queued"}))
    assert _is_in(site.core, task, frozenset({"queued", "dispatching"}))
    assert _is_in(site.core, task, frozenset())
