"""The local policies that this environment can make; those of the extra `lab` need SciPy."""

from __future__ import annotations

from importlib.util import find_spec

from metasched.policies.local.convergent.weights import GREEDY, INCREMENTAL, OPTIMAL
from metasched.policies.local.registry import POLICIES

CONVERGENT = (INCREMENTAL, OPTIMAL, GREEDY)
HAS_SCIPY = find_spec("scipy") is not None
LOCAL_POLICIES = [name for name in POLICIES if HAS_SCIPY or name not in CONVERGENT]
