"""Experiments with advance reservations: Kurowski et al. 2011, section 5, reproduced.

Tasks of the SDSC SP2 trace on two providers of 64 processors. A seed draws the tasks that are
reservations, the same for all strategies of a row. docs/experiments/settings.md documents the
choices that the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import NamedTuple, get_args

from msgspec import structs

from metasched.laboratory.experiments.harness import Experiment, load_trace, without_collection
from metasched.laboratory.experiments.pasquali2008 import PUSH_POLICY, mean_flow, utilisation
from metasched.laboratory.experiments.reserved_providers import ProviderStrategy, simulate_providers
from metasched.laboratory.experiments.static_binding import ProcessorBinding
from metasched.laboratory.simulate import metrics
from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.settings import SimulationSettings, simulate
from metasched.laboratory.simulate.synthetic import Scenario
from metasched.laboratory.simulate.workload import WindowRequest, WorkloadEntry

_TRACE, _PROCESSORS, _PROVIDERS = "SDSC-SP2.swf.gz", "128", "2x64"
_TASKS = "68000-69000"
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)


@cache
def _trace_waits(policy: str) -> Mapping[int, float]:
    """Simulate the trace, which records no waits; return the wait of each task in seconds."""
    settings = SimulationSettings(policy=policy, meta_policy=PUSH_POLICY)
    schedule = simulate(load_trace(_TRACE), parse_clusters(_PROCESSORS), settings)
    return {scheduled.entry.number: scheduled.wait for scheduled in schedule.jobs}


class ReservedCase(NamedTuple):
    """A share of the tasks are reservations for their run time; the others are batch tasks.

    A reservation may start from submission + `window[0]` x wait to submission + `window[1]` x wait.
    The last four fields are those of `ProviderStrategy`.
    """

    row: str
    column: str  # strategy: "static", "MCT", "priority", or a label
    tasks: str  # range of the trace
    share: float  # of reservations
    published: Mapping[str, float] = {}  # figures of the paper, by name
    window: tuple[float, float] = (1.0, 1.0)  # multiples of the wait
    waits: str = "easy"  # local policy with which the waits are simulated
    period: float = 0.0
    reserved_first: bool = True
    largest_first: bool = False
    binding: ProcessorBinding = "late"

    def scenario(self, seed: int) -> Scenario:
        """Return the tasks, cut to a provider's size; jobs with a window are reservations."""
        workload, clusters = load_trace(f"S1-jobs-{self.tasks}.swf"), parse_clusters(_PROVIDERS)
        size, waits = clusters[0].cpus, _trace_waits(self.waits)
        count = round(self.share * len(workload.entries))
        reserved = set(Random(seed).sample(range(len(workload.entries)), count))
        entries = []
        for index, entry in enumerate(workload.entries):
            run_time = max(entry.run_time, 1.0)
            # its run time if the log let it run longer than its limit
            limit = max(entry.job.estimated, run_time)
            cpus = min(entry.job.cpus, size)
            job = structs.replace(entry.job, cpus=cpus, estimated=limit, time_limit=limit)
            if self.column == "static":
                job = structs.replace(job, clusters=("c1" if index in reserved else "c2",))
            entry = entry._replace(job=job, run_time=run_time)
            if index in reserved:
                entry = self._with_window(entry, waits[entry.number])
            entries.append(entry)
        return Scenario(replace(workload, entries=tuple(entries)), clusters)

    def _with_window(self, entry: WorkloadEntry, wait: float) -> WorkloadEntry:
        """Return the task as a reservation, whose deadline is the last end that suits."""
        job, run_time = entry.job, entry.run_time
        first, last = (job.submitted + factor * wait for factor in self.window)
        wish = WindowRequest(
            job.submitted, first, run_time, job.cpus, slack=last - first, or_later=True
        )
        return entry._replace(job=structs.replace(job, deadline=last + run_time), window=wish)

    def run(self, seed: int) -> Schedule:
        """Run the case; ties between providers are drawn by the same seed."""
        workload, clusters = self.scenario(seed)
        strategy = ProviderStrategy(
            reserve="first" if self.column == "priority" else "earliest",
            period=self.period,
            reserved_first=self.reserved_first,
            largest_first=self.largest_first,
            binding=self.binding,
        )
        with without_collection():
            return simulate_providers(workload, clusters, strategy, seed)


def _mean_tardiness(schedule: Schedule) -> float:
    """Return D of Kurowski et al.: seconds past the window, mean over reservations only."""
    return metrics.mean(
        metrics.tardiness(scheduled)
        for scheduled in schedule.jobs
        if scheduled.job.deadline is not None
    )


def _mean_batch_flow(schedule: Schedule) -> float:
    """Return the mean seconds from submission to end of batch tasks."""
    return metrics.mean(
        scheduled.flow for scheduled in schedule.jobs if scheduled.job.deadline is None
    )


def _delayed_share(schedule: Schedule) -> float:
    """Return the share of reservations that did not fit into their windows."""
    return metrics.mean(
        float(metrics.tardiness(scheduled) > 0)
        for scheduled in schedule.jobs
        if scheduled.job.deadline is not None
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
_FIGURES = {"U": utilisation, "F": mean_flow, "D": _mean_tardiness}


def _by_figure(values: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(_FIGURES, values, strict=True))


def _reservation_shares() -> list[ReservedCase]:
    return [
        ReservedCase(f"{tasks}, {share:.0%}", "MCT", tasks, share, _by_figure(values))
        for tasks, rows in _TABLE_5.items()
        for share, values in rows.items()
    ]


def _strategies() -> list[ReservedCase]:
    cases = [
        ReservedCase(
            f"{share:.0%}",
            column,
            _TASKS,
            share,
            published=_by_figure(published) if share == 0.3 else {},
        )
        for share in _SHARES
        for column, published in _TABLE_6.items()
    ]
    row = "30%, waits of first fit"
    return cases + [
        ReservedCase(row, column, _TASKS, 0.3, waits="first-fit") for column in _TABLE_6
    ]


def _windows() -> list[ReservedCase]:
    return [
        ReservedCase(
            f"{share:.0%} in [{earliest}, {latest}]",
            column,
            _TASKS,
            share,
            window=(earliest, latest),
        )
        for earliest, latest, shares in (
            (1, 1, (0.3, 0.5)),
            (1, 2, (0.3, 0.5)),
            (1, 4, _SHARES),  # Figure 15
            (2, 8, _SHARES),  # Figure 16
        )
        for share in shares
        for column in ("MCT", "priority")
    ]


def _periods() -> list[ReservedCase]:
    return [
        ReservedCase(
            f"{share:.0%}", column, _TASKS, share, period=period, reserved_first=reserved_first
        )
        for share in (0.3, 0.5)
        for column, period, reserved_first in (
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
        ReservedCase(f"{share:.0%}", column, _TASKS, share, largest_first=column == "LSF")
        for share in (0.0, 0.3, 0.5)
        for column in ("first fit", "LSF")
    ]


def _bindings() -> list[ReservedCase]:
    return [
        ReservedCase(f"{share:.0%}", binding, _TASKS, share, binding=binding)
        for share in _SHARES
        for binding in get_args(ProcessorBinding)
    ]


RESERVATIONS = (
    Experiment(
        name="reservation-shares",
        about="Reservations among batch tasks: their effect on both",
        source="Kurowski et al. 2011, Table 5",
        runs=20,
        baseline="MCT",
        figures=_FIGURES,
        cases=_reservation_shares,
    ),
    Experiment(
        name="reservation-strategies",
        about="Reservations on one provider, on the earliest, on the first that fits",
        source="Kurowski et al. 2011, Table 6, Figures 11-13",
        runs=60,
        baseline="MCT",
        figures=_FIGURES,
        cases=_strategies,
    ),
    Experiment(
        name="reservation-windows",
        about="Reservations that may start within a range of multiples of their task's wait",
        source="Kurowski et al. 2011, Figures 14-16",
        runs=60,
        baseline="MCT",
        figures=_FIGURES,
        cases=_windows,
    ),
    Experiment(
        name="reservation-periods",
        about="Reservations and batch tasks decided together in periods, not at arrival",
        source="Kurowski et al. 2011, Figures 8-10",
        runs=20,
        baseline="at once",
        figures=_FIGURES,
        cases=_periods,
    ),
    Experiment(
        name="reservation-orders",
        about="Batch tasks around reservations in the order of arrival, or the largest first",
        source="Kurowski et al. 2011, section 4.4.3",
        runs=60,
        baseline="first fit",
        figures=_FIGURES,
        cases=_orders,
    ),
    Experiment(
        name="reservation-binding",
        about="Processors of reservations assigned at their start or at their request",
        source="Kurowski et al. 2011, section 4.1",
        runs=60,
        baseline="late",
        figures={
            "U": utilisation,
            "F of batch": _mean_batch_flow,
            "delayed": _delayed_share,
            "D": _mean_tardiness,
        },
        cases=_bindings,
    ),
)
