"""What a run was worth: the figures of one schedule, per cluster and over time. Seconds.

The usual ones follow Feitelson's definitions, with bounded slowdown at tau = 10 s; the papers'
own are named with their source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from metasched.simulate.engine import Placed, Schedule

TAU = 10.0  # seconds: runs shorter than this count as this long in bounded slowdown


def bounded_slowdown(placed: Placed) -> float:
    ran = placed.end - placed.start
    return max(1.0, (placed.wait + ran) / max(ran, TAU))


def slowdown(placed: Placed) -> float:
    """(wait + run) / run; 1 for a job that took no time and did not wait."""
    ran = placed.end - placed.start
    return placed.flow / ran if ran > 0 else 1.0 + placed.wait


def tardiness(placed: Placed) -> float:
    deadline = placed.job.deadline
    return 0.0 if deadline is None else max(0.0, placed.end - deadline)


def mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    taken = list(values)
    return sum(taken) / len(taken) if taken else 0.0


def summary(schedule: Schedule, policy: str, wall: float) -> dict[str, Any]:
    """The figures of `metasched simulate --json`; `wall` seconds is what the run took."""
    placed, clusters = schedule.placed, schedule.clusters
    span = makespan(placed)
    work: list[float] = [0.0] * len(clusters)
    there: list[list[Placed]] = [[] for _ in clusters]
    for p in placed:
        job = p.request.job
        work[p.cluster] += p.cpus * job.estimated * job.benchmark
        there[p.cluster].append(p)
    total = sum(work)
    of_all = _figures(schedule, sum(c.cpus for c in clusters), span)
    return {
        "policy": policy,
        "jobs": of_all["jobs"],
        "makespan": span,
        **{name: value for name, value in of_all.items() if name not in ("jobs", "longest_wait")},
        "load_share": {
            c.name: part / total if total else 0.0 for c, part in zip(clusters, work, strict=True)
        },
        "wall_seconds": wall,
        "jobs_per_second": len(placed) / wall if wall > 0 else 0.0,
        "longest_wait": of_all["longest_wait"],
        "moves": sum([p.moves for p in placed]),
        "dropped": schedule.dropped,
        "clusters": {
            c.name: of_all
            if len(clusters) == 1
            else _figures(schedule._replace(placed=tuple(own)), c.cpus, span)
            for c, own in zip(clusters, there, strict=True)
        },
    }


def _figures(schedule: Schedule, cpus: int, span: float) -> dict[str, Any]:
    """Those of a whole run or of the jobs of one of its clusters, on so many processors."""
    waits, flows, slowdowns, bounded, late = [], [], [], [], []
    for p in schedule.placed:  # in the words of `slowdown` and the others, but once for each job
        job = p.request.job
        wait, flow, ran = p.start - job.submitted, p.end - job.submitted, p.end - p.start
        waits.append(wait)
        flows.append(flow)
        slowdowns.append(flow / ran if ran > 0 else 1.0 + wait)
        bounded.append(max(1.0, (wait + ran) / (ran if ran > TAU else TAU)))
        if job.deadline is not None:
            late.append(max(0.0, p.end - job.deadline))
    return {
        "jobs": len(waits),
        "mean_wait": mean(waits),
        "mean_flow": mean(flows),
        "mean_slowdown": mean(slowdowns),
        "mean_bounded_slowdown": mean(bounded),
        "utilisation": _utilisation(schedule.placed, cpus, span),
        "missed_deadlines": mean([seconds > 0 for seconds in late]),
        "mean_tardiness": mean(late),
        "licence_usage": licence_usage(schedule),
        "longest_wait": max(waits, default=0.0),
    }


def makespan(placed: Sequence[Placed]) -> float:
    """From the first submission to the last ending."""
    if not placed:
        return 0.0
    return max(p.end for p in placed) - min(p.job.submitted for p in placed)


def _utilisation(placed: Sequence[Placed], cpus: int, span: float) -> float:
    """Processor seconds held, of those that there were between first submission and last end."""
    held = sum((p.end - p.start) * p.cpus for p in placed)
    return held / (cpus * span) if span > 0 else 0.0


class Moment(NamedTuple):
    """From `time` on (seconds): processors in use, jobs that run, jobs that wait, copies of
    licences in use."""

    time: float
    used: float
    running: float
    waiting: float
    licences: float


def over_time(placed: Iterable[Placed]) -> list[Moment]:
    """How full the clusters were, a moment for each time at which something changed.

    Of the jobs of one cluster: those that ran there, wherever else they waited before.
    """
    changes: dict[float, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for p in placed:
        copies = sum(p.job.licences.values())
        changes[p.job.submitted][2] += 1
        for change, sign in ((changes[p.start], 1), (changes[p.end], -1)):
            change[0] += sign * p.cpus
            change[1] += sign
            change[3] += sign * copies
        changes[p.start][2] -= 1
    state = [0, 0, 0, 0]
    moments = []
    for time in sorted(changes):
        state = [before + by for before, by in zip(state, changes[time], strict=True)]
        moments.append(Moment(time, *state))
    return moments


def sampled(moments: Sequence[Moment], first: float, last: float, number: int) -> list[Moment]:
    """Means over time in so many equal parts of `first` to `last` (seconds), at their begin.

    What is before the first moment counts as nothing.
    """
    if last <= first:
        return []
    width = (last - first) / number
    sums = [[0.0] * 4 for _ in range(number)]
    for moment, following in zip(moments, [*moments[1:], None], strict=True):
        end = min(last if following is None else following.time, last)
        time = max(moment.time, first)
        while time < end:
            part = min(int((time - first) / width), number - 1)
            until = end if part == number - 1 else min(end, first + (part + 1) * width)
            if until <= time:  # a float short of the border: the next part has begun
                part, until = part + 1, min(end, first + (part + 2) * width)
            for place, value in enumerate(moment[1:]):
                sums[part][place] += value * (until - time)
            time = until
    return [
        Moment(first + part * width, *(total / width for total in totals))
        for part, totals in enumerate(sums)
    ]


# The papers' own.


def licence_usage(schedule: Schedule) -> float:
    """Mean over licences and time of copies in use / min(copies, asked for). Pasquali 2008, §4.1.

    Asked for: by jobs that wait or run. Times at which nobody asks do not count; each cluster has
    its own copies, unless all share them. 0 without licences.
    """
    shared = {pool.name: pool.total or 0 for pool in schedule.pools}
    asking: dict[tuple[int | None, str], list[Placed]] = defaultdict(list)
    for p in schedule.placed:
        for name in p.job.licences:
            asking[None if name in shared else p.cluster, name].append(p)

    def parts() -> Iterator[float]:
        for (cluster, name), placed in asking.items():
            copies = shared[name] if cluster is None else schedule.clusters[cluster].licences[name]
            yield _usage(placed, copies, lambda p, name=name: p.job.licences[name])  # type: ignore[misc]

    return mean(parts())


def system_usage(schedule: Schedule) -> float:
    """What is busy / min(what there is, asked for by the jobs in the system), over time.

    Pasquali 2008, §4.1: machines, where none is shared between jobs; else processors.
    """
    if all(c.machines and not c.shared for c in schedule.clusters):
        return _usage(schedule.placed, sum(len(c.machines) for c in schedule.clusters), lambda _: 1)
    return _usage(schedule.placed, sum(c.cpus for c in schedule.clusters), lambda p: p.cpus)


def _usage(placed: Sequence[Placed], units: int, size: Callable[[Placed], int]) -> float:
    """The mean over time of used / min(units, asked for), where something is asked for."""
    changes: list[tuple[float, int, int]] = []
    for p in placed:
        amount = size(p)
        changes.append((p.job.submitted, 0, amount))
        changes.append((p.start, amount, 0))
        changes.append((p.end, -amount, -amount))
    changes.sort()
    used = asked = 0
    total = weight = then = 0.0
    for time, in_use, wanted in changes:
        if asked > 0:
            total += (time - then) * used / min(units, asked)
            weight += time - then
        used, asked, then = used + in_use, asked + wanted, time
    return total / weight if weight else 0.0


def slowdown_without_deadline(schedule: Schedule) -> float:
    """Mean slowdown of the jobs that have no deadline. Pasquali 2008, §4.3."""
    return mean(slowdown(p) for p in schedule.placed if p.job.deadline is None)
