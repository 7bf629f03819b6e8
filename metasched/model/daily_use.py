"""Use of ended tasks, summed up by day: sums, waits as a histogram, quantiles. Pure.

Durations are seconds, amounts processor-seconds, node-seconds and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from metasched.model.host_lists import count_nodes
from metasched.model.job import Job, State

SHORTEST_RUN = 10.0  # seconds; the bound of the bounded slowdown (Feitelson 2001)
# Waits are counted in ranges, each longer than the last by this factor, so that a quantile
# is wrong by 2.5% at most. Range 0 is up to a second.
RANGE_FACTOR = 1.05
_LOG_FACTOR = math.log(RANGE_FACTOR)
MAX_NAME = 100  # characters of a name in a key
OTHER = "(other)"  # stands for further accounts of a user and day


class UseKey(NamedTuple):
    """Whose use on which day."""

    day: int  # 20260331, in the time zone of the daemon's host
    cluster: str  # "": the task never reached a cluster
    user: str
    account: str  # "": none was named
    user_group: str  # "": not recorded
    user_class: str

    @classmethod
    def of(cls, job: Job, cluster: str, day: int) -> UseKey:
        """Return the key of the use of a job's task; names of any length are cut."""
        names = (cluster, job.user, job.account or "", job.group, job.user_class)
        return cls(day, *(name[:MAX_NAME] for name in names))


class UseSums(msgspec.Struct):
    """Sums over runs: from the start of a task on a cluster to its end there."""

    jobs: int = 0  # runs that ended
    completed: int = 0
    failed: int = 0  # also for want of memory, and by the loss of a node or to another job
    timed_out: int = 0
    cancelled: int = 0
    elapsed: float = 0.0
    cpu_allocated: float = 0.0
    cpu_used: float = 0.0  # of runs whose manager reported it
    cpu_measured: float = 0.0  # `cpu_allocated` of these runs
    node_seconds: float = 0.0
    gpu_seconds: float = 0.0
    cpu_outside: float = 0.0  # allocated to jobs that metasched did not send, as far as reported
    starts: int = 0  # first starts of tasks; later starts have no wait
    wait: float = 0.0
    max_wait: float = 0.0
    slowdown: float = 0.0  # sum of the bounded slowdowns of `starts`
    deadlines: int = 0  # tasks with a deadline that ended, also without a start
    met: int = 0  # completed by their deadline
    missed: int = 0  # ended after it
    lateness: float = 0.0  # of `missed`
    max_lateness: float = 0.0
    waits: dict[int, int] = msgspec.field(default_factory=dict)  # `starts` by range of the wait

    def add(self, other: UseSums) -> None:
        """Add other sums; of figures named `max_`, the larger remains."""
        for name in NUMBERS:
            if addend := getattr(other, name):
                mine = getattr(self, name)
                setattr(self, name, max(mine, addend) if name in _LARGEST else mine + addend)
        for range_number, count in other.waits.items():
            self.waits[range_number] = self.waits.get(range_number, 0) + count


NUMBERS = tuple(name for name in UseSums.__struct_fields__ if name != "waits")
_LARGEST = frozenset(name for name in NUMBERS if name.startswith("max_"))


def count_run(
    job: Job,
    *,
    state: State,
    started: float,
    ended: float,
    node: str,
    cpu_seconds: float | None,
    first_start: bool,
    elapsed: float | None = None,
    cpus: int | None = None,
) -> UseSums:
    """Count a run; `job` has the generic resources of its attempt alone.

    `first_start`: its wait counts. `elapsed` and `cpus` are as accounting reports them, None: by
    start and end, and as requested.
    """
    run = max(ended - started, 0.0)
    seconds = run if elapsed is None else elapsed
    allocated = seconds * (job.cpus if cpus is None else cpus)
    nodes = count_nodes(node)
    sums = UseSums(
        jobs=1,
        elapsed=seconds,
        cpu_allocated=allocated,
        node_seconds=seconds * nodes,
        gpu_seconds=seconds * _gpus_per_node(job.gres) * (nodes or job.nodes or 1),
    )
    match state:
        case State.COMPLETED:
            sums.completed = 1
        case State.TIMEOUT:
            sums.timed_out = 1
        case State.CANCELLED:
            sums.cancelled = 1
        case _:
            sums.failed = 1
    if cpu_seconds is not None:
        sums.cpu_used, sums.cpu_measured = cpu_seconds, allocated
    if first_start:
        wait = max(started - max(job.submitted, job.begin or 0.0), 0.0)
        sums.starts, sums.wait, sums.max_wait = 1, wait, wait
        sums.slowdown = max((wait + run) / max(run, SHORTEST_RUN), 1.0)
        sums.waits = {wait_range(wait): 1}
    return sums


def correct_run(before: UseSums, after: UseSums) -> UseSums:
    """Return the correction of a run once accounting has reported more; waits stay."""
    return UseSums(
        elapsed=after.elapsed - before.elapsed,
        cpu_allocated=after.cpu_allocated - before.cpu_allocated,
        cpu_used=after.cpu_used - before.cpu_used,
        cpu_measured=after.cpu_measured - before.cpu_measured,
        node_seconds=after.node_seconds - before.node_seconds,
        gpu_seconds=after.gpu_seconds - before.gpu_seconds,
    )


def count_deadline(deadline: float, state: State, ended: float) -> UseSums:
    """Count the end of a task that has a deadline (epoch seconds)."""
    late = max(ended - deadline, 0.0)
    return UseSums(
        deadlines=1,
        met=int(late == 0.0 and state is State.COMPLETED),
        missed=int(late > 0.0),
        lateness=late,
        max_lateness=late,
    )


def _gpus_per_node(gres: Mapping[str, int]) -> int:
    return sum(n for name, n in gres.items() if name.partition(":")[0].lower() == "gpu")


# Quantiles


def wait_range(wait: float) -> int:
    """Return the number of the range that a wait belongs to."""
    return 0 if wait <= 1.0 else 1 + int(math.log(wait) / _LOG_FACTOR)


def quantile(waits: Mapping[int, int], part: float) -> float | None:
    """Return a wait that `part` (0 to 1) of the counted waits do not exceed; None without any."""
    total = sum(waits.values())
    passed = 0
    for number in sorted(waits):
        passed += waits[number]
        if passed >= part * total:
            return 0.0 if number == 0 else RANGE_FACTOR ** (number - 0.5)  # middle of the range
    return None


def merge(sums: Iterable[UseSums]) -> UseSums:
    """Return the total of sums."""
    total = UseSums()
    for part in sums:
        total.add(part)
    return total
