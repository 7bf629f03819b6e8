"""Jobs that Slurm could not begin, told by the nodes that it drained meanwhile. Pure.

A node whose prolog fails, or whose spool is full, begins no job. Slurm drains it and cancels the
job, or requeues and holds it. The owner can make a cancelled job look the same, but for the drain:
he cannot drain a node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from metasched.adapters.slurm.listing import (
    QueueLine,
    parse_epoch_time,
    parse_exit_status,
)
from metasched.adapters.slurm.records import EMPTY_VALUES, split_records
from metasched.model.host_lists import (
    UNKNOWN_HOSTS,
    cluster_hosts,
    compress_hosts,
    count_hosts,
)

DRAIN_FIELDS = ("nodelist", "statecomplete", "timestamp", "userlong")
# The reason of a job that could not begin, was requeued, and is held by Slurm itself.
_REQUEUED_HELD = "launch failed requeued held"
_SETTLING = 3  # seconds after a job's end in which the drain of its node may be reported
_MAX_NODES = 50  # that are named of a job
_TOLERANCE = 10  # seconds between the end or the requeueing of a job and the drain of its node


class Drain(NamedTuple):
    """A drained node."""

    time: float  # epoch seconds of the controller's clock
    uid: int  # who drained it


class LaunchFailures:
    """Judges the listed jobs that may not have begun; each once, since drains end."""

    def __init__(self) -> None:
        # by id and end, or requeueing: the nodes that could not begin the job; "": none
        self._verdicts: dict[tuple[str, str], str] = {}

    def unjudged(self, lines: Iterable[QueueLine]) -> list[QueueLine]:
        """Return the doubtful jobs that were not judged; forget those that are not listed."""
        doubtful = [line for line in lines if _is_doubtful(line)]
        listed = map(_key, doubtful)
        self._verdicts = {key: self._verdicts[key] for key in listed if key in self._verdicts}
        return [line for line in doubtful if _key(line) not in self._verdicts]

    def judge(
        self,
        lines: Iterable[QueueLine],
        drains: Mapping[str, Drain],
        accounts: Collection[int | None],
        now: float,
    ) -> None:
        """Judge doubtful jobs by the nodes that Slurm's own `accounts`, user ids, have drained.

        `now`: the controller's clock before `drains` were listed. A job stays doubtful for a
        moment if no node was drained: Slurm may cancel it first.
        """
        for line in lines:
            is_held, end = is_held_by_slurm(line), _moment(line)
            begin = end - _TOLERANCE if is_held else float(line.start)
            near = {
                name: abs(end - drain.time)
                for name, drain in drains.items()
                if drain.uid in accounts and begin <= drain.time <= end + _TOLERANCE
            }
            if is_held:  # it names no nodes
                names = {name for name, distance in near.items() if distance == min(near.values())}
            else:
                names = near.keys() & (cluster_hosts(line.nodes) if near else ())
            if names or now - end >= _SETTLING:
                hosts = compress_hosts(sorted(names)[:_MAX_NODES])
                self._verdicts[_key(line)] = hosts or (UNKNOWN_HOSTS if is_held else "")

    def verdict(self, line: QueueLine) -> str | None:
        """Return the nodes that could not begin a job; "": none is known; None: not known yet."""
        return self._verdicts.get(_key(line)) if _is_doubtful(line) else ""


def is_held_by_slurm(line: QueueLine) -> bool:
    """Return whether Slurm itself has requeued a job that could not begin, and holds it.

    The reason is the controller's own text: neither the owner nor an operator can write it.
    """
    return (
        line.state == "PENDING"
        and line.priority == "0"
        and line.restarts not in ("", "0")
        and line.reason.replace("_", " ") == _REQUEUED_HELD
    )


def _is_doubtful(line: QueueLine) -> bool:
    """Return whether no process of a job may ever have begun. False for unreadable values."""
    try:
        if line.state == "PENDING":  # thousands of lines are, or run
            return is_held_by_slurm(line) and _moment(line) > 0
        return (
            line.state == "CANCELLED"
            and line.nodes not in EMPTY_VALUES
            and parse_exit_status(line.status) == (0, None)
            and count_hosts(line.nodes) > 0
            and 0 < float(line.start) <= _moment(line)
        )
    except ValueError:
        return False


def _key(line: QueueLine) -> tuple[str, str]:
    return line.id, line.submitted if is_held_by_slurm(line) else line.end


def _moment(line: QueueLine) -> float:
    """Return when a doubtful job ended or was requeued, in epoch seconds. Raises ValueError."""
    return parse_epoch_time(_key(line)[1]) or 0.0


def parse_drains(text: str, delimiter: str) -> dict[str, Drain]:
    """Parse the output of sinfo with DRAIN_FIELDS: the drained nodes by name."""
    drains = {}
    for name, state, time, user in split_records(text, delimiter, len(DRAIN_FIELDS))[0]:
        uid = re.search(r"\((\d+)\)$", user)
        if uid and time.isdecimal() and "drain" in re.split(r"\W", state.lower()):
            drains[name] = Drain(float(time), int(uid[1]))
    return drains
