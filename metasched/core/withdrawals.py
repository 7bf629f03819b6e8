"""What must not stay with its manager: pulls, recalls, and the ends of windows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from metasched.core.cluster_view import ClusterView
from metasched.core.events import Drained, Resumed
from metasched.core.leasing import Leasing
from metasched.core.placement import Placing
from metasched.core.state import Books
from metasched.core.task_state_machine import Attempts
from metasched.core.tasks import Intent, Task
from metasched.core.transitions import UNSTARTED
from metasched.model.job import State
from metasched.model.reservation import OVER, Reservation
from metasched.policies.eligible import PERMANENT
from metasched.policies.pull import Room


class Moving:
    """Wants tasks back from clusters where they cannot, may not or need not wait.

    What has begun stays, unless the window of its reservation is over.
    """

    def __init__(
        self, books: Books, attempts: Attempts, leasing: Leasing, placing: Placing
    ) -> None:
        self._books, self._attempts = books, attempts
        self._leasing, self._placing = leasing, placing

    # Drained and shrunken clusters

    def drained(self, event: Drained) -> None:
        self._books.drains[event.cluster] = event
        if (view := self._books.views.get(event.cluster)) is not None:
            self.recall(view)

    def resumed(self, event: Resumed) -> None:
        """What had been wanted back, and was not told so yet, may stay."""
        self._books.drains.pop(event.cluster, None)
        if (view := self._books.views.get(event.cluster)) is None:
            return
        for task in list(view.live.values()):
            if task.live.intent is Intent.RECALL and task.live.asked is None:
                task.live.intent = None
                self._books.note(task, f"{event.cluster} resumed: it stays")

    def recall(self, view: ClusterView) -> None:
        """Want back what has not begun on a cluster that may not, or cannot ever, start it."""
        drain = self._books.drains.get(view.name)
        drained = drain is not None and not drain.keep_pending
        for task in list(view.live.values()):
            if drained:
                self._attempts.want_back(task, view, str(drain))
            elif not task.live.begun:
                never = self._placing.against(task.job, view)
                if never is not None and never.reason in PERMANENT:
                    self._attempts.want_back(task, view, never.text)

    # Silent clusters

    def leave(self, view: ClusterView, why: str) -> None:
        """Move what has not begun on a cluster, as far as another one can take it."""
        self._books.weigh_all()
        for task in sorted(view.live.values(), key=lambda t: (t.key, *t.place)):
            others = [
                name
                for name, other in self._books.views.items()
                if other is not view and self._placing.unfit(task, other) is None
            ]
            if others and self._attempts.want_back(task, view, why):
                choice = self._books.dispatch.choose(task.job, task.priority, others)
                task.live.target = choice

    # Windows

    def reservations_changed(self, changed: Iterable[Reservation]) -> None:
        """What waits at its manager for a reservation that is over comes back to us."""
        for one in changed:
            view = self._books.views.get(one.cluster)
            if one.state in OVER and view is not None:
                for task in list(view.live.values()):
                    if task.job.reservation == one.id:
                        why = f"reservation {one.id} is {one.state}"
                        self._attempts.want_back(task, view, why)

    def end_overruns(self, over: Iterable[Reservation]) -> None:
        """What still runs in windows that are over is to end: managers may see to it late."""
        for one in over:
            if (view := self._books.views.get(one.cluster)) is None:
                continue
            for task in list(view.live.values()):
                attempt = task.live
                if task.job.reservation == one.id and attempt.begun and attempt.intent is None:
                    attempt.intent = Intent.EXPIRE
                    self._books.note(task, f"reservation {one.id} is over: it is to end")
                    self._attempts.pursue(task)

    def keep_promises(self, view: ClusterView) -> None:
        """Want back what did not start at once, and would now run into a reservation."""
        waiting = self._placing.late_starters(view)
        if not waiting:
            return
        promises = self._placing.promises(view, but=waiting)
        if promises is None:
            return
        for task in waiting:
            if promises.leaves_enough(task.job):
                promises.take(task.job)
            else:
                why = "it did not start at once, and a reservation is near"
                self._attempts.want_back(task, view, why)

    # Licences that others wait for

    def lose_patience(self, view: ClusterView) -> None:
        """Want back what holds licences and does not begin, as far as that serves others.

        It then waits behind all who are in line now.
        """
        now, licences = self._books.now, self._leasing.licences
        if not licences.waited_for:
            return
        freed: Counter[str] = Counter()
        for task in view.unstarted.values():
            if task.live.intent is Intent.RECALL:
                freed.update(self._leasing.tokens(task))
        back: list[Task] = []
        for task in sorted(self._leasing.impatient(view), key=lambda t: t.key, reverse=True):
            if licences.serves(freed, now):
                break
            if now - (task.live.accepted or now) >= self._books.policy.patience:
                freed.update(self._leasing.tokens(task))
                back.append(task)
        if not licences.serves(freed, now):
            return
        for task in back:
            why = "others wait for its licences, and it does not begin"
            if self._attempts.want_back(task, view, why):
                self._leasing.put_behind(task)

    def keep_windows(self, view: ClusterView) -> None:
        """Want back what does not begin, and would by its limit have licences of a reservation."""
        now, licences = self._books.now, self._leasing.licences
        if not licences.windowed:
            return
        self._leasing.look_ahead(licences.windowed)
        freed: Counter[str] = Counter()
        for other in self._books.views.values():
            for task in self._leasing.in_the_way(other):
                if task.live.intent is Intent.RECALL:
                    freed.update(self._leasing.tokens(task))
        waiting = [task for task in self._leasing.in_the_way(view) if task.live.calm]
        for task in sorted(waiting, key=lambda task: (task.key, *task.place), reverse=True):
            if (id := licences.delays(task.place, freed, now)) is not None:
                why = f"it has not begun, and reservation {id} needs its licences"
                if self._attempts.want_back(task, view, why):
                    freed.update(self._leasing.tokens(task))

    # Pulling

    def pull(self, view: ClusterView) -> None:
        """Withdraw pending tasks elsewhere that would start on this cluster now."""
        facts = view.facts
        if facts is None or facts.cpus <= facts.used:
            return
        waiting = [other for other in self._books.queues.values() if other.up and other is not view]
        if not any(self._may_move(task) for other in waiting for task in other.unstarted.values()):
            return
        on_their_way = [
            task.job
            for task in view.uneasy.values()
            if task.state in UNSTARTED and not task.live.seen
        ] + [
            task.job
            for other in self._books.views.values()
            if other is not view
            for task in other.uneasy.values()
            if task.live.target == view.name
        ]
        incoming = [(job.cpus, job.time_limit or job.estimated) for job in on_their_way]
        room = Room(facts, self._books.now, incoming, view.here)
        if room.free <= 0:
            return
        for task in self._pullable(view, room):
            if self._placing.unfit(task, view) is not None or not room.admits(task.job):
                continue
            room.take(task.job)
            task.live.intent, task.live.target = Intent.PULL, view.name
            self._books.note(task, f"would start on {view.name} now")
            self._attempts.pursue(task)
            if room.free <= 0:
                return

    def _pullable(self, view: ClusterView, room: Room) -> Iterator[Task]:
        """What may leave other clusters that are up for this room, in the order in which it waits.

        There may be thousands at every listing: most often the first ones fill the room, and others
        are ruled out by numbers alone, so that is asked first.
        """
        for _, _, task in self._books.line:
            if room.spares(task.job) and self._may_move(task):
                home = self._books.views[task.live.cluster]
                if home.up and home is not view:
                    yield task

    def _may_move(self, task: Task) -> bool:
        attempt = task.live
        return (
            task.state is State.PENDING
            and attempt.seen
            and attempt.intent is None
            and not attempt.begun
            and self._has_waited(task)
        )

    def _has_waited(self, task: Task) -> bool:
        attempt = task.live
        waited = self._books.views[attempt.cluster].watched(self._books.watch) - attempt.watched
        return waited >= self._books.policy.pull_after * 2.0**task.moves

    @property
    def may_pull(self) -> bool:
        """Whether some task that nobody wants back has waited for long enough to be pulled."""
        return any(
            task.live.intent is None and self._has_waited(task)
            for view in self._books.queues.values()
            for task in view.unstarted.values()
        )
