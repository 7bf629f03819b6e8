"""CARTS with many slots, compared with a sorted list and a SortedDict in the same run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from statistics import median
from time import process_time
from typing import Protocol

import pytest
from sortedcontainers import SortedDict

from metasched.carts.carts import Carts
from tests.bench.conftest import Record

CAPACITY, BOOKED = 128, 0.6
TILE = 10_000
SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUERIES = 200
Window = tuple[float, float, int]
LENGTHS: dict[str, Callable[[Random], tuple[int, float]]] = {
    # log-normal sizes up to 64; median length 50 minutes, at most two days
    "mixed": lambda draw: (
        min(64, max(1, int(draw.lognormvariate(1.5, 1)))),
        min(172_800.0, draw.lognormvariate(8, 1.3)),
    ),
    # so short that 96 processors are rarely free for an hour
    "short": lambda draw: (draw.randint(1, 16), draw.uniform(300, 3600)),
}


class Slots(Protocol):
    def earliest_start(self, size: int, duration: float, ready: float) -> float | None: ...
    def reserve(self, start: float, end: float, size: int) -> None: ...


def booked(distribution: str, count: int, draw: Random) -> tuple[list[Window], float]:
    """Return `count` reservations, and the seconds over which they are spread.

    Beyond ten thousand the pattern repeats, so that density does not depend on the count.
    """
    tile_size = min(count, TILE)
    lengths = [LENGTHS[distribution](draw) for _ in range(tile_size)]
    span = sum(size * length for size, length in lengths) / (BOOKED * CAPACITY)
    carts, tile = Carts(CAPACITY), list[Window]()
    for size, length in lengths:
        start = carts.earliest_start(size, length, draw.uniform(0, span))
        assert start is not None
        carts.reserve(start, start + length, size)
        tile.append((start, start + length, size))
    long = max(end for _, end, _ in tile)
    repeats = count // tile_size
    windows = [(s + n * long, e + n * long, size) for n in range(repeats) for s, e, size in tile]
    return windows, long * repeats


class SortedList:
    """The slots in two lists: bisect to the first slot, then a linear scan."""

    def __init__(self, slots: list[tuple[float, int]]) -> None:
        self.times, self.amounts = [t for t, _ in slots], [m for _, m in slots]

    def earliest_start(self, size: int, duration: float, ready: float) -> float:
        times, amounts = self.times, self.amounts
        start = ready
        for index in range(bisect_right(times, ready) - 1, len(times)):
            if amounts[index] < size:
                start = times[index + 1]
            elif index + 1 == len(times) or times[index + 1] >= start + duration:
                return start
        raise AssertionError("the last slot is free")

    def reserve(self, start: float, end: float, size: int) -> None:
        for time in (start, end):
            index = bisect_left(self.times, time)
            if index == len(self.times) or self.times[index] != time:
                self.times.insert(index, time)
                self.amounts.insert(index, self.amounts[index - 1])
        for index in range(bisect_left(self.times, start), bisect_left(self.times, end)):
            self.amounts[index] -= size


class Containers:
    """The slots in a SortedDict of sortedcontainers."""

    def __init__(self, slots: list[tuple[float, int]]) -> None:
        self.slots = SortedDict(slots)

    def earliest_start(self, size: int, duration: float, ready: float) -> float:
        keys = self.slots.keys()
        start, short = ready, False
        for time in self.slots.irange(keys[self.slots.bisect_right(ready) - 1]):
            if time >= start + duration and not short:
                return start
            short, blocked = self.slots[time] < size, short
            if blocked and not short:
                start = max(time, ready)
        return start

    def reserve(self, start: float, end: float, size: int) -> None:
        for time in (start, end):
            if time not in self.slots:
                self.slots[time] = self.slots.peekitem(self.slots.bisect_right(time) - 1)[1]
        for time in list(self.slots.irange(start, end, (True, False))):
            self.slots[time] -= size


def microseconds(calls: Sequence[Callable[[], object]]) -> float:
    """Return the processor time of a call, median over five parts."""
    parts = []
    for part in range(5):
        own = calls[part::5]
        begun = process_time()
        for call in own:
            call()
        parts.append((process_time() - begun) / len(own) * 1e6)
    return median(parts)


def measure(record: Record, distribution: str, count: int) -> None:
    draw = Random(count)
    windows, span = booked(distribution, count, draw)
    carts = Carts.of(CAPACITY, windows)
    structures: dict[str, Slots] = {
        "CARTS": carts,
        "bisect": SortedList(carts.slots()),
        "SortedDict": Containers(carts.slots()),
    }
    ready = [draw.uniform(0, span) for _ in range(QUERIES)]
    small = [(draw.randint(1, 16), draw.uniform(60, 7200), time) for time in ready]
    large = [(96, 3600.0, time) for time in ready]
    begun = process_time()
    carts.earliest_start(*large[0])
    first = (process_time() - begun) * 1e6
    trial, inserts = Carts.of(CAPACITY, windows), list[Window]()
    for size, length, time in small:
        start = trial.earliest_start(size, length, time)
        assert start is not None
        trial.reserve(start, start + length, size)
        inserts.append((start, start + length, size))
    answers, spent = {}, dict[str, dict[str, float]]()
    for name, structure in structures.items():
        answers[name] = [structure.earliest_start(*request) for request in small + large]
        spent[name] = {
            "request of 1-16": microseconds([partial(structure.earliest_start, *a) for a in small]),
            "96 for an hour": microseconds([partial(structure.earliest_start, *a) for a in large]),
            "insert": microseconds([partial(structure.reserve, *w) for w in inserts]),
        }
    assert answers["CARTS"] == answers["bisect"] == answers["SortedDict"]
    changed = 0.0
    for large_request, (start, end, size) in zip(large, inserts, strict=True):
        carts.release(start, end, size)
        begun = process_time()
        carts.earliest_start(*large_request)
        changed += process_time() - begun
    of = f"{distribution}, {count:,}: "
    for call, figure in spent.pop("CARTS").items():
        peers = {name: calls[call] for name, calls in spent.items()}
        record(of + call, figure, "µs of CPU", peers=peers)
    record(of + "the first search for 96", first, "µs of CPU")
    record(of + "96 after each change", changed / len(large) * 1e6, "µs of CPU")


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("distribution", LENGTHS)
def test_requests_and_inserts_at_size(distribution: str, count: int, record: Record) -> None:
    measure(record, distribution, count)
