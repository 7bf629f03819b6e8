"""The text of docs/reliability.md: the measurements of a run of `make chaos`."""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

import psutil

from tests.chaos.faults import FAULTS
from tests.chaos.mutants.track_record import page_with, section
from tests.chaos.round import Result
from tests.hostile.report import page_with_attacks

_TITLES = {
    "local": "local clusters",
    "local_site": "local clusters, site mode",
    "postgresql": "local clusters, PostgreSQL",
    "slurm": "Slurm",
    "slurm_site": "Slurm, site mode",
    "gridengine": "Grid Engine",
    "slurm_postgresql": "Slurm, PostgreSQL",
}
_HEAD = """# Reliability

Jobs stream through a daemon while faults strike it: short jobs, arrays, held, cancelled, modified,
rejected and deferred ones. Some ask for licences, depend on others or run again. The payload of
each task appends a line to a file. Afterwards every accepted task must have started exactly once,
or be queued with a reason.

| column | meaning |
|---|---|
| lost | accepted, never started |
| duplicated | started twice |
| wrong | see below |
| resolved | tasks that an operator had to decide (`metasched resolve`) |
| ended | ended by the fault itself, and reported as failed or cancelled by their manager |
| recovery | seconds until the next answer of a daemon, or the start of a new job |

*Wrong* counts

- a job left in a manager
- a counter that a recount contradicts
- a story that replays to another state
- an audit record that is missing, or stored twice
- an end that the payload did not have
- an attempt without its licence lease, or a lease that outlived its attempt
- more licences in use than exist
- a payload that ran under another account than that of its job's owner

A slurmctld that lost its last seconds may list an ended job as running. That is not counted: it
runs nowhere. Rounds run side by side, so recovery is that of a busy host.

"""
_TAIL = """
At a crash point the daemon or a worker changes something outside itself. That is a commit, a
message on a pipe, a new process, a file, or a signal. They are found by wrapping these
primitives (`tests/chaos/points.py`). Daemons die by SIGKILL and are forked from a process that has
loaded their modules. So recovery leaves out the time that Python takes to load them.
"""


def text(results: Sequence[Result], command: str, seed: int) -> str:
    page = _HEAD + "\n".join(lines(results, command, seed)) + "\n" + _TAIL
    return page_with(section(), page_with_attacks(page))


def lines(results: Sequence[Result], command: str, seed: int) -> Iterable[str]:
    """Yield the figures of a run and its table."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    memory = psutil.virtual_memory().total / 2**30
    yield f"`{command}` on {day}, seed {seed}: {platform.machine()}, {psutil.cpu_count()} cores,"
    yield f"{memory:.0f} GiB, Linux, Python {platform.python_version()};"
    minutes = sum(result.seconds for result in results) / 60
    kills = {m: sum(r.kills for r in results if r.manager == m) for m in _TITLES}
    summary = ", ".join(
        f"{kills[manager]} over {title}" for manager, title in _TITLES.items() if kills[manager]
    )
    yield f"{minutes:.0f} minutes of rounds, side by side; {sum(r.jobs for r in results)} tasks."
    yield f"Kills of a daemon or worker: {summary}."
    points = {m: {p for r in results if r.manager == m for p in r.points} for m in _TITLES}
    died = ", ".join(f"{len(points[manager])} over {title}" for manager, title in _TITLES.items())
    yield f"Crash points at which something died, or was stopped: {died}."
    done, whole = sum(r.strikes for r in results), sum(fault.times for fault in FAULTS)
    if done < whole:
        yield f"This run was ended early: {done} of the {whole} trials of a whole one were made."
    yield ""
    yield (
        "| manager | fault | trials | tasks | lost | duplicated | wrong | resolved | ended "
        "| recovery: median, worst |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    grouped: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        grouped[result.manager, result.fault].append(result)
    for fault in FAULTS:
        if outcomes := grouped.get((fault.manager, fault.name)):
            yield _row(_TITLES[fault.manager], fault.name, outcomes)
    yield _row("all", "", list(results))


def _row(manager: str, fault: str, results: Sequence[Result]) -> str:
    seconds = [second for result in results for second in result.recoveries]
    recovery = f"{median(seconds):.2f} s, {max(seconds):.2f} s" if seconds and fault else ""
    counts = [
        sum(getattr(result, name) for result in results)
        for name in ("strikes", "jobs", "lost", "duplicated", "wrong", "resolved", "ended")
    ]
    return f"| {manager} | {fault} | {' | '.join(map(str, counts))} | {recovery} |"
