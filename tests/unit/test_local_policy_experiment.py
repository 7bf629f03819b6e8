"""The comparison of local policies on real traces: its workloads and its cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from metasched.laboratory.experiments.catalogue import EXPERIMENTS
from metasched.laboratory.experiments.federations import Federation, TraceSite
from metasched.laboratory.experiments.harness import SimulationCase
from metasched.laboratory.experiments.local_policies import LicensedWindow
from metasched.laboratory.simulate.workload import Overlay
from metasched.policies.local.registry import POLICIES


def test_every_policy_of_a_real_cluster_is_compared() -> None:
    cases = EXPERIMENTS["local-policies"].cases()
    compared = {case.column for case in cases}
    assert {name for name in POLICIES if not name.endswith("-p")} - compared == {
        *("cs-i-np", "cs-greedy-np"),  # as cs-ni-np on counted processors
        "rcbo",  # as tabu
        *("edf-bounded", "sjf-bounded"),  # by bounded-waits
    }
    assert {case.row for case in cases} == {
        f"{site} {load:.2f}" for site in ("SDSC", "KTH", "CERIT") for load in (0.7, 0.9)
    }
    for case in cases:
        assert isinstance(case, SimulationCase)
        assert case.settings.parameters == {}


def test_bounds_are_compared_on_the_same_windows() -> None:
    cases = EXPERIMENTS["bounded-waits"].cases()
    windows = {case.row: case.scenario for case in EXPERIMENTS["local-policies"].cases()}
    bounds: dict[str, list[object]] = {}
    for case in cases:
        assert isinstance(case, SimulationCase)
        assert case.scenario == windows[case.row]
        bound = case.settings.parameters.get("starving_after")
        bounds.setdefault(case.settings.policy, []).append(bound)
    hours = [72.0, 24.0, 8.0] * len(windows)
    assert bounds == {
        **{policy: [None] * len(windows) for policy in ("easy", "edf", "sjf")},
        **{policy: [3600 * bound for bound in hours] for policy in ("edf-bounded", "sjf-bounded")},
    }


def test_licences_are_a_little_more_than_the_window_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand jobs of 600 s, each 60 s: ten run at a time, so 20% of them hold two copies."""
    lines = [
        f"{n} {60 * n} -1 600 -1 -1 -1 2 900 -1 1 {n % 10} -1 -1 -1 -1 -1 -1\n"
        for n in range(1, 2001)
    ]
    (tmp_path / "a.swf").write_text("".join(lines))
    monkeypatch.setenv("METASCHED_TRACES", str(tmp_path))
    overlay = Overlay(licences=2, needs=0.2)
    window = Federation("a", (TraceSite("a.swf", {"a": 20}),), 1000, 1.0, overlay=overlay)
    workload, (cluster,) = LicensedWindow(window)(1)
    assert len(workload.entries) == 1000
    for name in ("l1", "l2"):
        share = sum(name in entry.job.licences for entry in workload.entries) / 1000
        assert 0.15 < share < 0.25
        assert 1.2 * 10 * share <= cluster.licences[name] < 1.2 * 10 * share + 1.1
