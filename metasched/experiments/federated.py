"""Better than the papers: the meta-scheduler's ways of sending against what users do without it.

On federations of real traces and on Pasquali 2008, Table 6. What was measured is in
docs/experiments.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from metasched.experiments.federations import SITES, Federation
from metasched.experiments.harness import Case, Experiment, late
from metasched.experiments.pasquali2008 import Drawn
from metasched.policies.policy import Policy
from metasched.simulate import metrics, synthetic
from metasched.simulate.engine import Placed, Schedule
from metasched.simulate.schemes import Scheme
from metasched.simulate.settings import Settings
from metasched.simulate.synthetic import Grid

JOBS, SEEDS = 3000, 20
LOADS = (0.70, 0.85, 0.95)
_PAPER, _OBSERVED = Policy(load="paper"), Policy(load="observed")
COMPETITORS: Mapping[str, tuple[Policy, Scheme]] = {
    # users, without a meta-scheduler
    "sbatch -M": (_PAPER, Scheme(choice="slurm")),
    "foreseen": (_PAPER, Scheme(choice="foreseen")),
    "home": (_PAPER, Scheme(choice="home")),
    "random": (_PAPER, Scheme(choice="random")),
    "duplicates": (_PAPER, Scheme(choice="duplicates")),
    # the meta-scheduler
    "paper": (replace(_PAPER, pull=False), Scheme()),
    "observed": (replace(_OBSERVED, pull=False), Scheme()),
    "plan": (replace(_PAPER, pull=False), Scheme(plan=True)),
    "paper+pull": (_PAPER, Scheme()),
    "observed+pull": (_OBSERVED, Scheme()),
    "plan+pull": (_PAPER, Scheme(plan=True)),
    "late": (replace(_OBSERVED, pull=False), Scheme(late=True)),
}
_BASELINE = "sbatch -M"
_TABLE_6 = tuple(
    name for name in COMPETITORS if name not in ("foreseen", "home", "plan", "plan+pull")
)
_LEASED = ("paper", "observed", "paper+pull", "observed+pull")


def _cases(
    rows: Mapping[str, Callable[[int], Grid]], local: Settings, names: Sequence[str]
) -> list[Case]:
    return [
        Case(row, name, grid, replace(local, meta=COMPETITORS[name][0]), {}, COMPETITORS[name][1])
        for row, grid in rows.items()
        for name in names
    ]


def _federations() -> list[Case]:
    rows = {
        f"{name} {load:.2f}": Federation(name, tuple(sites), JOBS, load)
        for name, sites in SITES.items()
        for load in LOADS
    }
    return _cases(rows, Settings(policy="easy"), list(COMPETITORS))


def _half_direct() -> list[Case]:
    rows = {
        f"{name} {LOADS[1]:.2f}": Federation(name, tuple(sites), JOBS, LOADS[1], direct=0.5)
        for name, sites in SITES.items()
    }
    return _cases(rows, Settings(policy="easy"), list(COMPETITORS))


def _machines() -> list[Case]:
    """The copies of a licence belong to each cluster; where they are leased all clusters share
    them."""
    rows = {
        f"inter-arrival {gap}": Drawn(replace(synthetic.TWO_LEVEL, inter_arrival=gap))
        for gap in (5, 10)
    }
    local = Settings(policy="fb-unmod", parameters={"lead": 2.0})
    leased = [
        case._replace(column=f"{case.column}, leased", settings=replace(case.settings, pooled=True))
        for case in _cases(rows, local, _LEASED)
    ]
    return [*_cases(rows, local, _TABLE_6), *leased]


def _late_by(least: float, most: float) -> Callable[[Schedule], float]:
    """Percent late of the jobs whose margin is so many times their limit."""

    def within(placed: Placed) -> bool:
        margin = placed.job.margin
        return margin is not None and least <= margin / placed.job.estimated < most

    def figure(schedule: Schedule) -> float:
        return 100 * metrics.mean(metrics.tardiness(p) > 0 for p in schedule.placed if within(p))

    return figure


def _wait(direct: bool) -> Callable[[Schedule], float]:
    def figure(schedule: Schedule) -> float:
        return metrics.mean(p.wait for p in schedule.placed if p.request.direct == direct)

    return figure


_WAITING: dict[str, Callable[[Schedule], float]] = {
    "wait, s": lambda s: metrics.mean(p.wait for p in s.placed),
    "bounded slowdown": lambda s: metrics.mean(map(metrics.bounded_slowdown, s.placed)),
    "late, %": late,
}
_REST: dict[str, Callable[[Schedule], float]] = {
    "longest wait, h": lambda s: max(p.wait for p in s.placed) / 3600,
    "moves per job": lambda s: metrics.mean(p.moves for p in s.placed),
}
_BY_MARGIN = {
    "late, margin < 2 limits, %": _late_by(0.0, 2.0),
    "late, margin 2-5 limits, %": _late_by(2.0, 5.0),
    "late, margin > 5 limits, %": _late_by(5.0, 1e9),
}
BETTER = (
    Experiment(
        "better",
        "Ways to choose a cluster, on federations of real traces at three loads",
        "federations of SDSC-SP2 and KTH-SP2, of CERIT, of LCG",
        SEEDS,
        _BASELINE,
        {**_WAITING, **_BY_MARGIN, **_REST},
        _federations,
    ),
    Experiment(
        "better-half",
        "The same, half of the users submitting to their home cluster past the meta-scheduler",
        "federations of SDSC-SP2 and KTH-SP2, of CERIT, of LCG",
        SEEDS,
        _BASELINE,
        {
            **_WAITING,
            "wait of those through us, s": _wait(False),
            "wait of those past us, s": _wait(True),
            **_REST,
        },
        _half_direct,
    ),
    Experiment(
        "better-table6",
        "The same on clusters of machines with licences",
        "Pasquali 2008, Table 6",
        SEEDS,
        _BASELINE,
        {**_WAITING, **_REST},
        _machines,
    ),
)
