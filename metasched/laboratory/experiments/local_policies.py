"""Local policies on real traces, with drawn deadlines, classes and licences: which to choose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from metasched.laboratory.experiments.federations import OVERLAY, Federation, TraceSite
from metasched.laboratory.experiments.harness import Experiment, SimulationCase, late_percent
from metasched.laboratory.experiments.pasquali2008 import PUSH_POLICY
from metasched.laboratory.simulate import metrics
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.settings import SimulationSettings
from metasched.laboratory.simulate.synthetic import Scenario
from metasched.policies.local.registry import POLICIES, WITHOUT_PREEMPTION

JOBS = 2000  # of a window
LOADS = (0.70, 0.90)
SPARE = 1.2  # copies of a licence / mean number that running jobs would hold
SITES = (
    TraceSite("SDSC-SP2.swf.gz", {"sdsc": 128}),
    TraceSite("KTH-SP2.swf.gz", {"kth": 100}),
    TraceSite("CERIT-wagap-2013.swf.gz", {"zewura": 1600}),
)
NAMES = {"sdsc": "SDSC", "kth": "KTH", "zewura": "CERIT"}
_OVERLAY = replace(OVERLAY, licences=3, needs=0.1)  # a quarter of the jobs needs a licence
_NOT_COMPARED = {
    *WITHOUT_PREEMPTION,  # only simulated clusters can suspend
    *("cs-i-np", "cs-greedy-np"),  # the matching decides nothing where processors are counted
    "rcbo",  # much as `tabu`
    *("sjf-bounded", "edf-bounded"),  # see `BOUNDED_WAITS`
}
_DAY = 86400.0  # seconds
_BOUNDS = {"3 days": 3 * _DAY, "1 day": _DAY, "8 hours": _DAY / 3}  # seconds, by name


@dataclass(frozen=True)
class LicensedWindow:
    """A window of a trace on its cluster, whose licences are a little more than it needs."""

    window: Federation

    def __call__(self, seed: int) -> Scenario:
        workload, (cluster,) = self.window(seed)
        span = workload.entries[-1].job.submitted
        copies = {
            name: math.ceil(
                SPARE
                * sum(entry.run_time for entry in workload.entries if name in entry.job.licences)
                / span
            )
            for name in _OVERLAY.licence_names
        }
        return Scenario(workload, (replace(cluster, licences=copies),))


def _windows() -> Iterator[tuple[str, LicensedWindow]]:
    """Yield the rows and the scenarios of both experiments."""
    for site in SITES:
        name = next(iter(site.clusters))
        for load in LOADS:
            window = Federation(name, (site,), JOBS, load, overlay=_OVERLAY)
            yield f"{NAMES[name]} {load:.2f}", LicensedWindow(window)


def _settings(policy: str, **parameters: float) -> SimulationSettings:
    return SimulationSettings(policy=policy, meta_policy=PUSH_POLICY, parameters={**parameters})


def _cases() -> list[SimulationCase]:
    return [
        SimulationCase(row, policy, window, _settings(policy))
        for row, window in _windows()
        for policy in POLICIES
        if policy not in _NOT_COMPARED
    ]


def _bounded_cases() -> list[SimulationCase]:
    columns = {"easy": _settings("easy")}
    for name in ("edf", "sjf"):
        columns[name] = _settings(name)
        for bound, seconds in _BOUNDS.items():
            columns[f"{name}, {bound}"] = _settings(f"{name}-bounded", starving_after=seconds)
    return [
        SimulationCase(row, column, window, settings)
        for row, window in _windows()
        for column, settings in columns.items()
    ]


def _gold_wait(schedule: Schedule) -> float:
    """Return the mean wait of users of the class gold, in seconds."""
    return metrics.mean(p.wait for p in schedule.jobs if p.job.user_class == "gold")


LOCAL_POLICIES = Experiment(
    name="local-policies",
    about="Local policies on real traces with drawn deadlines, classes and licences",
    source="SDSC-SP2, KTH-SP2, CERIT; a cluster each",
    runs=20,
    baseline="easy",
    figures={
        "wait, s": lambda s: metrics.mean(p.wait for p in s.jobs),
        "bounded slowdown": lambda s: metrics.mean(map(metrics.bounded_slowdown, s.jobs)),
        "late, %": late_percent,
        "wait of gold, s": _gold_wait,
        "longest wait, h": lambda s: max(p.wait for p in s.jobs) / 3600,
    },
    cases=_cases,
)
BOUNDED_WAITS = replace(
    LOCAL_POLICIES,
    name="bounded-waits",
    about="EDF and SJF, with bounds after which a waiting job goes first",
    runs=12,
    cases=_bounded_cases,
)
