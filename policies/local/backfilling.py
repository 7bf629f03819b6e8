"""Passes over a queue: strict order, first fit, EASY backfilling. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from metasched.policies.local.capacity import Capacity
from metasched.policies.local.queueing import NO_MACHINE, WaitingJob


def start_in_order(queue: Iterable[WaitingJob], capacity: Capacity) -> WaitingJob | None:
    """Start jobs from the head of the queue while they fit; return the first that does not."""
    for job in queue:
        machine = capacity.find_machine(job)
        if machine == NO_MACHINE:
            return job
        capacity.start(job, machine)
    return None


def start_first_fit(queue: Iterable[WaitingJob], capacity: Capacity) -> None:
    """Start every job that fits; reserve nothing for the others."""
    for job in queue:
        if capacity.full:
            return
        machine = capacity.find_machine(job)
        if machine != NO_MACHINE:
            capacity.start(job, machine)


def backfill(
    queue: Iterable[WaitingJob], capacity: Capacity, later_jobs: Iterable[WaitingJob] = ()
) -> WaitingJob | None:
    """Start jobs from the head while they fit, then later jobs that do not delay the head.

    Return the head. A later job starts if it fits now and either ends by the head's shadow time or
    needs no more than the extra resources at that time, which it then uses up. Lifka 1995;
    algorithm of a pass: O(r log r + q) for r running and q queued jobs. `later_jobs` come after the
    queue, and none of them is a head: without a blocked head all that fit start.
    """
    remaining = iter(queue)
    head = start_in_order(remaining, capacity)
    if head is None:
        start_first_fit(later_jobs, capacity)
        return None
    largest = capacity.largest  # in most passes no later job fits: then skip the reservation
    fitting = [job for job in chain(remaining, later_jobs) if job.cpus <= largest]
    if fitting:
        reservation = capacity.reserve(head)
        for job in fitting:
            if job.cpus <= largest and reservation.admit(job):
                largest = capacity.largest
    return head
