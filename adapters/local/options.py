"""The configuration keys of a local cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from metasched.policies.local.registry import (
    DEFAULT_POLICY,
    check_policy_name,
    check_suspends_none,
)


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Keys of `[[cluster]]` for `local`; ValueError names a value out of range."""

    cpus: int  # processors; may exceed those of the host
    memory: int | None = None  # MiB; None: not counted, but a job's own request still limits it
    gres: Mapping[str, int] = field(default_factory=dict)  # generic resources by name
    policy: str = DEFAULT_POLICY
    kill_wait: float = 5.0  # seconds between SIGTERM and SIGKILL
    keep: float = 86400.0  # seconds that ended jobs stay listed
    max_time: float | None = None  # seconds; the longest time limit of a job
    default_time: float = 3600.0  # seconds; the estimate for a job without a time limit
    age: float = 14400.0  # seconds of waiting that weigh as much as a step of priority

    def __post_init__(self) -> None:
        for name, amount in {"cpus": self.cpus, "memory": self.memory, **self.gres}.items():
            if amount is not None and amount < 1:
                raise ValueError(f"{name} is {amount}; it must be 1 or more")
        check_policy_name(self.policy)
        check_suspends_none(self.policy)
        for name, seconds in (("max_time", self.max_time), ("default_time", self.default_time)):
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"{name} is {seconds}; it must be a positive number of seconds")
        for name, seconds in (
            ("kill_wait", self.kill_wait),
            ("keep", self.keep),
            ("age", self.age),
        ):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise ValueError(f"{name} is {seconds}; it must be 0 or more seconds")
