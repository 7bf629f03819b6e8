"""Leases of tasks: what is sent has its licences, and what has ended gives them back. Pure.

`metasched/core/licences/queue.py` decides who may have tokens; here they follow the tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from metasched.core.cluster_view import ClusterView
from metasched.core.licences.queue import Licences
from metasched.core.licences.windows import TokenWindow
from metasched.core.state import Books
from metasched.core.tasks import Attempt, Place, Task
from metasched.core.transitions import BEGUN
from metasched.model.job import Reason, State
from metasched.model.licence import GivenBack, Lease, LicencePool, Standing
from metasched.model.reservation import OPEN, Reservation
from metasched.policies.eligible import Unfit


class Leasing:
    """Takes and gives back the leases of tasks."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.licences = Licences()
        self.ours = False  # to lease; else licences are the managers' own affair
        self._patience = 0.0
        self.passed_on: dict[Place, Task] = {}  # on the way to where they are pulled
        self._behind: dict[Place, float] = {}  # recalled tasks: their key in line

    def configure(
        self, pools: tuple[LicencePool, ...] | None, patience: float, clusters: Iterable[str]
    ) -> None:
        self.ours, self._patience = pools is not None, patience
        for name in self.licences.configure(pools or (), patience, clusters):
            self._tell(name)
        self.passed_on, self._behind = {}, {}

    def wanted(self, task: Task) -> bool:
        """Whether a task needs a lease to be sent."""
        return self.ours and bool(task.job.licences)

    # The line

    @property
    def settled(self) -> bool:
        """Whether nobody in line can have what it waits for, and nobody has a lease passed on."""
        return self.licences.settled and not self.passed_on

    def join(self, task: Task) -> None:
        """Let it wait in line."""
        key = max(task.key, self._behind.get(task.place, task.key))
        self.licences.join(
            task.place, key, task.job.licences, _lasts(task), _limited(task), task.job.reservation
        )

    def leave(self, task: Task) -> None:
        if self.licences.waited_for:
            self.licences.leave(task.place)

    def put_behind(self, task: Task) -> None:
        """When it comes back it waits behind all who are in line now."""
        self._behind[task.place] = self._books.now + self._patience

    def lacks(self, task: Task, now: float) -> list[Standing]:
        """The licences of which a task in line could not have what it wants now."""
        return list(self.licences.lacks(task.place, now))

    def lacking(self, task: Task, now: float) -> Unfit | None:
        """Why a task waits for licences, as it is now; None: it does not."""
        if task.place not in self.licences:
            return None
        lacks = self.lacks(task, now)
        texts = [f"licence {s.licence}: {s.word or self._told(task, s, now)}" for s in lacks]
        unknown = any(s.word for s in lacks)
        reason = Reason.LICENCE_UNKNOWN if unknown else Reason.LICENCE_BUSY
        return Unfit(reason, "; ".join(texts) or "its turn comes next")

    def _told(self, task: Task, s: Standing, now: float) -> str:
        wanted, free = task.job.licences[s.licence], s.free or 0
        if (window := self.licences.kept_for(task.place, s.licence, now)) is not None:
            free += s.reserved
            limit = (
                "" if _limited(task) else "; the job has no time limit, and might not end before"
            )
            return f"{wanted} wanted, and {free} free, kept for reservation {window.id}{limit}"
        if free >= wanted:
            return f"{wanted} wanted, and {free} free, which are kept for the first in line"
        return f"{wanted} wanted, {max(free, 0)} of {s.total} free"

    # Leases

    def take(self, task: Task, forced: bool = False) -> str:
        """Lease its licences to the attempt of a task, in words; they may be passed on to it."""
        if task.place in self.licences.leases:  # also if there are too few by now: none is added
            self.give_back(task, "passed on")
            forced = True
        tokens = dict(task.job.licences)
        lease = Lease(*task.place, task.live.number, tokens, self._books.now, forced)
        end = self._books.now + _lasts(task)
        self.licences.take(lease, end, _limited(task), task.job.reservation)
        self._behind.pop(task.place, None)
        self._books.out.leases.append(lease)
        return ", ".join(f"{name}:{many}" for name, many in tokens.items())

    def expect(self, task: Task) -> None:
        """Count its time limit from when it began, until then from when it was sent.

        Where reservations need its licences it is from now on, since it may begin at any moment;
        and what nobody knows anything of may keep them for good.
        """
        if task.place not in self.licences.leases:
            return
        begun = task.live.sent if task.live.started is None else task.live.started
        if task.live.started is None and not self.licences.windowed.isdisjoint(task.job.licences):
            begun = self._books.now
        known = _limited(task) and task.state is not State.UNKNOWN
        self.licences.expect(task.place, begun + _lasts(task), known, task.job.reservation)

    # Windows of reservations

    def promise(self, changed: Iterable[Reservation]) -> None:
        """Keep the licences of those that are open, and of the others no more."""
        for one in changed:
            if one.state in OPEN:
                window = TokenWindow(one.id, one.start, one.until, one.licences)
                self.licences.promise(window)
            else:
                self.licences.keep_no_more(one.id)

    def look_ahead(self, licences: Collection[str]) -> None:
        """Learn anew when leases of these licences will have ended."""
        for place, lease in list(self.licences.leases.items()):
            task = self._books.tasks.get(place)
            if task is None or task.attempt is None or lease.tokens.keys().isdisjoint(licences):
                continue
            if task.live.started is None or task.state is State.UNKNOWN:
                self.expect(task)

    def in_the_way(self, view: ClusterView) -> Iterator[Task]:
        """What has not begun on a cluster, and has licences that reservations need, too."""
        windowed = self.licences.windowed
        for task in view.unstarted.values() if windowed else ():
            if not windowed.isdisjoint(self.tokens(task)) and task.job.reservation is None:
                yield task

    def must_hold(self, task: Task) -> None:
        """What may run has its licences, whatever is left: it was there before we knew."""
        if task.place not in self.licences.leases:
            told = self.take(task, forced=True)
            self._books.note(task, f"it has {told}, which are counted again")

    def give_back(self, task: Task, why: str, attempt: Attempt | None = None) -> None:
        """End the lease of a task, if it has one; `attempt` is what may have used it."""
        lease = self.licences.leases.get(task.place)
        if lease is not None:
            self._end(lease, why, attempt is not None and attempt.begun)

    def _end(self, lease: Lease, why: str, used: bool) -> None:
        now = self._books.now
        lingers = self.licences.give_back((lease.job, lease.index), now, used)
        self._books.out.leases.append(GivenBack(lease, now, str(why), lingers))

    def pass_on(self, task: Task) -> None:
        """Its next attempt, which begins in this step, takes the lease over."""
        self.passed_on[task.place] = task

    def none_passed(self) -> None:
        """What was to be sent on and was not gives its lease back."""
        for task in self.passed_on.values():
            if task.attempt is None:
                self.give_back(task, "not sent on")
        self.passed_on = {}

    def count_past_us(self, view: ClusterView) -> None:
        """What a manager counts as taken of our licences, and not by jobs of ours, others use.

        A lease is in its count from when its task has begun. So leases and what others use are
        together never less than the manager's count, even if that is some moments younger than
        its listing of tasks.
        """
        if not self.ours or view.facts is None:
            return
        words = {name: view.cluster.licence(name) for name in self.licences.names}
        taken = {word: copies.used for word, copies in view.facts.licences.items()}
        if not taken.keys().isdisjoint(words.values()):
            for task in view.live.values():
                if task.live.state in BEGUN:
                    for name, many in self.tokens(task).items():
                        word = view.cluster.licence(name)
                        taken[word] = taken.get(word, 0) - many
        others = {name: max(taken.get(word, 0), 0) for name, word in words.items()}
        for name in self.licences.given_past_us(view.name, others, self._books.now):
            self._tell(name)

    def _tell(self, name: str) -> None:
        self._books.out.standings[name] = self.licences.standing(name, self._books.now)

    def reconcile(self) -> None:
        """Make leases agree with what is live, and tell how it stands with every licence."""
        if not self.ours:
            return
        for place, lease in list(self.licences.leases.items()):
            task = self._books.tasks.get(place)
            if task is None or task.attempt is None:
                self._end(lease, "nobody has it", used=True)
        for task in self._books.tasks.values():
            if task.attempt is None or not task.job.licences:
                continue
            if task.state is not State.UNKNOWN:  # an operator may have released it
                self.must_hold(task)
            self.expect(task)
        for standing in self.licences.standings(self._books.now):
            self._books.out.standings[standing.licence] = standing

    def tokens(self, task: Task) -> Mapping[str, int]:
        """What is leased to a task, by licence."""
        lease = self.licences.leases.get(task.place)
        return {} if lease is None else lease.tokens

    def impatient(self, view: ClusterView) -> Iterator[Task]:
        """What a cluster has that may have to go for the sake of those who wait for licences."""
        if not self.licences.waited_for:
            return
        for place in self.licences.leases:
            task = view.unstarted.get(place)
            if task is not None and task.live.calm and self.licences.contended(place):
                yield task


def _limited(task: Task) -> bool:
    """Whether somebody ends it at its limit."""
    return task.job.time_limit is not None


def _lasts(task: Task) -> float:
    """Seconds for which a task has its licences by its time limit."""
    return task.job.time_limit or task.job.estimated
