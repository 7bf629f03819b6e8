"""Counted terms of dependencies against an evaluation of each term, in any order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metasched.core.dependency_status import DependencyStatus, TargetSummary, combine_statuses
from metasched.core.dependency_tracker import DependencyTracker
from metasched.core.tasks import Task
from metasched.model.arrays import format_indices
from metasched.model.dependencies import DEPENDENCY_TYPES, SINGLETON, parse_dependency
from metasched.model.job import Job, State
from tests.harness.examples import examples

NOW = 1_000_000.0
ARRAYS = {1: None, 2: "1-3", 3: None}  # targets, by id
INDICES = {id: (0,) if array is None else (1, 2, 3) for id, array in ARRAYS.items()}
TASKS = [(id, index) for id in ARRAYS for index in INDICES[id]]


def job(id: int, **fields: object) -> Job:
    return Job(id=id, submitted=NOW, estimated=60.0, name="n", **fields)  # type: ignore[arg-type]


@st.composite
def terms(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from([*DEPENDENCY_TYPES, "after", SINGLETON]))
    if kind == SINGLETON:
        return kind
    id, index = draw(st.sampled_from([*TASKS, *((id, None) for id in ARRAYS)]))
    target = str(id) if index is None or ARRAYS[id] is None else f"{id}_{index}"
    return f"{kind}:{target}{draw(st.sampled_from(['', '+1', '+2'])) if kind == 'after' else ''}"


class Targets:
    """The tasks of all targets, as a database and the core know them."""

    def __init__(self) -> None:
        self.tasks = {
            (id, index): Task(job(id, array=ARRAYS[id]), index, 1, 0.0) for id, index in TASKS
        }

    def summaries(self, waiting: Job) -> list[TargetSummary]:
        assert waiting.dependency is not None
        summaries = []
        for target in parse_dependency(waiting.dependency).targets:
            places = [(target.job, i) for i in INDICES[target.job] if target.index in (None, i)]
            ended = [self.tasks[place] for place in places if self.tasks[place].ended is not None]
            succeeded, failed = (
                format_indices(t.index for t in ended if (t.state is State.COMPLETED) is right)
                for right in (True, False)
            )
            last = max((t.ended or 0.0 for t in ended), default=0.0)
            array = ARRAYS[target.job] is not None
            summaries.append(TargetSummary(target, len(places), array, succeeded, failed, last))
        return summaries

    def open_tasks(self, id: int) -> list[Task]:
        return [t for (job_id, _), t in self.tasks.items() if job_id == id and t.ended is None]


def expected(tracker: DependencyTracker, waiting: Job, index: int, now: float) -> object:
    """Evaluate each term of a job by its target."""
    assert waiting.dependency is not None
    dependency, statuses, dues = parse_dependency(waiting.dependency), [], []
    for term in dependency.terms:
        if term.target is None:
            first = min(tracker._jobs_by_name["", "n"])
            met = DependencyStatus.SATISFIED
            statuses.append(met if first >= waiting.id else DependencyStatus.WAITING)
            continue
        progress = tracker._targets[term.target.job][term.target.index].progress
        task_index = None if waiting.array is None else index
        status, due = progress.status_and_due(term, task_index, now)
        statuses.append(status)
        dues += [] if due is None else [due]
    return combine_statuses(statuses, dependency.any_term), min(dues, default=None)


@given(data=st.data())
@examples(200)
def test_counted_terms_are_those_that_are_met(data: st.DataObject) -> None:
    targets, tracker, waiting = Targets(), DependencyTracker(), dict[int, Job]()
    for id, array in ARRAYS.items():
        tracker.add_job(job(id, array=array))
    now = NOW
    for step in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.sampled_from([0.0, 30.0, 60.0, -60.0]))
        act = data.draw(st.sampled_from(["submit", "submit", "change", "change", "end", "restart"]))
        if act == "submit":
            separator = data.draw(st.sampled_from([",", "?"]))
            text = separator.join(data.draw(st.lists(terms(), min_size=1, max_size=5)))
            array = data.draw(st.sampled_from([None, "1-3"]))
            new = waiting[10 + step] = job(10 + step, dependency=text, array=array)
            tracker.track(new, targets.summaries(new), targets.open_tasks)
            tracker.add_job(new)
        elif act == "change":
            place = data.draw(st.sampled_from(TASKS))
            task = targets.tasks[place]
            task.state = data.draw(
                st.sampled_from([State.QUEUED, State.HELD, State.COMPLETED, State.FAILED])
            )
            task.ended = now if task.state in (State.COMPLETED, State.FAILED) else None
            tracker.update_progress(task)
        elif act == "end" and waiting:
            tracker.remove_job(waiting.pop(data.draw(st.sampled_from(sorted(waiting)))))
        elif act == "restart":
            tracker.rebuild(list(targets.tasks.values()), waiting.keys())
        if data.draw(st.booleans()):
            list(tracker.take_changes())
        for other in waiting.values():
            for index in other.indices:
                assert tracker.status_and_due(other, index, now) == expected(
                    tracker, other, index, now
                )
    for other in waiting.values():
        learnt_now = DependencyTracker()
        learnt_now.track(other, targets.summaries(other), targets.open_tasks)
        for id in (*ARRAYS, *waiting):
            learnt_now.add_job(waiting.get(id) or job(id, array=ARRAYS.get(id)))
        for index in other.indices:
            late = NOW + 10_000  # a summary has only the last start of its tasks
            assert (
                tracker.status_and_due(other, index, late)[0]
                is learnt_now.status_and_due(other, index, late)[0]
            )
    for other in waiting.values():
        tracker.remove_job(other)
    assert not tracker._targets
    assert not tracker._dependents
