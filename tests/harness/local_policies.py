"""The local policies that this environment can make; those of the extra `lab` need SciPy."""

from __future__ import annotations

from importlib.util import find_spec

from metasched.policies.local.convergent.weights import VARIANT_NAMES
from metasched.policies.local.registry import POLICIES, WITHOUT_PREEMPTION

CONVERGENT = list(VARIANT_NAMES)
HAS_SCIPY = find_spec("scipy") is not None
LOCAL_POLICIES = [name for name in POLICIES if HAS_SCIPY or name not in CONVERGENT]
PREEMPTIVE = [name for name in LOCAL_POLICIES if name in WITHOUT_PREEMPTION]
