"""Reservations and jobs as boxes in time and processors, for charts. Times are epoch seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

OPEN_STATES = ("requested", "confirmed", "bound", "active")
ReservationRow = Mapping[str, Any]
Box = tuple[float, float, int, int]  # start, end, lowest processor, processors


class ProcessorShortage(NamedTuple):
    """When more processors are promised or used than a cluster has."""

    start: float
    end: float
    cpus: int  # the most at once


def open_rows(rows: Sequence[ReservationRow]) -> list[ReservationRow]:
    """Return the open rows of `reservations --json`, ordered by cluster and start."""
    return sorted(
        (row for row in rows if row["state"] in OPEN_STATES),
        key=lambda row: (row["cluster"], row["start"], row["reservation"]),
    )


def stack_boxes(rows: Sequence[ReservationRow]) -> list[Box]:
    """Arrange rows of a cluster in boxes without overlap, each as low as possible, in order."""
    boxes: list[Box] = []
    for row in rows:
        start, end = epoch_seconds(row["start"]), epoch_seconds(row["end"])
        size = int(row["size"])
        overlapping = sorted(
            (low, low + height)
            for begin, stop, low, height in boxes
            if begin < end and start < stop
        )
        lowest = 0
        for low, high in overlapping:
            if lowest + size <= low:
                break
            lowest = max(lowest, high)
        boxes.append((start, end, lowest, size))
    return boxes


def shortages(boxes: Sequence[Box], cpus: int) -> list[ProcessorShortage]:
    """Return the times when boxes need more than `cpus` processors together, in order."""
    changes: dict[float, int] = {}
    for start, end, _, size in boxes:
        changes[start] = changes.get(start, 0) + size
        changes[end] = changes.get(end, 0) - size
    periods: list[ProcessorShortage] = []
    used, since, most = 0, None, 0
    for moment in sorted(changes):
        used += changes[moment]
        if used > cpus:
            since, most = (moment if since is None else since), max(most, used)
        elif since is not None:
            periods.append(ProcessorShortage(since, moment, most))
            since, most = None, 0
    return periods


def epoch_seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
