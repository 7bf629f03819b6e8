"""Where waiting tasks go: the clusters that may run them, their licences, the choice. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from metasched.core.cluster_view import DECIDED, ClusterView
from metasched.core.events import Send, Verdict
from metasched.core.gates import Gates
from metasched.core.leasing import Leasing
from metasched.core.reservations.book import ReservationBook
from metasched.core.state import Books
from metasched.core.task_state_machine import Attempts
from metasched.core.tasks import Attempt, Task
from metasched.core.transitions import UNSTARTED, Event
from metasched.model.dependencies import Prospect
from metasched.model.job import Job, Reason, State
from metasched.policies.eligible import PERMANENT, Unfit
from metasched.policies.late_binding import LateSending, Promises
from metasched.policies.pull import Room

# what each sending names: see `attempts`
_QUEUED: Final = State.QUEUED
_SEND: Final = Event.SEND

_PRECEDENCE = {reason: place for place, reason in enumerate(Reason)}
SAME_MOMENT = 1.0  # seconds to which managers round their times
_NO_ROOM = Unfit(Reason.PRIORITY, "it would start on no cluster now, or delay one that goes before")
_NEAR = Unfit(Reason.RESERVATION_NEAR, "by its limit it would still run when a reservation begins")
_NO_CLUSTER = Unfit(Reason.NO_CLUSTER_FITS, "no cluster is configured")


class Placing:
    """Sends what waits for a cluster only."""

    def __init__(
        self,
        books: Books,
        attempts: Attempts,
        leasing: Leasing,
        gates: Gates,
        reservations: ReservationBook,
    ) -> None:
        self._books, self._attempts, self._leasing, self._gates = books, attempts, leasing, gates
        self._reservations = reservations
        # of one `place`, by job and cluster
        self._chunks: dict[tuple[int, str], tuple[int, list[int]]] = {}
        self._late: LateSending[str] | None = None  # of one `place`, if that is the policy
        # by what jobs need: the clusters that may run them, as long as all are as they are
        self._fits: dict[Hashable, list[str]] = {}
        self._mounted = False  # paths of a job decide, too
        self._tell_apart = False  # one of the clusters is full: it takes one task, then no other

    # 3. The clusters that may run a task

    def unfit(self, task: Task, view: ClusterView) -> Unfit | None:
        """Why a task cannot be sent to a cluster now."""
        if task.refused and view.name in task.refused:
            return Unfit(Reason.NO_CLUSTER_FITS, "its manager refused the job")
        against = self.against(task.job, view)
        open_to_all = view.up and not view.full and view.name not in self._books.drains
        if open_to_all or (against is not None and against.reason in PERMANENT):
            return against
        if not view.up:
            return Unfit(Reason.CLUSTER_DOWN, view.word)
        if view.name in self._books.drains:
            return Unfit(Reason.CLUSTER_DRAINED, str(self._books.drains[view.name]))
        if against is None and view.full and not view.may_probe(self._books.now):
            return Unfit(Reason.CLUSTER_DRAINED, view.full)
        return against

    def against(self, job: Job, view: ClusterView) -> Unfit | None:
        """Why a cluster, as it is, cannot run a job; not whether it answers and may be used now."""
        if job.reservation is not None:
            barred_by = self._reservations.against(job, view.name)
            if barred_by is not None:
                return barred_by
        licences = self._leasing.licences
        if self._leasing.ours and (barred := licences.barred(job.licences, view.name)):
            text = f"licence {barred} cannot be used there"
            return Unfit(Reason.NO_CLUSTER_FITS, text)
        return view.unfit(job)

    def verdicts(self, task: Task) -> list[Verdict]:
        """What speaks against each cluster for a task now, with the loads that decide."""
        self._books.weigh_all()
        looks = self._books.dispatch.looked_at(task.job, task.priority)
        return [
            Verdict(name, self.unfit(task, view), *looks[name])
            for name, view in self._books.views.items()
        ]

    def refusal(self, job: Job) -> str | None:
        """Why no cluster can ever run a job that is about to be submitted, or None."""
        views = self._books.views
        if unknown := [c for c in job.clusters if c not in views]:
            return f"there is no cluster {unknown[0]}; there are {', '.join(views)}"
        licences = self._leasing.licences
        if self._leasing.ours and (why := licences.refusal(job.licences)) is not None:
            return why
        probe = Task(job, 0, 1, 0.0)
        against: dict[str, Unfit] = {}
        for name, view in views.items():
            if job.clusters and name not in job.clusters:
                continue
            unfit_here = self.unfit(probe, view)
            if unfit_here is None or unfit_here.reason not in PERMANENT:
                return None
            against[name] = unfit_here
        sizes = {n: facts.cpus for n in against if (facts := views[n].facts) is not None}
        if sizes.keys() == against.keys() and job.cpus > max(sizes.values()):
            largest = max(sizes, key=sizes.__getitem__)
            among = " of those named" if job.clusters else ""
            return (
                f"no cluster{among} has {job.cpus} processors, the largest is {largest} with "
                f"{sizes[largest]}; ask for fewer"
            )
        told = "; ".join(f"{name}: {u.text}" for name, u in against.items())
        return f"no cluster can run the job ({told}); change what it asks for"

    # 4. Licences and the choice

    def look_anew(self) -> None:
        """A cluster may run other tasks than before."""
        self._fits.clear()
        self._mounted = any(view.cluster.filesystems for view in self._books.views.values())
        self._tell_apart = any(view.full for view in self._books.views.values())

    def place(self) -> None:
        """Send what waits for a cluster only, in order of its key.

        The tasks that have just become ready, or all where something has changed for all; then
        those that waited for one that was rejected here. What is sent late is looked at whenever
        there is room: each may be what the first of all leaves.
        """
        gates = self._gates
        if gates.refreshed:
            self.look_anew()
        elif gates.settled and self._leasing.settled and not gates.ready:
            return
        self._late = self._late_sending()
        if self._late is not None and not self._late.full:
            self._gates.refresh()
        while True:
            for task, why in self._gates.settle(self._books.now):
                self._books.note(task, why)
                self._attempts.despair(task, Prospect.NEVER)
            self._place_all(self._gates.take_fresh())
            if self._gates.settled:
                return

    def _place_all(self, waiting: list[Task]) -> None:
        books, leasing, licences = self._books, self._leasing, self._leasing.licences
        now = books.now
        if len(books.views) > 1 and (waiting or licences.waited_for):  # there is a choice
            books.weigh_all()
        self._chunks = {}
        in_line = []
        if len(waiting) > 1:
            waiting.sort(key=lambda t: (t.key, *t.place))
        for task in waiting:
            if not leasing.wanted(task) or task.place in leasing.passed_on:
                self._let_go(task)
            elif self._fit(task):
                leasing.join(task)
                in_line.append(task)
        leasing.none_passed()
        while (granted := licences.next(now)) is not None:
            task = books.tasks[granted]
            self._let_go(task)
            if task.attempt is None:
                leasing.leave(task)  # else it would be granted again, for ever
        for task in in_line:
            if (lacking := leasing.lacking(task, now)) is not None:
                self._keep(task, [lacking])
        for (job, cluster), (sending, indices) in self._chunks.items():
            books.out.actions.append(Send(job, sending, cluster, tuple(indices)))

    def _fit(self, task: Task) -> list[str]:
        """The clusters that may run a task now; if there is none it waits, not for licences."""
        alike = self._alike(task)
        if alike is not None and (known := self._fits.get(alike)):
            return known
        fit, against = [], []
        for name, view in self._books.views.items():
            unfit = self.unfit(task, view)
            if unfit is None:
                fit.append(name)
            else:
                against.append(unfit)
        if not fit:
            self._leasing.leave(task)
            self._keep(task, against)
        elif alike is not None:
            if len(self._fits) >= DECIDED:
                self._fits.clear()
            self._fits[alike] = fit
        return fit

    def _alike(self, task: Task) -> Hashable:
        """The same for tasks that fit the same clusters; None: it must be asked for by itself."""
        job = task.job
        if self._tell_apart or task.refused or job.reservation is not None:
            return None
        return (job.needs, job.directory, job.writes) if self._mounted else job.needs

    def _let_go(self, task: Task) -> None:
        """Send a task that waits for nothing but a cluster."""
        late = None if task.job.reservation is not None else self._late
        if late is not None and late.full and task.reason == Reason.PRIORITY:
            return
        fit = self._fit(task)
        if not fit:
            return
        if late is not None:
            cluster = late.choose(task.job, fit)
            if cluster is not None:
                self._send(task, cluster)
            else:
                near = late.barred_by_promises(task.job, fit)
                self._keep(task, [_NEAR if near else _NO_ROOM])
        elif task.target in fit:
            self._send(task, task.target)
        elif len(fit) == 1:
            self._send(task, fit[0])
        else:
            among = fit if len(fit) < len(self._books.views) else None
            self._send(task, self._books.dispatch.choose(task.job, task.priority, among))

    # Late sending

    def _late_sending(self) -> LateSending[str] | None:
        if self._books.policy.send != "late" or not self._gates.ready:
            return None
        rooms, promises = {}, {}
        for name, view in self._books.views.items():
            if view.facts is None:
                continue
            coming = [
                (task.job.cpus, task.job.time_limit or task.job.estimated)
                for task in view.uneasy.values()
                if task.state in UNSTARTED and not task.live.seen and task.job.reservation is None
            ]
            rooms[name] = Room(view.facts, self._books.now, coming, view.here)
            if rooms[name].free > 0 and (kept := self.promises(view)) is not None:
                promises[name] = kept
        return LateSending(rooms, promises)

    def promises(self, view: ClusterView, but: Sequence[Task] = ()) -> Promises | None:
        """What must stay free there for reservations, besides all that we have sent, `but` some."""
        promises = self._reservations.promises(view.cluster, self._books.now)
        if promises is None:
            return None
        surveyed = self._reservations.free.surveyed_at(view.name)
        left_out = {task.place for task in but}
        for place, task in view.live.items():
            started = task.live.started
            seen_there = started is not None and started + SAME_MOMENT < surveyed
            if not (seen_there or place in left_out or task.job.reservation is not None):
                promises.take(task.job)
        return promises

    def late_starters(self, view: ClusterView) -> list[Task]:
        """What waits in a cluster whose reservations rest on its starting at once."""
        if not (view.cluster.binds_late and self._reservations.concerns(view.name)):
            return []
        waiting = [
            task
            for task in view.unstarted.values()
            if task.live.calm and task.state is State.PENDING and task.job.reservation is None
        ]
        return sorted(waiting, key=lambda task: (task.key, *task.place))

    def _send(self, task: Task, cluster: str) -> None:
        """Intend a sending; tasks of one job that go to one cluster now share it, up to a chunk."""
        books, job = self._books, task.job.id
        view, chunk = books.views[cluster], self._chunks.get((job, cluster))
        if chunk is not None and len(chunk[1]) == view.cluster.chunk:
            books.out.actions.append(Send(job, chunk[0], cluster, tuple(chunk[1])))
            chunk = None
        if chunk is None:
            books.last_sending[job] = books.last_sending.get(job, 0) + 1
            chunk = self._chunks[job, cluster] = books.last_sending[job], []
        sending, indices = chunk
        indices.append(task.index)
        if view.full:
            view.probe_at = books.now + view.pause
        task.attempts += 1
        task.attempt = Attempt(
            task.attempts,
            sending,
            cluster,
            _QUEUED,
            books.now,
            watched=view.watched(books.watch),
            fence=view.cluster.fence_dir,
        )
        books.sent(task, task.attempt)
        view.add(task)
        cause = "moved on purpose" if task.target == cluster else "load and ordering"
        task.target = None
        if self._leasing.wanted(task):
            cause += f", with {self._leasing.take(task)}"
        self._attempts.advance(task, _SEND, cause)
        if len(books.views) > 1:
            books.weigh(view)

    def _keep(self, task: Task, against: list[Unfit]) -> None:
        """Nothing fits: say why by the reason that comes first, or reject for good."""
        passing = [u for u in against if u.reason not in PERMANENT]
        first = min(passing or against, key=lambda u: _PRECEDENCE[u.reason], default=_NO_CLUSTER)
        if task.target is not None:
            task.target = None
            self._books.store(task)
        if task.refused and not passing:
            self._attempts.advance(task, Event.REJECT, first.text)
            task.reason = first.reason
        elif task.reason != first.reason:
            task.reason = first.reason
            self._books.note(task, first.text)
