"""The checks for authors of plug-ins find each breach of the rules, and nothing else."""

from __future__ import annotations

import datetime
import random
import runpy
import time
from pathlib import Path
from time import monotonic

import pytest

from metasched.cli import policy
from metasched.cli.policy import check_plugin
from metasched.errors import UserError
from metasched.laboratory.simulate.settings import read_settings, read_workload, simulate
from metasched.model.job import Job
from metasched.plug_ins import testing
from metasched.plug_ins.testing import check_heuristic
from metasched.policies.classify import Deadline, Licence, User
from metasched.policies.heuristic import (
    ClusterTraits,
    Heuristic,
    PlacementHeuristic,
    RunTimeEstimator,
)
from tests.harness.plug_in_packages import EXAMPLE, install_example

HERE = Path(__file__)


class Narrow(Heuristic):
    def __init__(self, full: float = 64) -> None:
        self.full = full

    def contribution(self, job: Job) -> float:
        return self.max_priority * max(0.0, 1 - job.cpus / self.full)


class Half(RunTimeEstimator):
    def seconds(self, job: Job) -> float:
        return job.estimated / 2


class Wide(PlacementHeuristic):
    def rating(self, job: Job, cluster: ClusterTraits) -> float:
        return 0.0 if job.cpus > cluster.cpus else 1.0


@pytest.mark.parametrize("heuristic", [Narrow, Half, Wide, Deadline, Licence, User])
def test_a_good_heuristic_passes(heuristic: type) -> None:
    check_heuristic(heuristic)


class TooHigh(Narrow):
    def contribution(self, job: Job) -> float:
        return 1 / job.cpus * 11


class Raises(Wide):
    def rating(self, job: Job, cluster: ClusterTraits) -> float:
        return 1 / cluster.cpus


class Draws(Narrow):
    def contribution(self, job: Job) -> float:
        return random.random()


class Clock(Narrow):
    def contribution(self, job: Job) -> float:
        return 1.0 if time.time() > 0 else 0.0


class ImportedClock(Narrow):
    def contribution(self, job: Job) -> float:
        return 1.0 if monotonic() > -1 else 0.0


class Date(Narrow):
    def contribution(self, job: Job) -> float:
        return 1.0 if datetime.datetime.now().year > 0 else 0.0


class Reads(Narrow):
    def contribution(self, job: Job) -> float:
        return float(bool(HERE.read_text()))


@pytest.mark.parametrize(
    ("heuristic", "problem"),
    [
        (TooHigh, "range: its value is 11, not 0 to 10"),
        (Raises, "range: ZeroDivisionError: "),
        (Draws, "determinism: asked twice about a job, it gives two values"),
        (Clock, "no clock: it calls time.time"),
        (ImportedClock, "no clock: it calls time.monotonic"),
        (Date, "no clock: it calls datetime.now"),
        (Reads, f"no I/O: it does open '{HERE}'"),
    ],
)
def test_each_breach_of_a_rule_is_named(heuristic: type, problem: str) -> None:
    with pytest.raises(AssertionError) as raised:
        check_heuristic(heuristic)
    assert [line for line in str(raised.value).split("\n") if line.startswith(problem)]


def test_values_that_depend_on_earlier_jobs_are_found() -> None:
    class Remembers(Narrow):
        def __init__(self) -> None:
            self.seen: dict[str, int] = {}

        def contribution(self, job: Job) -> float:
            key = f"{job.submitted} {job.cpus} {job.time_limit} {job.deadline}"
            return self.seen.setdefault(key, len(self.seen) % 10)

    with pytest.raises(AssertionError, match="depend on jobs that it was asked about before"):
        check_heuristic(Remembers)


def test_a_slow_heuristic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "MAX_CPU_SECONDS", 1e-9)  # whatever the host
    with pytest.raises(AssertionError, match=r"^speed: .* ms of processor time for a job"):
        check_heuristic(Narrow)


def test_what_else_runs_is_not_watched() -> None:
    clock, date = time.time, datetime.datetime
    with pytest.raises(AssertionError):
        check_heuristic(Clock)
    assert (time.time, datetime.datetime, monotonic) == (clock, date, time.monotonic)
    HERE.read_text()
    check_heuristic(Narrow, full=8)


def test_another_class_is_refused() -> None:
    with pytest.raises(TypeError, match="Job is derived from none of Heuristic, "):
        check_heuristic(Job)


def test_the_example_of_the_documents_keeps_the_rules_and_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_example(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tests = runpy.run_path(str(EXAMPLE / "test_site_heuristics.py"))
    own = [test for name, test in tests.items() if name.startswith("test_")]
    assert len(own) == 2
    for test in own:
        test()
    assert check_plugin("small_first", ["full=8"]) == 0
    assert capsys.readouterr().out == "small_first keeps the rules, of 48 jobs.\n"
    assert check_plugin("small_first", ["full=-1"]) == 1
    assert capsys.readouterr().out.startswith("[heuristics.small_first] range: its value is ")
    for name, settings, problem in (
        ("small", [], 'no heuristic "small" is installed here, NAME; there are '),
        ("small_first", ["full=x"], '"full=x" sets no number up to '),
        ("small_first", ["fill=8"], "cannot be created: TypeError: "),
    ):
        with pytest.raises(UserError, match=problem):
            check_plugin(name, settings)

    text = '[[cluster]]\nname = "fast"\ncpus = 64\nbenchmark = 300\n'
    clusters = tmp_path / "clusters.toml"
    clusters.write_text(text + text.replace("fast", "slow").replace("300", "100"))
    laboratory = read_settings(
        str(EXAMPLE / "policy.toml"), ["pull=false", "jobs=100", "cpus=32"], 1, str(clusters)
    )
    schedule = simulate(*read_workload("lublin", str(clusters), None, laboratory), laboratory)
    assert schedule.excluded == {}
    for done in schedule.jobs:
        ratings = {"fast": done.job.estimated > 3600, "slow": done.job.estimated <= 3600}
        assert ratings[schedule.clusters[done.cluster].name], done


@pytest.mark.parametrize("setting", ["full=nan", "full=inf", "full=1e13", "full=", "full"])
def test_a_parameter_that_no_policy_file_may_have_is_refused(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "installed", lambda kind: ("narrow",))
    with pytest.raises(UserError, match="sets no number up to 1e"):
        policy.check_plugin("narrow", [setting])
