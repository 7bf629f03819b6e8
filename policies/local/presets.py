"""Readings of the published formulas, as named sets of parameters of the local policies. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metasched.policies.local.convergent.weights import VARIANT_NAMES
from metasched.policies.local.weights import MODIFIED, UNMODIFIED

Preset = Mapping[str, Any]  # parameters; all others of a source are the defaults

_FLEXIBLE: Mapping[str, Preset] = {
    "thesis": {"run": "estimate", "late": "zero"},  # Pasquali 2008, §3.2.1
    "paper": {"run": "fastest", "late": "least"},  # of its two-level part
}
_CONVERGENT: Mapping[str, Preset] = {
    "thesis": {"late": "printed", "longest": "job", "discarded": "wait"},  # Pasquali 2008, §3.2.2
}
# Pasquali 2008, §5.2; Du 2010, Tables 2-11 to 2-13 and §4
_INSERTION: Mapping[str, Preset] = {
    "thesis": {"compare": "plan"},
    "du2010": {"compare": "pairs"},
}
_TABU: Mapping[str, Preset] = {
    "thesis": {**_INSERTION["thesis"], "stop": "late"},
    "du2010": {**_INSERTION["du2010"], "stop": "rounds"},
}
PRESETS: Mapping[str, Mapping[str, Preset]] = {  # by policy and source
    MODIFIED: _FLEXIBLE,
    UNMODIFIED: _FLEXIBLE,
    **dict.fromkeys(VARIANT_NAMES, _CONVERGENT),
    "eg-edf": _INSERTION,
    "tabu": _TABU,
    "rcbo": {"du2010": _INSERTION["du2010"]},
}


def expand_preset(policy: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with those of their `preset`; keys beside `preset` go before it.

    ValueError if the policy has no such preset.
    """
    given = dict(parameters)
    name = given.pop("preset", None)
    if name is None:
        return given
    presets = PRESETS.get(policy, {})
    if name not in presets:
        names = " or ".join(f'"{each}"' for each in presets)
        raise ValueError(f'preset is "{name}"; it must be {names}')
    return {**presets[name], **given}
