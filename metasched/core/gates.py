"""What keeps a queued task with us before any cluster is looked at. Pure.

In this order: its dependencies, its begin time, the limit of its array, which counts what is
ready or with a manager, over all clusters together. Nothing here looks at every task for one
event: what happens to a job is told to those that depend on it, and a slot that is given back
lets in the next task of its array.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeVar

from metasched.core.tasks import Place, Task
from metasched.core.transitions import FINAL, LIVE, UNSTARTED
from metasched.model.dependencies import (
    SINGLETON,
    Dependency,
    Fate,
    Progress,
    Prospect,
    Target,
    Term,
    combined,
    parse_dependency,
)
from metasched.model.job import Job, Reason, State

Name = tuple[str, str]  # user, name of the job
_Outlook = tuple[Prospect, float | None]  # of a term, and when time alone lets it come
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_OURS = frozenset({Reason.DEPENDENCY, Reason.BEGIN_TIME, Reason.LIMIT_ARRAY})
MET: Final = Prospect.MET  # named for every task: see `attempts`
_ALL = -1  # all the blocked tasks of a job
NEXT_STEP = 0.0  # when it is due, whatever the clock says
AT_ONCE = 1000  # tasks that one step lets go on: a daemon must not be lost in it for seconds


class Gates:
    """Where the queued tasks stand; `ready` ones wait for a cluster only."""

    def __init__(self) -> None:
        self.ready: dict[Place, Task] = {}
        self._let_go_on = 0  # tasks, in this step
        self.moved: list[Task] = []  # in this step: those that wait for something else
        self._fresh: dict[Place, Task] = {}
        self.refreshed = False  # since `take_fresh` was asked last
        self._later: dict[Place, Task] = {}  # until their begin time, or a later step
        self._times: list[tuple[float, int, int]] = []  # when to look again at a task, or at all
        self._dues: dict[int, float] = {}  # by job: the last of `_times` for its dependencies
        self._slots: dict[int, set[int]] = {}  # by job: the tasks that count for its limit
        self._limited: dict[int, dict[int, Task]] = {}
        self._next: dict[int, list[int]] = {}  # heaps of indices: all of `_limited`, and more
        self._blocked: dict[int, dict[int, Task]] = {}  # by job: until their dependencies have come
        self._hopeless: dict[int, set[int]] = {}  # of these: which never will
        self._shared: dict[int, list[_Outlook]] = {}  # by job: what its tasks have in common
        self._progress: dict[int, dict[Target, Progress]] = {}  # by the job that others wait for
        self._dependents: dict[int, dict[int, Job]] = {}  # likewise
        self._stirred: dict[int, set[int]] = {}  # likewise: what has happened to its tasks
        self._names: dict[Name, set[int]] = {}  # open jobs
        self._singles: dict[Name, dict[int, Job]] = {}
        self._freed: set[Name] = set()

    def begin(self) -> None:
        """Another step begins."""
        self._let_go_on, self.moved = 0, []

    # Jobs that come and go

    def opened(self, job: Job) -> None:
        """A job has open tasks (again)."""
        self._names.setdefault((job.user, job.name), set()).add(job.id)

    def depend(self, job: Job, fates: Iterable[Fate]) -> None:
        """Follow what a job depends on; `fates` tell what had become of its targets by now.

        What happens to their open tasks from now on must be told by `happened`.
        """
        for fate in fates:
            of_job = self._progress.setdefault(fate.target.job, {})
            of_job.setdefault(fate.target, Progress.since(fate))
            self._dependents.setdefault(fate.target.job, {})[job.id] = job
        if any(term.kind == SINGLETON for term in _dependency(job).terms):
            self._singles.setdefault((job.user, job.name), {})[job.id] = job

    def changed(self, before: Job, job: Job) -> None:
        """A job with open tasks asks for something else, perhaps under another name."""
        self._leave_name(before)
        self.opened(job)
        if job.dependency is not None:
            self.depend(job, ())
            for target in _dependency(job).targets:
                if target.job in self._dependents:
                    self._dependents[target.job][job.id] = job

    def closed(self, job: Job) -> None:
        """The last task of a job has ended."""
        self._leave_name(job)
        self._slots.pop(job.id, None)
        self._next.pop(job.id, None)
        self._dues.pop(job.id, None)
        self._shared.pop(job.id, None)
        if job.dependency is not None:
            self._follow_no_more(job)

    def _follow_no_more(self, job: Job) -> None:
        """Nothing of a job waits for another any more."""
        for target in _dependency(job).targets:
            self._dependents.get(target.job, {}).pop(job.id, None)
            if not self._dependents.get(target.job):
                self._dependents.pop(target.job, None)
                self._progress.pop(target.job, None)
        _take(self._singles, (job.user, job.name), job.id)

    def _leave_name(self, job: Job) -> None:
        name = (job.user, job.name)
        jobs = self._names[name]
        jobs.discard(job.id)
        if not jobs:
            del self._names[name]
        if name in self._singles:
            _take(self._singles, name, job.id)
            if name in self._singles:
                self._freed.add(name)

    # Tasks that come and go

    def restart(self, tasks: Sequence[Task]) -> None:
        """Forget where queued tasks stand: each will be told again. `tasks` are all open ones.

        Of what others wait for that is known which a database tells.
        """
        self.ready, self._fresh, self._later, self._times = {}, {}, {}, []
        self._slots, self._limited, self._next = {}, {}, {}
        self._blocked, self._hopeless, self._shared, self._dues = {}, {}, {}, {}
        waiting = {task.job.id for task in tasks if not task.attempts}
        jobs = chain(*(of.values() for of in (*self._dependents.values(), *self._singles.values())))
        follow = {job.id: job for job in jobs}
        for id in follow.keys() - waiting:
            self._follow_no_more(follow.pop(id))
        self._stirred, self._freed = {}, set()
        wanted = {target for job in follow.values() for target in _dependency(job).targets}
        for id, of_job in self._progress.items():
            self._progress[id] = {target: p for target, p in of_job.items() if target in wanted}
            for progress in self._progress[id].values():
                progress.restart()
        for task in tasks:
            self.happened(task)
            if task.attempt is not None and _limit(task.job) is not None:
                self._slots.setdefault(task.job.id, set()).add(task.index)

    def queued(self, task: Task, now: float) -> Prospect:
        """A task waits with us: find the gate before which it stands, and its reason.

        What is said of its dependencies; a task that was sent before waits for none any more.
        """
        before = task.reason
        prospect = self._stand(task, now)
        if task.reason and task.reason != before:  # one without goes on, if not in this step
            self.moved.append(task)
        return prospect

    def _stand(self, task: Task, now: float) -> Prospect:
        job = task.job
        id, index = key = task.place
        prospect = MET
        if job.dependency is not None and not task.attempts:
            prospect, due = self._prospect(job, index, now)
            if prospect is not MET:
                task.reason = Reason.DEPENDENCY
                self._blocked.setdefault(id, {})[index] = task
                self._slots.get(id, set()).discard(index)
                if prospect is Prospect.NEVER:
                    self._hopeless.setdefault(id, set()).add(index)
                if due is not None and self._dues.get(id) != due:
                    self._dues[id] = due
                    heapq.heappush(self._times, (due, id, _ALL))
                return prospect
        if job.begin is not None and job.begin > now:
            task.reason = Reason.BEGIN_TIME
            self._later[key] = task
            heapq.heappush(self._times, (job.begin, id, index))
        elif job.array is not None and not self._takes_slot(task):
            task.reason = Reason.LIMIT_ARRAY
            self._limited.setdefault(id, {})[index] = task
            heapq.heappush(self._next.setdefault(id, []), index)
        else:
            if task.reason in _OURS:
                task.reason = ""
            if self._let_go_on < AT_ONCE:
                self._let_go_on += 1
                self.ready[key] = self._fresh[key] = task
            else:
                self._later[key] = task
                heapq.heappush(self._times, (NEXT_STEP, id, index))
        return prospect

    def sent(self, task: Task) -> None:
        """A task is with a manager: it waits no more, and has a slot.

        That is one more than the limit where a manager brought back what it had given up.
        """
        self.forget(task)
        if task.job.array is not None and _limit(task.job) is not None:
            self._slots.setdefault(task.job.id, set()).add(task.index)

    def forget(self, task: Task) -> None:
        """A task stands before no gate any more; it keeps its slot."""
        place = task.place
        if self.ready.pop(place, None) is not None:
            self._fresh.pop(place, None)
        elif self._later or self._limited or self._blocked:
            id, index = place
            self._later.pop(place, None)
            _take(self._limited, id, index)
            if _take(self._blocked, id, index) is not None:
                self._hope(id, index)

    def gone(self, task: Task, now: float) -> None:
        """A task is held or has ended: its slot is the next one's."""
        self.forget(task)
        slots = self._slots.get(task.job.id)
        if slots is not None and task.index in slots:
            slots.discard(task.index)
            self._let_in(task.job.id, now)

    def happened(self, task: Task) -> None:
        """Tell those that depend on a task's job what has become of it."""
        following = self._progress.get(task.job.id)
        if following is None:
            return
        started = task.attempt.started if task.attempt is not None else None
        ended = (task.state is State.COMPLETED) if task.state in FINAL else None
        begun = None
        if ended is not None:
            begun = started if started is not None else task.ended
        elif task.state in LIVE - UNSTARTED:
            begun = started
        for target, progress in following.items():
            if target.index in (None, task.index):
                progress.tell(task.index, ended, begun)
        self._stirred.setdefault(task.job.id, set()).add(task.index)

    def _takes_slot(self, task: Task) -> bool:
        limit = _limit(task.job)
        if limit is None:
            return True
        slots = self._slots.setdefault(task.job.id, set())
        if task.index not in slots and len(slots) >= limit:
            return False
        slots.add(task.index)
        return True

    def _let_in(self, id: int, now: float) -> None:
        """Give free slots of an array to its next tasks."""
        limited, indices = self._limited.get(id, {}), self._next.get(id, [])
        while limited and indices:
            task = limited.get(indices[0])
            if task is not None and not self._takes_slot(task):
                return
            index = heapq.heappop(indices)
            if task is not None:
                _take(self._limited, id, index)
                self.queued(task, now)

    # Time and dependencies

    @property
    def next_due(self) -> float | None:
        """When time alone lets the next task go on (epoch seconds), or None."""
        return self._times[0][0] if self._times else None

    def pass_time(self, now: float) -> None:
        """Let go on what waits for a time that has come, as many as one step may."""
        while self._times and self._times[0][0] <= now and self._let_go_on < AT_ONCE:
            _, id, index = heapq.heappop(self._times)
            if index == _ALL:
                self._dues.pop(id, None)
                self._let_go(id, list(self._blocked.get(id, ())), now)
            elif (task := self._later.pop((id, index), None)) is not None:
                self.queued(task, now)

    @property
    def settled(self) -> bool:
        """Whether nobody has become ready, nor anything happened that others may wait for."""
        return not (self._stirred or self._freed or self._fresh)

    def settle(self, now: float) -> Iterator[tuple[Task, str]]:
        """Let go on whose dependencies have come; yield the tasks whose never will, with why.

        Goes on until nothing more follows from what was made of these.
        """
        while self._stirred or self._freed:
            stirred, self._stirred = self._stirred, {}
            freed, self._freed = self._freed, set()
            for target, indices in stirred.items():
                # by id: a start of ours learns of them in another order
                for _, job in sorted(self._dependents.get(target, {}).items()):
                    yield from self._judge(job, target, indices, now)
            for name in sorted(freed):
                first = self._singles.get(name, {}).get(min(self._names.get(name, {0})))
                if first is not None:
                    yield from self._judge(first, None, set(), now)

    def _judge(
        self, job: Job, target: int | None, indices: set[int], now: float
    ) -> Iterator[tuple[Task, str]]:
        """Look again at a job's blocked tasks, after `indices` of the job `target` have changed."""
        blocked = self._blocked.get(job.id)
        if not blocked:
            return
        shared, paired, first = [], False, next(iter(blocked))
        for term in _dependency(job).terms:
            if self._pairs(job, term):
                paired |= term.target is not None and term.target.job == target
            else:
                shared.append(self._of_term(job, term, first, now))
        if shared != self._shared.get(job.id):
            self._shared[job.id] = shared
            yield from self._let_go(job.id, list(blocked), now)
        elif paired:
            yield from self._let_go(job.id, sorted(blocked.keys() & indices), now)

    def _pairs(self, job: Job, term: Term) -> bool:
        """Whether each task of a job waits for its like in another."""
        if term.kind != "aftercorr" or term.target is None or term.target.index is not None:
            return False
        return job.array is not None and self._progress[term.target.job][term.target].array

    def _let_go(self, id: int, indices: Iterable[int], now: float) -> list[tuple[Task, str]]:
        """Put blocked tasks to their gates again; those that are newly hopeless."""
        found = []
        for index in indices:
            task = _take(self._blocked, id, index)
            if task is None:
                continue
            known = self._hope(id, index)
            if self.queued(task, now) is Prospect.NEVER and not known:
                found.append((task, self.told(task, now)))
        return found

    def _hope(self, id: int, index: int) -> bool:
        """Forget that a task was hopeless; whether it was."""
        hopeless = self._hopeless.get(id, set())
        was = index in hopeless
        hopeless.discard(index)
        if was and not hopeless:
            del self._hopeless[id]
        return was

    def _prospect(self, job: Job, index: int, now: float) -> _Outlook:
        dependency = _dependency(job)
        found = [self._of_term(job, term, index, now) for term in dependency.terms]
        dues = [due for _, due in found if due is not None]
        return combined((v for v, _ in found), dependency.any), min(dues, default=None)

    def _of_term(self, job: Job, term: Term, index: int, now: float) -> _Outlook:
        if term.target is None:
            first = min(self._names[job.user, job.name]) >= job.id
            return (Prospect.MET if first else Prospect.WAIT), None
        progress = self._progress[term.target.job][term.target]
        return progress.judge(term, None if job.array is None else index, now)

    def told(self, task: Task, now: float) -> str:
        """What a task's dependencies wait for, in words."""
        job, dependency = task.job, _dependency(task.job)
        parts = []
        for term in dependency.terms:
            prospect, _ = self._of_term(job, term, task.index, now)
            if prospect is Prospect.MET:
                continue
            if term.target is None:
                other = min(self._names[job.user, job.name])
                parts.append(f"{term} {prospect.value}: job {other} of that name has not ended")
            else:
                progress = self._progress[term.target.job][term.target]
                parts.append(f"{term} {prospect.value}: {progress.told()}")
        return "; ".join(parts)

    def refresh(self) -> None:
        """Something has changed for all that are ready: `take_fresh` gives them all again."""
        self.refreshed = True

    def take_fresh(self) -> list[Task]:
        """The tasks that have become ready, or were refreshed, since this was asked last."""
        fresh = self.ready if self.refreshed else self._fresh
        self._fresh, self.refreshed = {}, False
        return list(fresh.values())


def _take(by_key: dict[K, dict[int, V]], key: K, index: int) -> V | None:
    """Take a task or job out; nothing stays behind of a key that has no other there."""
    kept = by_key.get(key, {})
    one = kept.pop(index, None)
    if one is not None and not kept:
        del by_key[key]
    return one


def _limit(job: Job) -> int | None:
    if job.array is None or job.tasks_of_array is None:
        return None
    return job.tasks_of_array.limit


def _dependency(job: Job) -> Dependency:
    assert job.dependency is not None, job
    return parse_dependency(job.dependency)
