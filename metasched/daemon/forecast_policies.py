"""Local policies in the forecast process, where a policy of another package may hang.

A signal interrupts it, and FCFS decides in its place until the process ends: the expected starts of
all clusters are of the same process. Code that never returns to the interpreter is not interrupted.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Collection
from types import FrameType
from typing import Any, Final

from metasched.policies.local.exclusion import ExcludablePolicy
from metasched.policies.local.orders import FCFS
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LocalPolicy,
    RunningJob,
    WaitingJob,
)
from metasched.policies.local.registry import make_excludable

PASS_SECONDS: Final = 30.0  # for a pass; as much as for all passes of a forecast
_hanging = set[str]()  # names of policies that took longer

log = logging.getLogger("metasched")


def make_forecast_policy(name: str) -> LocalPolicy:
    """Create a policy for a forward run. ValueError if there is none of this name."""
    policy = make_excludable(name)
    return InterruptiblePolicy(name, policy) if isinstance(policy, ExcludablePolicy) else policy


class InterruptiblePolicy:
    """A policy whose passes are bounded in time, in the main thread of a process.

    It has all other attributes of the policy.
    """

    def __init__(self, name: str, policy: LocalPolicy, seconds: float = PASS_SECONDS) -> None:
        self._name, self._policy, self._seconds = name, policy, seconds

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._policy, attribute)

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        if self._name not in _hanging:
            handler = signal.signal(signal.SIGALRM, _interrupt)
            timer = signal.setitimer(signal.ITIMER_REAL, self._seconds)
            try:
                try:
                    return self._policy.choose_starts(now, queue, running, free)
                finally:  # the time may end here, too
                    signal.setitimer(signal.ITIMER_REAL, *timer)
            except _PassTooLong:
                _hanging.add(self._name)
                message = "expected starts: policy %s takes longer than %g s; FCFS stands for it"
                log.warning(message, self._name, self._seconds)
            finally:
                signal.signal(signal.SIGALRM, handler)
        return FCFS().choose_starts(now, queue, running, free)


class _PassTooLong(BaseException):
    """Not an Exception: the policy must not catch it as its own."""


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise _PassTooLong
