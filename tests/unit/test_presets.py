"""Presets of the sources: what each one sets, and what goes before it."""

from __future__ import annotations

import pytest

from metasched.policies.local.presets import PRESETS, expand_preset
from metasched.policies.local.registry import PARAMETERS, make_policy
from tests.harness.local_policies import LOCAL_POLICIES


@pytest.mark.parametrize(
    ("policy", "preset", "parameters"),
    [
        ("fb-unmod", "paper", {"run": "fastest", "late": "least"}),
        ("cs-ni-np", "thesis", {"late": "printed", "longest": "job", "discarded": "wait"}),
        ("eg-edf", "thesis", {"compare": "plan"}),
        ("tabu", "du2010", {"compare": "pairs", "stop": "rounds"}),
        ("rcbo", "du2010", {"compare": "pairs"}),
    ],
)
def test_a_preset_is_the_reading_of_a_source(
    policy: str, preset: str, parameters: dict[str, str]
) -> None:
    assert expand_preset(policy, {"preset": preset}) == parameters


def test_a_key_beside_the_preset_goes_before_it() -> None:
    parameters = {"preset": "du2010", "compare": "plan", "depth": 5.0}
    assert expand_preset("tabu", parameters) == {"compare": "plan", "stop": "rounds", "depth": 5.0}
    assert parameters["preset"] == "du2010"  # the caller's own is not changed


@pytest.mark.parametrize("policy", [name for name in LOCAL_POLICIES if name in PRESETS])
def test_each_preset_makes_its_policy(policy: str) -> None:
    for preset, parameters in PRESETS[policy].items():
        assert set(parameters) < set(PARAMETERS[policy])
        make_policy(policy, {"preset": preset})


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("fb-mod", 'preset is "book"; it must be "thesis" or "paper"'),
        ("rcbo", 'preset is "book"; it must be "du2010"'),
        ("easy", 'policy easy has no parameter "preset"; it has none'),
    ],
)
def test_an_unknown_preset_is_refused(policy: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make_policy(policy, {"preset": "book"})
