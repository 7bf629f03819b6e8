"""Which waiting jobs of one cluster start now: FCFS and EASY over counted resources. Pure.

A caller (the `local` adapter, the simulator) gives the queue in its own order, what runs and what
is free; a policy answers with the jobs to start. It may look at the queue in another order than
the caller's, so a policy that ranks jobs itself has the same interface.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

OVERRUN = 1.0  # seconds from now until a job past its estimate is taken to end


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits: processors, estimated seconds, and how much it needs of what else is
    counted (`counts`: "memory" in MiB, "gpu", ...)."""

    id: int
    cpus: int
    estimated: float
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """A job that runs: `end` is its start + its estimate, in the seconds of the caller's clock."""

    id: int
    cpus: int
    end: float
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Free:
    """What no job holds. A resource that `counts` does not name is unlimited."""

    cpus: int
    counts: Mapping[str, int] = field(default_factory=dict)


class Policy(Protocol):
    """The one question that is asked of a local policy."""

    def starts(
        self, now: float, queue: Sequence[Waiting], running: Iterable[Running], free: Free
    ) -> list[int]:
        """The ids of the jobs of `queue` to start at `now`, together never more than `free`."""
        ...


def earliest_fit(
    need: int, free: int, releases: Iterable[tuple[float, int]], now: float
) -> tuple[float, int]:
    """(shadow time, extra): when `need` processors are free, and how many more are free then.

    `releases` holds (end, processors) of what runs, in any order; all that end at the shadow time
    are counted, and what should have ended by `now` is taken to end in `OVERRUN` seconds.
    (inf, 0) if it never fits; (now, what is left over) if it fits now. O(n log n) in `releases`.
    EASY's reservation for the head of the queue: Lifka 1995; Mu'alem and Feitelson 2001, §3.
    """
    if need <= free:
        return now, free - need
    shadow = math.inf
    for end, amount in sorted(
        (end if end > now else now + OVERRUN, amount) for end, amount in releases
    ):
        if end > shadow:
            break
        free += amount
        if free >= need:
            shadow = end
    return (shadow, free - need) if shadow < math.inf else (shadow, 0)


class _Room:
    """What is still free while one pass hands it out."""

    __slots__ = ("counts", "cpus")

    def __init__(self, cpus: int, counts: Mapping[str, int]) -> None:
        self.cpus, self.counts = cpus, dict(counts)

    def fits(self, job: Waiting) -> bool:
        if job.cpus > self.cpus:
            return False
        counts = self.counts
        return not job.counts or all(
            amount <= counts.get(name, amount) for name, amount in job.counts.items()
        )

    def take(self, job: Waiting) -> None:
        self.cpus -= job.cpus
        for name, amount in job.counts.items():
            if name in self.counts:
                self.counts[name] -= amount


def _leading(queue: Sequence[Waiting], room: _Room) -> int:
    """Hand `room` to the jobs at the head of the queue; how many got theirs before one did not."""
    for place, job in enumerate(queue):
        if not room.fits(job):
            return place
        room.take(job)
    return len(queue)


class FCFS:
    """First come, first served: nothing overtakes a job that does not fit. O(started)."""

    name: ClassVar[str] = "fcfs"

    def starts(
        self, now: float, queue: Sequence[Waiting], running: Iterable[Running], free: Free
    ) -> list[int]:
        return [job.id for job in queue[: _leading(queue, _Room(free.cpus, free.counts))]]


class EASY:
    """FCFS with backfilling: a later job may start if it does not delay the blocked head.

    It starts if it fits now and either ends by the head's shadow time or needs no more than what
    is left over at that time, which it then uses up. With several resources the shadow is the
    earliest time at which all of the head's needs fit, and only resources that the head needs can
    be short then. O(r log r + q) for r running and q waiting jobs. Lifka 1995.
    """

    name: ClassVar[str] = "easy"

    def starts(
        self, now: float, queue: Sequence[Waiting], running: Iterable[Running], free: Free
    ) -> list[int]:
        room = _Room(free.cpus, free.counts)
        place = _leading(queue, room)
        chosen = [job.id for job in queue[:place]]
        if place + 1 >= len(queue) or room.cpus == 0:
            return chosen
        begun = [
            Running(job.id, job.cpus, now + job.estimated, job.counts) for job in queue[:place]
        ]
        shadow, extra = _reservation(queue[place], room, [*running, *begun], now)
        for job in queue[place + 1 :]:
            if not room.fits(job):
                continue
            if now + job.estimated > shadow:
                if not extra.fits(job):
                    continue
                extra.take(job)
            room.take(job)
            chosen.append(job.id)
            if room.cpus == 0:
                break
        return chosen


def _reservation(
    head: Waiting, room: _Room, running: Sequence[Running], now: float
) -> tuple[float, _Room]:
    """The head's shadow time and what of its resources is left over then."""
    shadow, extra = earliest_fit(head.cpus, room.cpus, ((r.end, r.cpus) for r in running), now)
    scarce = {name: need for name, need in head.counts.items() if name in room.counts}
    if not scarce:
        return shadow, _Room(extra, {})
    releases = {
        name: [(r.end, r.counts[name]) for r in running if name in r.counts] for name in scarce
    }
    shadow = max(
        shadow,
        *(earliest_fit(n, room.counts[r], releases[r], now)[0] for r, n in scarce.items()),
    )

    def left(need: int, free: int, amounts: Iterable[tuple[float, int]]) -> int:
        return (
            free
            - need
            + sum(a for end, a in amounts if (end if end > now else now + OVERRUN) <= shadow)
        )

    return shadow, _Room(
        left(head.cpus, room.cpus, ((r.end, r.cpus) for r in running)),
        {name: left(need, room.counts[name], releases[name]) for name, need in scarce.items()},
    )
