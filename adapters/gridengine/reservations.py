"""Advance reservations of one Grid Engine cell: what is free when, and slots kept for users.

Grid Engine chooses the slots itself, when it grants a reservation, and never moves one: it is
granted anew elsewhere, what waits in it goes over, and then the old one is deleted. What died in
between leaves two of one name: a survey shows that, and `reserve` goes on. All are made by this
account, which must be of the access list `arusers`, and each is open to its user alone. Son of Grid
Engine 8.1.9, measured: names need not be unique; what one has of consumables is kept from all but
its jobs, which get no others, and is not said to be taken; deleting one, and its end, deletes the
jobs in it, and of those that wait no record is left; a job longer than its reservation is refused;
a reservation whose queue is disabled is kept, and runs nothing; one is granted in queues that are
disabled or do not answer as in any others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import TypeVar

from metasched.adapters.commands import Answer
from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.gridengine import listing as text
from metasched.adapters.gridengine import reservation_listing as windows
from metasched.adapters.gridengine.reservation_listing import Kept, Listed, Occupancy
from metasched.carts.node_assignment import Need
from metasched.carts.relocation import BEGINS
from metasched.model.reservation import id_of
from metasched.model.survey import Survey, Window

_IDS_PER_CALL = 500
_LOOKED_AT = 50  # of those that wait, at a time
# The qmaster's own words: it has not done it.
_NO = re.compile(
    r"no suitable queues|denied|is not known as a user|rejected|in the past|later than end time"
    r"|not an? AR user|not have .*permission|does not exist"
)
_UNKNOWN = re.compile(r"does not exist")
_FULL = "no suitable queues"
_MOVES = 10  # reservations that are moved at the most to make room for one
_PAST = 2.0  # seconds: a start nearer than that may have passed when the qmaster looks

T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """The hosts as reservations leave them now, what those to come leave, who waits in one."""

    hosts: Sequence[text.Host]
    coming: tuple[tuple[float, int], ...] = ()
    awaiting: frozenset[str] = frozenset()


class Reservations:
    """Those of one cell, by the commands that `run` gives as this account."""

    def __init__(
        self, run: Callable[..., Answer], user: str, instance: str, environment: str
    ) -> None:
        self._run, self._user, self._instance = run, user, instance
        self._environment = environment
        # of jobs that ran, and that waited, as far as asked: for `_inside` and `_await` alone
        self._within: dict[str, str] = {}
        self._awaited: dict[str, str] = {}

    def survey(self, listed: Listed) -> Survey:
        """What takes the slots of the cell; `listed` are everybody's jobs.

        A reservation that cannot be used, since its queue is down, is told where it is: on nodes
        that are in no pool.
        """
        now = self._occupancy(listed)
        held = windows.held(now.kept, self._user, self._instance)
        guard = listed.rules.offset
        return Survey(listed.taken, (), held, now.pools(self._spreads()), guard)

    def _occupancy(self, listed: Listed) -> Occupancy:
        kept = self._kept()
        within = self._inside(kept, listed.jobs, listed.taken)
        return Occupancy(**vars(listed), kept=kept, within=within)

    def _spreads(self) -> bool:
        return self._read(windows.spreads, "qconf", "-sp", self._environment)

    def seen(self, listed: Listed) -> Seen:
        """What of the cell is there for jobs in no reservation. Some commands more if there is any.

        Ids are of jobs that wait in one, as far as the first in the line that does not.
        """
        if not any(queue.reserved for host in listed.hosts for queue in host.queues):
            return Seen(listed.hosts)
        now = self._occupancy(listed)
        awaiting = self._await([job.id for job in listed.jobs if job.queued])
        return Seen(now.kept_free(), now.coming(), awaiting)

    def _await(self, line: Sequence[str]) -> frozenset[str]:
        """Those of a line that wait in reservations, to the first that does not."""
        self._awaited = {id: self._awaited[id] for id in line if id in self._awaited}
        inside: list[str] = []
        while some := line[len(inside) : len(inside) + _LOOKED_AT]:
            self._awaited |= self._reserved(id for id in some if id not in self._awaited)
            reserved = list(takewhile(self._awaited.get, some))
            inside += reserved
            if len(reserved) < len(some):
                break
        return frozenset(inside)

    def _inside(
        self, kept: Iterable[Kept], jobs: Iterable[text.Job], taken: float
    ) -> dict[str, str]:
        """The reservation of each job that runs in one."""
        active = min((one.start for one in kept if one.start <= taken), default=None)
        running = [job for job in jobs if not job.waits]
        inside = [j for j in running if active is not None and (j.started or taken) >= active]
        self._within = {
            **{job.id: self._within[job.id] for job in inside if job.id in self._within},
            **self._reserved(job.id for job in inside if job.id not in self._within),
        }
        return {id: one for id, one in self._within.items() if one}

    def reserve(self, window: Window, listed: Listed) -> None:
        """Have it granted once, and in queues that are up; what was granted besides is deleted.

        `listed` are the jobs of its user.
        """
        known = self._known(window.name)
        good = [one.id for one in known if one.usable and one.size == window.size]
        id = good[-1] if good else self._fitted(window, listed)
        self._replaced([one for one in known if one.id != id], id, listed.jobs)

    def _fitted(self, window: Window, listed: Listed) -> str:
        """The id of a new one, for which others are moved if need be. Refused if it is in vain."""
        for _ in range(_MOVES):
            try:
                return self._granted(window, listed)
            except Refused as refusal:
                if _FULL not in refusal.reason or not self._moved(window, listed):
                    raise
        return self._granted(window, listed)

    def _moved(self, window: Window, listed: Listed) -> bool:
        """Move the first of those of ours that are in the way of a window, if that is any use.

        The next is chosen when it is seen what the qmaster chose for this one.
        """
        now = self._occupancy(replace(listed, jobs=self._jobs("*")))
        coming = {
            one.id: one
            for one in now.kept
            if one.owner == self._user
            and id_of(one.name, self._instance) is not None
            and one.user
            and one.usable
            and one.start > now.taken + BEGINS
            and now.rules.tokens.keys().isdisjoint(
                one.each
            )  # there may be too few to have them twice
        }
        newest = {one.name: one for one in coming.values()}
        older = [one for one in coming.values() if one != newest[one.name]]
        if older:  # an earlier call has not come to its end
            one = older[0]
            self._replaced([one], newest[one.name].id, self._jobs(one.user))
            return True
        start, end = (float(round(side)) for side in (window.start, window.end))
        new = Need(0, max(start, now.taken), end, window.size)
        moves = now.places(self._spreads(), coming).moves(new)
        if not moves:
            return False
        id, slots = moves[0]
        one = coming[str(id)]
        anew = Window(one.name, one.user, one.start, one.end, (), one.size)
        other = self._granted(anew, listed, slots)
        self._replaced([one], other, self._jobs(one.user))
        return True

    def _replaced(self, others: Sequence[Kept], id: str, jobs: Sequence[text.Job]) -> None:
        """Delete what another one replaces; those of the jobs that wait in them come along."""
        if not others:
            return
        self._bring_along(id, others, [job.id for job in jobs if job.waits])
        try:
            self._delete(others, jobs)
        except Refused as refusal:  # what runs in it is let run
            raise Unreachable(refusal.reason) from None

    def _granted(self, window: Window, listed: Listed, places: Collection[str] = ()) -> str:
        """The id of a new one, in these `places` if any are named (`Occupancy.places`).

        It has its licences, and each slot its share of the memory.

        Refused if it cannot be had.
        """
        queues = [
            (f"{queue.name}@{host.name}", queue.up, host.name)
            for host in listed.hosts
            for queue in host.queues
        ]
        up = [
            instance
            for instance, is_up, host in queues
            if is_up and (not places or instance in places or host in places)
        ]
        if not up:
            raise Refused("no queue is up")
        among = () if len(up) == len(queues) else ("-q", ",".join(up))
        start = () if window.start < listed.taken + _PAST else ("-a", _moment(window.start))
        size = ["-pe", self._environment, str(window.size)]
        try:
            asked = listed.rules.asked(window, listed.hosts)
        except ValueError as error:
            raise Refused(str(error)) from None
        if asked:
            size += ["-l", ",".join(asked)]
        words = ("-N", window.name, "-u", window.user, *start, "-e", _moment(window.end))
        answer = self._run("qrsub", *words, *size, *among)
        if (id := windows.granted(answer.out)) is None:
            said = f"{answer.out}\n{answer.err}".strip()
            raise Refused(_line(said)) if _NO.search(said) else Unreachable(f"qrsub: {said}")
        return id

    def _bring_along(self, id: str, others: Iterable[Kept], waiting: Iterable[str]) -> None:
        """Let those of the jobs that wait in other reservations wait in this one."""
        left = {one.id for one in others}
        within = self._reserved(waiting)
        for some in windows.lists([j for j, o in within.items() if o in left], _IDS_PER_CALL):
            answer = self._run("qalter", "-ar", id, some)
            if answer.code:
                raise Unreachable(f"qalter: {_line(answer.out + answer.err)}")

    def unreserve(self, name: str, listed: Iterable[text.Job]) -> None:
        """Delete it unless jobs are in it; `listed` are the jobs of now."""
        self._delete(self._known(name), listed)

    def find(self, name: str) -> Kept:
        """The one of that name, the newer if one replaces another.

        Refused, to be tried again, if there is none.
        """
        found = self._known(name)
        if not found:
            raise Refused(f"no advance reservation {name}", again=True)
        return found[-1]

    def _delete(self, some: Iterable[Kept], listed: Iterable[text.Job]) -> None:
        ids = {one.id for one in some}
        if not ids:
            return
        jobs = self._reserved(job.id for job in listed)
        if inside := sorted(job for job, within in jobs.items() if within in ids):
            raise Refused(f"jobs are in it: {', '.join(inside)}", again=True)
        for id in sorted(ids):
            answer = self._run("qrdel", id)
            said = f"{answer.out}\n{answer.err}".strip()
            if answer.code and not _UNKNOWN.search(said):
                raise Unreachable(f"qrdel: {_line(said)}")

    def _jobs(self, user: str) -> list[text.Job]:
        return self._read(text.jobs, "qstat", "-xml", "-r", "-u", user)

    def _known(self, name: str) -> list[Kept]:
        return [one for one in self._kept() if (one.name, one.owner) == (name, self._user)]

    def _kept(self) -> list[Kept]:
        ids = self._read(windows.reservation_ids, "qrstat", "-xml", "-u", "*")
        return [
            one
            for some in windows.lists(ids, _IDS_PER_CALL)
            # it says 1 if one of them has ended meanwhile, and tells of the others
            for one in self._read(windows.reservations, "qrstat", "-xml", "-ar", some, fails=True)
        ]

    def _reserved(self, jobs: Iterable[str]) -> dict[str, str]:
        """The reservation of each of these jobs, empty for those that have none."""
        ids = list(jobs)
        found: dict[str, str] = dict.fromkeys(ids, "")
        for some in windows.lists(ids, _IDS_PER_CALL):
            found |= self._read(windows.reserved_jobs, "qstat", "-xml", "-j", some)
        return found

    def _read(
        self, parse: Callable[[str], T], program: str, *arguments: str, fails: bool = False
    ) -> T:
        answer = self._run(program, *arguments)
        if answer.code != 0 and not (fails and answer.out):
            raise Unreachable(f"{program}: {answer.complaint}")
        try:
            return parse(answer.out)
        except (ValueError, KeyError) as error:
            raise Unreachable(f"{program}: the answer cannot be read: {error}") from None


def _moment(seconds: float) -> str:
    """A time as qrsub takes it under TZ=UTC."""
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y%m%d%H%M.%S")


def _line(said: str) -> str:
    return "; ".join(line.strip() for line in said.splitlines() if line.strip())[:500]
