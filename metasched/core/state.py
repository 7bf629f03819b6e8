"""What the core knows: its open tasks by every name they go by, the clusters, the step at hand."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable
from typing import Literal

from metasched.core.cluster_view import ClusterView, loads
from metasched.core.events import Drained, Outcome
from metasched.core.tasks import Attempt, Change, Ended, Past, Place, Task
from metasched.core.transitions import UNSTARTED, Event
from metasched.model.job import Job, State
from metasched.model.tags import parse_tag, tag_of
from metasched.policies.classify import Classifier
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.policy import Policy

ENDED_KEPT = 20_000  # ended tasks that are remembered, in case an attempt of theirs comes back


class Books:
    """The state that all parts of the core share, and what keeps its indexes in step.

    `now` is the time of the event that is being applied, `out` what has come of it so far.
    """

    def __init__(self) -> None:
        self.policy = Policy()
        self.instance = ""
        self.tasks: dict[Place, Task] = {}
        self.open: dict[int, dict[int, Task]] = {}  # by job and index
        self.sendings: dict[tuple[int, int], dict[int, Task]] = {}  # by job, sending and index
        self.last_sending: dict[int, int] = {}  # by open job
        self.ended: OrderedDict[Place, Ended] = OrderedDict()  # the oldest first
        self.views: dict[str, ClusterView] = {}
        self.queues: dict[str, ClusterView] = {}  # those where something of ours waits unstarted
        self.line: list[tuple[float, Place, Task]] = []  # all of that, by key and place
        self.drains: dict[str, Drained] = {}  # also of clusters that are not configured now
        self.now = 0.0
        self.watch = 0.0  # seconds for which some cluster has answered us, since the start
        self.out = Outcome()
        self.withdrawals: dict[tuple[int, int, bool], dict[int, str | None]] = {}  # of this step
        self.classifier: Classifier
        self.dispatch: LoadOrdering

    def begin(self, now: float, clock_set: float) -> Outcome:
        """Begin a step: time passes, but not while no cluster answers.

        `clock_set`: seconds that the clock went, and time did not.
        """
        passed = now - (self.now + clock_set)
        if passed > 0 and any(view.up for view in self.views.values()):
            self.watch += passed
        self.now, self.out, self.withdrawals = now, Outcome(), {}
        return self.out

    # Looking things up

    def tasks_of(self, job: int, indices: Iterable[int] | None = None) -> list[Task]:
        """The open tasks of a job: all, or those of `indices`."""
        of_job = self.open.get(job, {})
        return [of_job[i] for i in (of_job if indices is None else indices) if i in of_job]

    def is_open(self, job: int, index: int | None = None) -> bool:
        """Whether a task (None: any of the job) has not ended."""
        return job in self.open if index is None else (job, index) in self.tasks

    def sending(self, job: int, sending: int) -> list[Task]:
        """The tasks whose live attempt is this sending."""
        return list(self.sendings.get((job, sending), {}).values())

    def of(self, tag: str, index: int) -> Task | None:
        """The task whose live attempt a manager lists under a tag."""
        key = parse_tag(tag, self.instance)
        return self.sendings.get(key, {}).get(index) if key else None

    def tag(self, task: Task) -> str:
        """The tag under which a manager lists its live attempt."""
        return tag_of(self.instance, task.job.id, task.live.sending)

    def past(self, job: int, index: int) -> dict[int, Past]:
        """The earlier sendings of a task: of one that has ended, all."""
        if (task := self.tasks.get((job, index))) is not None:
            return task.past
        ended = self.ended.get((job, index))
        return {} if ended is None else ended.past

    def view_of(self, task: Task) -> ClusterView | None:
        """The cluster of its live attempt, if that is configured."""
        return self.views.get(task.live.cluster)

    def key(self, job: Job, priority: int) -> float:
        """What orders the tasks that wait: seconds; a step of priority is worth `age` of them."""
        return job.submitted - self.policy.age * (priority - 1)

    # Keeping them

    def forget_open(self) -> None:
        for kept in (self.tasks, self.open, self.sendings):
            kept.clear()

    def sent(self, task: Task, attempt: Attempt) -> None:
        """It has a live attempt."""
        self.sendings.setdefault((task.job.id, attempt.sending), {})[task.index] = task

    def unsent(self, task: Task, attempt: Attempt) -> None:
        """Its attempt has ended."""
        sending = (task.job.id, attempt.sending)
        tasks = self.sendings[sending]
        del tasks[task.index]
        if not tasks:
            del self.sendings[sending]

    def remember(self, task: Task) -> None:
        """Keep what matters if an attempt of a task that has ended comes back."""
        self.ended[task.place] = Ended(task.state, task.attempts, task.past)
        if len(self.ended) > ENDED_KEPT:
            self.ended.popitem(last=False)  # of a dict the first is found past all that have gone

    def count(self, task: Task, attempt: Attempt, state: State, sign: Literal[1, -1]) -> None:
        """Keep the loads of a cluster in step with what waits there unstarted."""
        view, job = self.views.get(attempt.cluster), task.job
        if state not in UNSTARTED or view is None:
            return
        if sign > 0:
            view.unstarted[task.place] = task
            insort(self.line, (task.key, task.place, task))
            self.queues[view.name] = view
            self.dispatch.assigned(view.name, job, task.priority)
        else:
            del view.unstarted[task.place]
            del self.line[bisect_left(self.line, (task.key, task.place))]
            if not view.unstarted:
                del self.queues[view.name]
            self.dispatch.left_queue(view.name, job, task.priority)
        # an empty queue owes nothing: no residue of floats may hide the zero that Load looks for
        view.owed = view.owed + sign * job.cpus * job.estimated if view.unstarted else 0.0

    def weigh_all(self) -> None:
        """Before clusters are compared: their observed loads, as they are now."""
        if self.policy.load == "observed":
            self.dispatch.observe_all(loads(self.views.values(), self.now))

    def weigh(self, view: ClusterView) -> None:
        """The same of one cluster, on which alone something has changed in this step."""
        if self.policy.load == "observed":
            self.dispatch.observe(view.name, *loads((view,), self.now))

    # Telling the story

    def store(self, task: Task) -> None:
        """Something of it has changed that a start of ours must find again."""
        self.out.tasks[task.place] = task

    def note(self, task: Task, cause: str) -> None:
        """Tell what happened to a task, without a change of its state."""
        self.record(task, None, task.state, cause)

    def record(self, task: Task, event: Event | None, before: State | None, cause: str) -> None:
        """Tell of a task that it went from `before` to its state."""
        attempt, place, out = task.attempt, task.place, self.out
        job, index = place
        number, cluster = 0, None
        if attempt is not None:
            number, cluster = attempt.number, attempt.cluster
            if not attempt.calm:
                view = self.views.get(cluster)
                if view is not None and place in view.live:
                    view.uneasy[place] = task
        out.tasks[place] = task
        out.changes.append(
            Change(job, index, number, event, before, task.state, cluster, task.reason, cause)
        )
