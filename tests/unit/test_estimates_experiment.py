"""The experiment on estimated starts: its state at an arrival, its peers, and a run of each."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from metasched.cli import main
from metasched.laboratory.experiments import estimates
from metasched.laboratory.experiments.binomial_bounds import MIN_WAITS, BinomialBounds, upper_rank
from metasched.laboratory.experiments.estimates import EstimateCase, Prediction
from metasched.laboratory.experiments.harness import TraceFile


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A machine of two processors, a job of both each 100 s; they run for 50, 120 s by turns.

    Limits are 200 s. So every job that follows a long one waits for 20 s.
    """
    lines = [
        f"{n} {100 * n} -1 {120 if n % 2 else 50} -1 -1 -1 2 200 -1 1 7 -1 -1 -1 -1 -1 -1\n"
        for n in range(1, 201)
    ]
    path = tmp_path / "log.swf"
    path.write_text("".join(lines))
    return path


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["metasched", "experiment", *map(str, arguments)])
    return main()


def test_the_figures_of_a_log_by_hand(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At an arrival after a long job, that has run for 100 s: only 120 s is left to it."""
    assert (
        command(monkeypatch, "estimates", "--trace", log, "--cpus", 2, "--runs", 1, "--json") == 0
    )
    figures = {
        (row["policy"], row["figure"]): row["mean"] for row in json.loads(capsys.readouterr().out)
    }
    assert {row[0] for row in figures} == {"forecast", "limits", "past waits"}
    for policy in ("forecast", "limits", "past waits"):
        assert figures[policy, "waiting, %"] == 50
    assert figures["forecast", "in interval, %"] == 100
    assert figures["forecast", "median width, min"] == 0
    assert figures["forecast", "median error, min"] == 0
    # by limits it ends 100 s later
    assert figures["limits", "median error, min"] == pytest.approx(80 / 60)
    assert figures["limits", "in interval, %"] == 0
    assert figures["limits", "in interval of all, %"] == 50
    assert figures["limits", "within 1 min, %"] == 0
    assert figures["limits", "within 10 min, %"] == 100
    # the waits before were 0 and 20
    assert figures["past waits", "median width, min"] == pytest.approx(20 / 60)
    assert figures["past waits", "in interval, %"] == 100


def test_nothing_of_the_future_is_known_at_an_arrival(log: Path) -> None:
    case = EstimateCase("log", "forecast", TraceFile(log, 2))
    jobs = estimates._simulated(case.file)
    arrivals = list(estimates._arrivals(jobs, 2, seed=1))
    assert len(arrivals) == 20  # the last tenth
    for arrival in arrivals:
        now = arrival.job.job.submitted
        assert arrival.snapshot.now == now
        assert arrival.snapshot.waiting[-1].limits == {0: 200}
        assert all(task.start < now for task in arrival.snapshot.running)
        free = arrival.snapshot.clusters[0].free_cpus
        assert free == 2 - 2 * len(arrival.snapshot.running)
    assert case.run(1) == case.run(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["estimates", "--cpus", 2], "--cpus without --trace; give both"),
        (["estimates", "--trace", "LOG"], "--trace without --cpus; give both"),
        (["estimates", "--trace", "nowhere.swf", "--cpus", 2], "no file nowhere.swf, --trace"),
        (["estimates", "--trace", "LOG", "--cpus", 0], "0 processors, --cpus; write 1 to"),
        (["estimates", "--trace", "LOG", "--cpus", 10**9], "--cpus; write 1 to"),
        (["estimates", "--trace", "SHORT", "--cpus", 2], "3 jobs need at most 2 processors, "),
        (["estimates", "--trace", "LOG", "--cpus", 1], "0 jobs need at most 1 processors, "),
        (["estimates", "--trace", "WRONG", "--cpus", 2], "the file is not an SWF trace"),
        (["estimates", "--trace", "LOG", "--cpus", 2, "--save", "."], "are not kept, --save"),
        (["better", "--trace", "LOG", "--cpus", 2], "better takes no trace, --trace"),
    ],
)
def test_wrong_traces_are_one_line(
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[object],
    message: str,
) -> None:
    short, wrong = log.with_name("short.swf"), log.with_name("wrong.swf")
    short.write_text("".join(log.read_text().splitlines(keepends=True)[:3]))
    wrong.write_text("a job\n")
    files = {"LOG": log, "SHORT": short, "WRONG": wrong}
    assert command(monkeypatch, *[files.get(str(each), each) for each in arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_coverage_and_error() -> None:
    assert Prediction(100, 90, 95, 99).covered  # within a second
    assert not Prediction(100, 90, 95, 98.5).covered
    assert not Prediction(100, 101.5, 110, 120).covered
    assert Prediction(100, 90, 95, 99).error == 5


# The binomial method


def test_ranks_are_those_of_the_binomial_distribution() -> None:
    with pytest.raises(ValueError, match="28 values give no bound; 29 do"):
        upper_rank(MIN_WAITS - 1)
    assert upper_rank(MIN_WAITS) == 29  # all 29 lie below it with probability .047
    assert upper_rank(45) == 45  # 45 of 45: .0087; 44 or more: .052
    assert upper_rank(46) == 45  # 45 or more of 46: .048
    for number in (60, 150, 300, 301, 1000):
        rank = upper_rank(number)
        assert below(number, rank) >= 0.95
        assert below(number, rank - (1 if number <= 300 else 3)) < 0.95


def below(number: int, rank: int) -> float:
    """The probability that fewer than `rank` of the values lie below the 90% quantile."""
    return sum(math.comb(number, k) * 0.9**k * 0.1 ** (number - k) for k in range(rank))


def test_past_waits_bound_the_next() -> None:
    waits = BinomialBounds()
    for wait in range(100):
        assert waits.bounds(1).late == math.inf or wait >= MIN_WAITS
        waits.add(4, 50.0 if wait % 2 else 10.0)
    assert waits.bounds(1) == (10, 50, 50)
    assert waits.bounds(5) == (0, 0, math.inf)  # jobs of 5 to 16 processors
    waits.add(64, 7)
    assert waits.bounds(17).median == 7
    assert waits.bounds(65).median == 0


def test_three_misses_in_a_row_forget_all_but_the_last_waits() -> None:
    waits = BinomialBounds()
    for _ in range(200):
        waits.add(1, 10)
    waits.add(1, 500)
    waits.add(1, 500)
    assert waits.bounds(1).late == 10
    waits.add(1, 500)
    assert waits.bounds(1) == (10, 10, 500)  # 29 waits, the last three of 500
