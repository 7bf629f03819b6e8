"""Runs checks side by side, each with a deadline: a silent cluster delays no other answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from metasched.daemon.doctor.findings import Finding, found


@dataclass(frozen=True)
class Check:
    """A check: its subject, and a function that yields its results."""

    name: str
    run: Callable[[], Iterable[Finding]]


@dataclass
class _Run:
    """A check that runs in a thread. Its results are complete once `ended` is set."""

    findings: list[Finding] = field(default_factory=list)
    error: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def execute(self, check: Check) -> None:
        try:
            self.findings.extend(check.run())
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()


def run_side_by_side(checks: Sequence[Check], timeout: float) -> list[Finding]:
    """Run all checks in threads; return their findings in the order of the checks.

    After `timeout` seconds in all, a check that still runs gets a finding that says so. Its
    thread is left behind: it may hang in a file system or a directory service, and does not keep
    the process alive.
    """
    runs = [_Run() for _ in checks]
    deadline = time.monotonic() + timeout
    for check, run in zip(checks, runs, strict=True):
        threading.Thread(
            target=run.execute, args=(check,), name=f"check {check.name}", daemon=True
        ).start()
    findings: list[Finding] = []
    for check, run in zip(checks, runs, strict=True):
        has_ended = run.ended.wait(max(0.0, deadline - time.monotonic()))
        findings += list(run.findings)
        if not has_ended:
            findings.append(found("check-timeout", check.name, f"no result within {timeout:g} s"))
        elif run.error is not None:
            text = f"{type(run.error).__name__}: {run.error}"
            findings.append(found("check-failed", check.name, text))
    return findings
