"""The published experiments with advance reservations, run again: Kurowski et al. 2011, section 5.

Tasks of the SDSC SP2 trace on two providers of 64 processors; a seed draws which of them are
reservations, the same ones for all strategies of a row. What the paper leaves open is said in
docs/experiments.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import NamedTuple, get_args

from metasched.experiments.harness import Experiment, trace
from metasched.experiments.pasquali2008 import PUSH, flow, utilisation
from metasched.experiments.reserved_providers import Binding, schedule
from metasched.model.reservation_request import Request as Reservation
from metasched.policies.reservation_choice import Chooser, MinimumCompletionTime, ResourcePriority
from metasched.simulate import metrics
from metasched.simulate.cluster_specs import parse
from metasched.simulate.engine import Schedule
from metasched.simulate.settings import Settings, simulate
from metasched.simulate.synthetic import Grid

_LOG, _PROCESSORS, _PROVIDERS = "SDSC-SP2.swf.gz", "128", "2x64"
_SET = "68000-69000"
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)


@cache
def _waits(policy: str) -> Mapping[int, float]:
    """Seconds that each task of the log waits under a local policy: the trace tells none."""
    run = simulate(trace(_LOG), parse(_PROCESSORS), Settings(policy=policy, meta=PUSH))
    return {placed.request.number: placed.wait for placed in run.placed}


class ReservedCase(NamedTuple):
    """A row and a strategy (`column`): that share of the tasks of a set are reservations.

    They may start from submission + `window[0]` x wait to submission + `window[1]` x wait, the
    wait being the task's under `waits`, for their run time. `period`, `reserved_first`,
    `largest_first` and `binding` are those of `reserved.schedule`.
    """

    row: str
    column: str
    tasks: str
    share: float
    published: Mapping[str, float] = {}
    window: tuple[float, float] = (1.0, 1.0)
    waits: str = "easy"
    period: float = 0.0
    reserved_first: bool = True
    largest_first: bool = False
    binding: Binding = "late"

    def grid(self, seed: int) -> Grid:
        """The tasks, cut to the size of a provider; the window of a reservation is [begin,
        deadline] of its job."""
        workload, clusters = trace(f"S1-jobs-{self.tasks}.swf"), parse(_PROVIDERS)
        size, waits = clusters[0].cpus, _waits(self.waits)
        number = round(self.share * len(workload.requests))
        drawn = set(Random(seed).sample(range(len(workload.requests)), number))
        requests = []
        for place, request in enumerate(workload.requests):
            job = replace(request.job, cpus=min(request.job.cpus, size))
            ran = max(request.ran, 1.0)
            if place in drawn:
                begin, last = (job.submitted + of * waits[request.number] for of in self.window)
                job = replace(job, begin=begin, deadline=last + ran)
            requests.append(request._replace(job=job, ran=ran))
        return Grid(replace(workload, requests=tuple(requests)), clusters)

    def play(self, seed: int) -> Schedule:
        """One run; ties between providers are drawn by the same seed."""
        workload, clusters = self.grid(seed)
        windows = {
            job.id: Reservation.flexible(job.cpus, ran, job.begin, job.deadline)
            for job, ran, *_ in workload.requests
            if job.begin is not None and job.deadline is not None
        }
        every = tuple(range(len(clusters)))
        batch, reserved = (every[1:], every[:1]) if self.column == "static" else (every, every)
        chooser: Chooser = MinimumCompletionTime(seed)
        if self.column == "priority":
            chooser = ResourcePriority([cluster.name for cluster in clusters])
        strategy = (chooser, batch, reserved, self.period, self.reserved_first, self.largest_first)
        return schedule(workload, clusters, windows, *strategy, self.binding)


def _tardiness(run: Schedule) -> float:
    """D of Kurowski et al.: seconds past the window, mean over reservations only."""
    return metrics.mean(metrics.tardiness(p) for p in run.placed if p.job.deadline is not None)


def _batch_flow(run: Schedule) -> float:
    return metrics.mean(p.flow for p in run.placed if p.job.deadline is None)


def _delayed(run: Schedule) -> float:
    """The share of reservations that did not fit into their windows."""
    return metrics.mean(
        float(metrics.tardiness(p) > 0) for p in run.placed if p.job.deadline is not None
    )


_TABLE_5 = {  # share of reservations: U, F, D
    "68000-69000": {
        0.0: (0.83, 48495, 0),
        0.2: (0.72, 90722, 4431),
        0.4: (0.69, 101723, 3916),
        0.6: (0.68, 110462, 4131),
        0.8: (0.71, 98508, 17427),
        1.0: (0.75, 78229, 34845),
    },
    "0-1000": {
        0.0: (0.54, 29995, 0),
        0.2: (0.51, 31186, 2756),
        0.4: (0.49, 30978, 6763),
        0.6: (0.45, 31225, 5527),
        0.8: (0.40, 27475, 4998),
        1.0: (0.40, 22187, 5049),
    },
}
_TABLE_6 = {
    "static": (0.65, 164983, 7178),
    "MCT": (0.679, 107383, 5666),
    "priority": (0.695, 99714, 5576),
}
_FIGURES = {"U": utilisation, "F": flow, "D": _tardiness}


def _named(values: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(_FIGURES, values, strict=True))


def _shares() -> list[ReservedCase]:
    return [
        ReservedCase(f"{tasks}, {share:.0%}", "MCT", tasks, share, _named(values))
        for tasks, of_set in _TABLE_5.items()
        for share, values in of_set.items()
    ]


def _strategies() -> list[ReservedCase]:
    cases = [
        ReservedCase(
            *(f"{share:.0%}", column, _SET, share),
            _named(published) if share == 0.3 else {},
        )
        for share in _SHARES
        for column, published in _TABLE_6.items()
    ]
    other = "30%, waits of first fit"
    return cases + [
        ReservedCase(other, column, _SET, 0.3, waits="first-fit") for column in _TABLE_6
    ]


def _windows() -> list[ReservedCase]:
    return [
        ReservedCase(f"{share:.0%} in [{low}, {high}]", column, _SET, share, window=(low, high))
        for low, high, shares in (
            *((1, 1, (0.3, 0.5)), (1, 2, (0.3, 0.5))),
            *((1, 4, _SHARES), (2, 8, _SHARES)),  # Figures 15 and 16
        )
        for share in shares
        for column in ("MCT", "priority")
    ]


def _periods() -> list[ReservedCase]:
    return [
        ReservedCase(f"{share:.0%}", column, _SET, share, period=period, reserved_first=first)
        for share in (0.3, 0.5)
        for column, period, first in (
            ("at once", 0.0, True),
            ("60 s", 60.0, True),
            ("300 s", 300.0, True),
            ("1 h", 3600.0, True),
            ("1 h, FCFS", 3600.0, False),
            ("1 d", 86400.0, True),
            ("1 d, FCFS", 86400.0, False),
        )
    ]


def _orders() -> list[ReservedCase]:
    return [
        ReservedCase(f"{share:.0%}", column, _SET, share, largest_first=column == "LSF")
        for share in (0.0, 0.3, 0.5)
        for column in ("first fit", "LSF")
    ]


def _bindings() -> list[ReservedCase]:
    return [
        ReservedCase(f"{share:.0%}", binding, _SET, share, binding=binding)
        for share in _SHARES
        for binding in get_args(Binding)
    ]


RESERVATIONS = (
    Experiment(
        "reservation-shares",
        "Reservations among batch tasks: how much of each they cost",
        "Kurowski et al. 2011, Table 5",
        20,
        "MCT",
        _FIGURES,
        _shares,
    ),
    Experiment(
        "reservation-strategies",
        "Reservations on one provider, on the earliest, on the first that can",
        "Kurowski et al. 2011, Table 6, Figures 11-13",
        60,
        "MCT",
        _FIGURES,
        _strategies,
    ),
    Experiment(
        "reservation-windows",
        "Reservations that may start within a range of multiples of their task's wait",
        "Kurowski et al. 2011, Figures 14-16",
        60,
        "MCT",
        _FIGURES,
        _windows,
    ),
    Experiment(
        "reservation-periods",
        "Reservations and batch tasks decided together every so often, not as they arrive",
        "Kurowski et al. 2011, Figures 8-10",
        20,
        "at once",
        _FIGURES,
        _periods,
    ),
    Experiment(
        "reservation-orders",
        "Batch tasks around reservations in the order of arrival, or the largest first",
        "Kurowski et al. 2011, section 4.4.3",
        60,
        "first fit",
        _FIGURES,
        _orders,
    ),
    Experiment(
        "reservation-binding",
        "Processors of reservations chosen as they begin, or when they are asked for",
        "Kurowski et al. 2011, section 4.1",
        60,
        "late",
        {"U": utilisation, "F of batch": _batch_flow, "delayed": _delayed, "D": _tardiness},
        _bindings,
    ),
)
