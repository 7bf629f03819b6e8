"""Passes over a queue: strict order, first fit, backfilling."""

from __future__ import annotations

from collections.abc import Iterable

from metasched.policies.local.capacity import Room
from metasched.policies.local.queueing import NOWHERE, Waiting


def strict(queue: Iterable[Waiting], room: Room) -> Waiting | None:
    """Start the jobs at the head of the queue while they fit; the first that does not, if any."""
    for job in queue:
        machine = room.place(job)
        if machine == NOWHERE:
            return job
        room.start(job, machine)
    return None


def first_fit(queue: Iterable[Waiting], room: Room) -> None:
    """Start every job that fits; nothing is kept for those that do not."""
    for job in queue:
        if room.full:
            return
        machine = room.place(job)
        if machine != NOWHERE:
            room.start(job, machine)


def backfill(queue: Iterable[Waiting], room: Room) -> Waiting | None:
    """Start what fits at the head, then what does not delay the first that did not fit: that one.

    A later job starts if it fits now and either ends by the head's shadow time or needs no more
    than is left over at that time, which it then uses up. Lifka 1995; algorithm of one pass:
    O(r log r + q) for r running and q waiting jobs.
    """
    rest = iter(queue)
    head = strict(rest, room)
    largest = room.largest  # most need more, in most passes all: then no promise is needed
    small = [job for job in rest if job.cpus <= largest]
    if head is not None and small:
        promise = room.reserve(head)
        for job in small:
            if job.cpus <= largest and promise.admit(job):
                largest = room.largest
    return head
