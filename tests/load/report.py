"""The result of a load: docs/load.json, and the page that is rendered from it.

`python -m tests.load.report` renders the page from the stored result.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec
import psutil

from metasched.version import COMMIT
from tests.load.monitor import Sample
from tests.load.run import Result, UserStarts, warm_thirds
from tests.load.site import Size

ROOT = Path(__file__).parents[2]
PAGE, STORE = ROOT / "docs/load.md", ROOT / "docs/load.json"
ROWS = 12  # of samples, on the page
_HEAD = """\
# Load test

`make load` writes this page. Accounts that exist only for the run submit arrays, batches and single
jobs in site mode, and issue commands meanwhile. The clusters are real: Slurm, Grid Engine and local
ones. Faults strike. What has not started at the end is cancelled by its owner.

The verdict is on invariants. Every accepted task began once, or was cancelled first. A job that a
killed slurmctld starts again is counted apart: metasched submitted it once. The recorded events
replay to the stored state. Memory, open files and the write-ahead log do not grow after the last
submission. While all compete, no user has less than three quarters of an equal share of the
starts.
Latencies are reported, not judged. Managers and payloads run at a lower priority of the processor
than the daemon and the users, since they have hosts of their own on a real site.
"""


# measured by tests/load/model.py
_FIRST_FILLING = """\
Who submits a large array while the queues are empty fills them alone. With seed 1 that is u10: 794
tasks of no length arrive 2.5 s after the start, when 130 tasks of three others are there. A model
of this load has the same accounts, draws and core, but no managers (`tests/load/model.py`). There
u10 has 477 starts in the first minute, the others 26 to 174. In the next three minutes u10 has 294
and the median of all is 292. So its lead is one filling of the queues, and does not grow."""


class Call(msgspec.Struct, frozen=True):
    """Latencies of a kind of call."""

    name: str
    calls: int
    median: float  # seconds
    worst: float  # seconds
    user_medians: tuple[float, float]  # seconds: the fastest and the slowest user
    user_worsts: tuple[float, float]  # seconds: the least and the largest worst call of a user


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A stored result."""

    date: str  # ISO, UTC
    commit: str
    machine: str
    load: float  # mean number of runnable processes in the last minute of the run
    size: Size
    seed: str
    seconds: float  # of the load
    accepted: int  # tasks
    started: int
    cancelled: int  # tasks that never began
    resolved: int  # by an operator
    ended_by_fault: int
    restarted: int = 0  # tasks whose job a killed slurmctld started again
    outages: int  # calls
    submitted_after: float  # seconds; 0: the submissions did not end
    recoveries: list[tuple[str, float]]  # fault, seconds
    calls: list[Call]
    users: list[UserStarts]
    samples: list[Sample]
    violations: list[str]
    note: str = ""  # of whoever started the run, on its circumstances


def stored(result: Result, note: str = "") -> Stored:
    """Return a result with its conditions."""
    return Stored(
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        commit=COMMIT or "unknown",
        machine=f"{platform.machine()}, {psutil.cpu_count()} processors, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB, Python {platform.python_version()}",
        load=round(os.getloadavg()[0], 1),
        size=result.size,
        seed=result.seed,
        seconds=result.seconds,
        accepted=result.accepted,
        started=result.started,
        cancelled=result.cancelled,
        resolved=result.resolved,
        ended_by_fault=result.ended_by_fault,
        restarted=result.restarted,
        outages=result.outages,
        submitted_after=result.submitted_after,
        recoveries=result.recoveries,
        calls=[_call(name, of_users) for name, of_users in sorted(result.latencies.items())],
        users=result.users,
        samples=result.samples,
        violations=result.violations,
        note=note,
    )


def _call(name: str, of_users: Sequence[Sequence[float]]) -> Call:
    seconds = [second for of_user in of_users for second in of_user]
    medians, worsts = [median(of_user) for of_user in of_users], [max(of) for of in of_users]
    return Call(
        name,
        len(seconds),
        round(median(seconds), 4),
        max(seconds),
        (round(min(medians), 4), round(max(medians), 4)),
        (min(worsts), max(worsts)),
    )


def store(result: Stored) -> None:
    """Store a result in the place of the earlier one, and render the page."""
    STORE.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    PAGE.write_text(page(result))


def page(result: Stored) -> str:
    """Return the page of a result."""
    return f"{_HEAD}\n" + "\n".join(lines(result)) + "\n"


def lines(result: Stored) -> Iterator[str]:
    """Yield the figures of a result and its tables."""
    size = result.size
    yield f"Measured on {result.date} at {result.commit} ({result.machine}, load {result.load:g})."
    if result.note:
        yield result.note
    yield ""
    yield f"- {size.accounts} accounts, and another that submits single jobs."
    yield f"- {size.slurm_clusters} Slurm clusters of {size.nodes} nodes with 8 processors each."
    yield f"- A Grid Engine cell of {size.slots} slots."
    yield f"- {size.local_clusters} local clusters of 8 processors each."
    yield (
        f"- About {size.queue_depth} unstarted tasks wait in each cluster (`queue_depth`); the "
        "rest waits in metasched, where users take turns."
    )
    yield (
        f"- {result.accepted:,} tasks accepted, {result.started:,} started, "
        f"{result.cancelled:,} cancelled before they began."
    )
    yield (
        f"- {result.seconds / 60:.1f} minutes of load; the last task was accepted after "
        f"{result.submitted_after / 60:.1f} minutes."
    )
    yield (
        f"- {result.resolved} unknown tasks resolved by an operator, {result.ended_by_fault} ended "
        f"by a fault and recorded so, {result.outages} calls without an answer."
    )
    if result.restarted:
        yield (
            f"- {result.restarted} jobs that the killed slurmctld started again, since it had not "
            "saved their start. metasched had submitted each of them once."
        )
    violations = "; ".join(result.violations) or "none"
    yield f"- Violations: {violations}."
    if warm_thirds(result.samples, result.submitted_after) is None:
        yield "- Growth was not judged: too few samples were taken after the last submission."
    if result.recoveries:
        yield "\n## Faults\n"
        yield "| fault | all clusters up again after |"
        yield "|---|--:|"
        yield from (f"| {name} | {seconds:.1f} s |" for name, seconds in result.recoveries)
    yield "\n## Calls\n"
    yield "Medians and worst calls of the users: of the best and of the worst user.\n"
    yield "| call | calls | median | worst | medians of users | worst calls of users |"
    yield "|---|--:|--:|--:|--:|--:|"
    for call in result.calls:
        yield (
            f"| {call.name} | {call.calls} | {_seconds(call.median)} | {_seconds(call.worst)} "
            f"| {_range(call.user_medians)} | {_range(call.user_worsts)} |"
        )
    yield "\n## Starts of each user\n"
    yield "Until all that had not started was cancelled; *waiting* had not started then."
    yield "*Competing* are starts since all tasks were accepted. These are judged; if they were not"
    yield "counted, all starts.\n"
    yield f"{_FIRST_FILLING}\n"
    yield "| user | accepted | started | competing | waiting |"
    yield "|---|--:|--:|--:|--:|"
    for user in result.users:
        label = f"{user.label} (single jobs)" if user.single else user.label
        competing = "not counted" if user.competing is None else f"{user.competing:,}"
        yield (
            f"| {label} | {user.accepted:,} | {user.started:,} | {competing} | {user.waiting:,} |"
        )
    yield "\n## Memory and files\n"
    yield "PSS in MiB; *worker* is the largest. CPU is that of the daemon since its last start.\n"
    yield "| minute | daemon | worker | files | database | WAL | CPU | starts |"
    yield "|--:|--:|--:|--:|--:|--:|--:|--:|"
    step = max(1, len(result.samples) // ROWS)
    for sample in result.samples[::step]:
        yield (
            f"| {sample.seconds / 60:.1f} | {sample.daemon_memory:.0f} "
            f"| {sample.worker_memory:.0f} | {sample.daemon_files}, {sample.worker_files} "
            f"| {sample.database:.0f} | {sample.wal:.1f} | {sample.processor:.0f} s "
            f"| {sample.started:,} |"
        )


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _range(pair: tuple[float, float]) -> str:
    return f"{_seconds(pair[0])} to {_seconds(pair[1])}"


if __name__ == "__main__":
    PAGE.write_text(page(msgspec.json.decode(STORE.read_bytes(), type=Stored)))
