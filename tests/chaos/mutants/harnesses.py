"""The harnesses that look for a restored defect, each as a process that makes a few trials.

A harness is written in the header of a mutant as one of

    chaos MANAGER: FAULT         a round of tests/chaos, a trial is a strike of the fault
    chaos MANAGER: FAULT xN      the same with N strikes in each round
    hostile KIND: ATTACK         tests/hostile, a trial is a contest
    pytest PATH[::TEST]          a trial is an example of Hypothesis, or a run of a plain test
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.chaos.faults import FAULTS

STRIKES = 5  # of a chaos round: few, since a round shows its findings at its end
STARTS = 20  # of jobs of b in a contest
_CHAOS = re.compile(r"chaos (?P<manager>\w+): (?P<fault>.+?)(?: x(?P<strikes>\d+))?")
_HOSTILE = re.compile(r"hostile (?P<kind>\w+): (?P<attack>.+)")
_EXAMPLES = re.compile(r"- (\d+) passing(?: examples)?, (\d+) failing")  # as releases differ
_PYTEST = re.compile(r"pytest (?P<node>tests/\S+)")


class HarnessError(Exception):
    """A harness could not make its trials; the message gives the reason."""


@dataclass(frozen=True)
class Output:
    """What a harness' process has left."""

    code: int  # exit code; negative: the signal that ended it
    out: str
    err: str
    folder: Path

    @property
    def last_line(self) -> str:
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code} without a message"


@dataclass(frozen=True)
class Trials:
    """What the trials of a process have found."""

    made: int
    finding: str  # the defect that it reports; "": none


class Harness(Protocol):
    """Makes trials in a process of its own, in a copy of the checkout."""

    def arguments(self, folder: Path, seed: str) -> list[str]:
        """Return the arguments of Python; `folder` is empty and may be written to."""

    def trials(self, output: Output) -> Trials:
        """Return the trials of the process. Raises HarnessError if it could make none."""


@dataclass(frozen=True)
class ChaosHarness:
    """Rounds of a fault."""

    manager: str
    fault: str
    strikes: int = STRIKES  # of a round

    def __str__(self) -> str:
        return f"chaos {self.manager}: {self.fault}"

    def arguments(self, folder: Path, seed: str) -> list[str]:
        arguments = [self.manager, self.fault, seed, str(self.strikes), str(folder)]
        return ["-m", "tests.chaos.one_round", *arguments]

    def trials(self, output: Output) -> Trials:
        if output.code == 0 and output.out:
            return Trials(self.strikes, str(json.loads(output.out)["found"]))
        if output.code == 1:  # neither the site nor the stream expected it
            return Trials(self.strikes, output.last_line)
        raise HarnessError(output.last_line)


@dataclass(frozen=True)
class HostileHarness:
    """Contests of an attack."""

    kind: str
    attack: str

    def __str__(self) -> str:
        return f"hostile {self.kind}: {self.attack}"

    def arguments(self, folder: Path, seed: str) -> list[str]:
        options = ["--kind", self.kind, "--only", self.attack, "--starts", str(STARTS)]
        return ["-m", "tests.hostile", *options, "--seed", seed, "--json"]

    def trials(self, output: Output) -> Trials:
        results = [json.loads(line) for line in output.out.splitlines() if line.startswith("{")]
        if output.code == 1:
            harm = [line for result in results for line in result["harm"]]
            delays = [f"median {r['median']}, worst {r['worst']}" for r in results]
            return Trials(1, "; ".join(harm or delays) or output.last_line)
        if output.code == 0 and results:
            return Trials(1, "")
        raise HarnessError(output.last_line)


@dataclass(frozen=True)
class PytestHarness:
    """Runs of a test. A property test draws other examples in each."""

    node: str

    def __str__(self) -> str:
        return f"pytest {self.node}"

    def arguments(self, folder: Path, seed: str) -> list[str]:
        number = sum(
            part * 1000**exponent for exponent, part in enumerate(map(int, seed.split("-")))
        )
        return [
            *("-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"),
            *("--hypothesis-profile=trial", f"--hypothesis-seed={number}"),
            "--hypothesis-show-statistics",
            *(f"--basetemp={folder}/t", f"--junitxml={folder}/result.xml", self.node),
        ]

    def trials(self, output: Output) -> Trials:
        path = output.folder / "result.xml"
        if output.code not in (0, 1) or not path.exists():
            raise HarnessError(output.last_line)
        cases = list(ET.parse(path).iter("testcase"))
        if all(case.find("skipped") is not None for case in cases):
            raise HarnessError(f"{self.node} is skipped")
        counts = [int(passing) + int(failing) for passing, failing in _EXAMPLES.findall(output.out)]
        return Trials(sum(counts) or 1, _first_failure(cases))


def _first_failure(cases: Sequence[ET.Element]) -> str:
    for case in cases:
        for kind in ("failure", "error"):
            if (failure := case.find(kind)) is not None:
                return " ".join(str(failure.get("message")).split())
    return ""


def harness_named(text: str) -> Harness:
    """Return the harness that a header names. Raises ValueError."""
    if match := _CHAOS.fullmatch(text):
        manager, fault = match["manager"], match["fault"]
        if not any((fault, manager) == (each.name, each.manager) for each in FAULTS):
            raise ValueError(f"there is no fault {fault!r} of {manager}; see tests/chaos/faults.py")
        return ChaosHarness(manager, fault, int(match["strikes"] or STRIKES))
    if match := _HOSTILE.fullmatch(text):
        return HostileHarness(match["kind"], match["attack"])
    if match := _PYTEST.fullmatch(text):
        return PytestHarness(match["node"])
    raise ValueError(f"{text!r} is neither chaos, hostile nor pytest; see harnesses.py")
