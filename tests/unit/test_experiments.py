"""The published experiments: their settings, their arithmetic, and one run of each kind."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from metasched.cli import main
from metasched.laboratory.experiments import catalogue as experiments
from metasched.laboratory.experiments.catalogue import EXPERIMENTS, run_experiment
from metasched.laboratory.experiments.federations import TOO_LARGE, Federation, TraceSite
from metasched.laboratory.experiments.formulas import describe_formulas
from metasched.laboratory.experiments.harness import (
    FigureResult,
    SimulationCase,
    confidence_interval,
    read_workload,
)
from metasched.laboratory.experiments.tables import (
    CODE_FOLDERS,
    load_results,
    measured_code,
    render_tables,
    save_results,
)
from metasched.laboratory.simulate import metrics
from metasched.laboratory.simulate.settings import SimulationSettings
from metasched.version import RELEASE
from tests.conftest import require
from tests.harness.traces import trace


@pytest.mark.parametrize(
    "name",
    [
        *("licence-ratios", "contention", "load-shares", "two-level", "better-table6", "plans"),
        *("grid-plans", "plan-readings", "tabu-readings", "convergent-readings"),
    ],
)
def test_every_case_can_be_drawn_and_compared(name: str) -> None:
    experiment = EXPERIMENTS[name]
    cases = experiment.cases()
    assert {case.column for case in cases} >= {experiment.baseline}
    for case in cases:
        assert set(case.published) <= set(experiment.figures)
        assert isinstance(case, SimulationCase)
        case.settings.policy_factory()
    workload, clusters = cases[0].scenario(1)
    assert workload == cases[0].scenario(1)[0] != cases[0].scenario(2)[0]
    assert len(workload.entries) in (1000, 1500, 3000, 5000)
    assert sum(len(c.machines) for c in clusters) in (100, 150, 225)


@pytest.mark.parametrize(
    ("name", "policy", "reading", "parameter"),
    [
        ("convergent-readings", "cs-ni-np", "cs-ni-np, late printed", ("late", "printed")),
        ("convergent-readings", "cs-ni-np", "cs-ni-np, longest printed", ("longest", "job")),
        ("convergent-readings", "cs-ni-np", "cs-ni-np, discarded printed", ("discarded", "wait")),
        ("convergent-readings", "cs-ni-np", "cs-ni-np, thesis", ("preset", "thesis")),
        ("plan-readings", "eg-edf", "eg-edf, pairs", ("preset", "du2010")),
        ("grid-plans", "tabu", "tabu, plan", ("compare", "plan")),
        ("tabu-readings", "tabu, late", "tabu, rounds", ("stop", "rounds")),
    ],
)
def test_a_reading_differs_from_the_default_in_one_parameter(
    name: str, policy: str, reading: str, parameter: tuple[str, str]
) -> None:
    settings = {
        case.column: case.settings
        for case in EXPERIMENTS[name].cases()
        if isinstance(case, SimulationCase)
    }
    with_reading = {**settings[policy].parameters, parameter[0]: parameter[1]}
    assert settings[reading] == replace(settings[policy], parameters=with_reading)


def test_intervals_of_paired_differences() -> None:
    assert confidence_interval([1.0, 3.0]) == pytest.approx((2.0, 12.706))
    assert confidence_interval([1.0, 3.0] * 500) == pytest.approx(
        (2.0, 1.962 / math.sqrt(999)), rel=1e-3
    )
    assert confidence_interval([4.0]) == (4.0, math.inf)
    result = FigureResult("row", "easy", "late", (10.0, 14.0), 10.0, None)
    assert (result.mean, result.difference) == (12.0, 20.0)
    assert (result.paired, result.ratio) == (None, None)
    paired = FigureResult("row", "fcfs", "late", (11.0, 17.0), None, (10.0, 14.0))
    assert paired.paired == pytest.approx((2.0, 12.706))
    assert paired.ratio == 14 / 12


# Federations


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write two logs with one job a minute, ten users and two partitions each."""
    for name, cpus in (("a.swf", 2), ("b.swf", 4)):
        lines = [
            f"{n} {60 * n} -1 600 -1 -1 -1 {cpus} 900 -1 1 {n % 10} -1 -1 -1 {n % 2} -1 -1\n"
            for n in range(1, 1001)
        ]
        (tmp_path / name).write_text("".join(lines))
    monkeypatch.setenv("METASCHED_TRACES", str(tmp_path))


SITES = (TraceSite("a.swf", {"one": 16, "two": 8}), TraceSite("b.swf", {"three": 20}, "1", 3))


def test_a_federation_is_windows_at_a_load(logs: None) -> None:
    grid = Federation("both", SITES, 300, 0.8)(1)
    workload, clusters = grid
    assert grid == Federation("both", SITES, 300, 0.8)(1)
    assert workload != Federation("both", SITES, 300, 0.8)(3)[0]
    assert [(c.name, c.cpus) for c in clusters] == [("three", 20), ("one", 16), ("two", 8)]
    end = workload.entries[-1].job.submitted
    for names, cpus in ((("one", "two"), 24), (("three",), 20)):
        work = sum(r.run_time * r.job.cpus for r in workload.entries if r.home in names)
        assert work / (cpus * end) == pytest.approx(0.8, rel=0.05)
    submitted = [r.job.submitted for r in workload.entries]
    assert submitted[0] == 0
    assert submitted == sorted(submitted)
    assert not any(r.direct for r in workload.entries)
    deadlines = [r.job.margin for r in workload.entries if r.job.margin is not None]
    assert 0.6 < len(deadlines) / len(submitted) < 0.8
    assert all(0.5 * 900 <= margin <= 8 * 900 for margin in deadlines)


def test_a_user_has_one_home_and_one_habit(logs: None) -> None:
    workload, _ = Federation("both", SITES, 300, 0.8, direct_share=0.5)(2)
    habits = {(r.job.user, r.home, r.direct) for r in workload.entries}
    assert len(habits) == len({r.job.user for r in workload.entries})
    assert len({direct for _, _, direct in habits}) == 2


def test_jobs_larger_than_the_clusters_are_counted(logs: None, tmp_path: Path) -> None:
    lines = (tmp_path / "a.swf").read_text().splitlines(keepends=True)
    large = [line.replace(" 2 900 ", " 99 900 ") for line in lines[::4]]
    (tmp_path / "large.swf").write_text("".join(sorted(lines + large, key=_second_word)))
    read_workload.cache_clear()
    workload, _ = Federation("c", (TraceSite("large.swf", {"one": 16}),), 200, 0.8)(1)
    assert workload.entries[-1].job.id == 200
    assert max(entry.job.cpus for entry in workload.entries) == 2
    assert workload.dropped == {TOO_LARGE: 50}  # a quarter more than the 200 of the window
    assert Federation("both", SITES, 300, 0.8)(1).workload.dropped == {}


def _second_word(line: str) -> int:
    return int(line.split()[1])


FEDERATION = """
jobs = 60
loads = [0.8, 0.9]
schemes = ["observed+pull"]
policies = { tuned = "tuned.toml" }
[[site]]
trace = "a.swf"
clusters = { one = 16, two = 8 }
[[site]]
trace = "b.swf"
clusters = { three = 20 }
partition = 1
"""


def test_a_federation_of_ones_own(
    logs: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "site.toml"
    file.write_text(FEDERATION)
    (tmp_path / "tuned.toml").write_text("pull = false\n")
    arguments = ["better", "--federation", file, "--runs", 2, "--row", "site 0.90", "--json"]
    assert command(monkeypatch, *arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["setting"] for row in rows} == {"site 0.90"}
    assert [row["policy"] for row in rows if row["figure"] == "wait, s"] == [
        "sbatch -M",
        "observed+pull",
        "tuned",
    ]
    moves = {row["policy"]: row["mean"] for row in rows if row["figure"] == "moves per job"}
    assert moves["tuned"] == 0
    assert [row["mean"] for row in rows if row["figure"] == "jobs left out"] == [0, 0, 0]

    # the figures are those of the same federation in the code
    sites = tuple(
        replace(each, trace_name=str(tmp_path / each.trace_name), thinning=1) for each in SITES
    )
    case = SimulationCase(
        "", "", Federation("site", sites, 60, 0.9), SimulationSettings(policy="easy")
    )
    waits = [metrics.mean(p.wait for p in case.run(seed).jobs) for seed in (1, 2)]
    [observed] = [r for r in rows if (r["policy"], r["figure"]) == ("observed+pull", "wait, s")]
    assert observed["values"] == pytest.approx(waits)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("jobs = 60", "jobs = 0", "jobs = 0"),
        ("jobs = 60", "jbos = 60", "jobs"),
        ("a.swf", "none.swf", "no trace"),
        ("tuned.toml", "none.toml", "no file"),
        ("observed+pull", "obsreved", 'unknown scheme "obsreved"'),
        ("three = 20", "two = 20", 'two clusters are named "two"'),
        ("tuned =", "late =", '"late" is the name of a scheme'),
        ("[0.8, 0.9]", "[0.8, 0.801]", "two loads are equal"),
        ("partition = 1", "partition = 7", "too few jobs for three"),
        ("loads =", "local = 'esay'\nloads =", "easy"),
        ("jobs = 60", "jobs = ", "site.toml"),
        ("jobs = 60", "silver = 1.0", "gold and silver together"),
    ],
)
def test_a_wrong_federation_is_one_line(
    logs: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    problem: str,
) -> None:
    file = tmp_path / "site.toml"
    assert before in FEDERATION
    file.write_text(FEDERATION.replace(before, after))
    (tmp_path / "tuned.toml").write_text("pull = false\n")
    assert command(monkeypatch, "better", "--federation", file, "--runs", 1) == 2
    out, err = capsys.readouterr()
    assert problem in err
    assert (out, err.count("\n")) == ("", 1)


def test_the_federations_are_those_that_are_compared() -> None:
    for name in ("better", "better-half", "better-forecast"):
        trace("LCG-2005-1.swf.gz")
        cases = EXPERIMENTS[name].cases()
        rows = {case.row for case in cases}
        assert len(rows) == (9 if name == "better" else 3)
        assert all(
            any(c.row == row and c.column == EXPERIMENTS[name].baseline for c in cases)
            for row in rows
        )


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["metasched", "experiment", *map(str, arguments)])
    return main()


def test_the_list_names_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "--list", "--json") == 0
    assert [e["experiment"] for e in json.loads(capsys.readouterr().out)] == list(EXPERIMENTS)
    assert command(monkeypatch, "--list") == 0
    assert "Pasquali 2008, Table 6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no NAME"),
        (["two-leve"], "write two-level"),
        (["local-periods"], "no trace nowhere/"),
        (["two-level", "--federation", "x.toml"], "two-level takes no federation"),
        (["better", "--federation", "x.toml", "--resume", "r"], "are not kept, --resume"),
        (["two-level", "--row", "inter-arival 5"], "unknown setting"),
        (["two-level", "--row", "x", "--save", "."], "are not kept, --save"),
    ],
)
def test_wrong_usage_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("METASCHED_TRACES", "nowhere")
    assert command(monkeypatch, *arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_local_policies_of_kurowski(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """F of LSF grows with its period, as published; at one hour it is over 5 x that of FCFS."""
    monkeypatch.setenv("METASCHED_TRACES", str(trace("S1-jobs-0-1000.swf").parent))
    assert command(monkeypatch, "local-periods", "--plot", tmp_path / "made", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    flow = {row["policy"]: row["mean"] for row in rows if row["figure"] == "F"}
    assert flow["LSF-10"] < flow["LSF-60"] < flow["LSF-600"] < flow["LSF-3600"]
    assert flow["LSF-3600"] > 5 * flow["FCFS"]
    assert f"{flow['FCFS']:.0f}" == "15658"
    assert {p.name for p in (tmp_path / "made").iterdir()} == {
        "local-periods-F.png",
        "local-periods-U.png",
    }


@pytest.mark.slow("eight simulations with licences")
@pytest.mark.no_cover
def test_flexible_backfilling_misses_fewer_deadlines_than_easy_and_fcfs() -> None:
    """Pasquali 2008, Table 3, ratio 50-70%: the order of missed deadlines, over two seeds."""
    cases = [case for case in EXPERIMENTS["licence-ratios"].cases() if "50" in case.row[6:8]]
    assert len(cases) == 4
    late: dict[str, float] = {}
    for case in cases:
        values = [
            experiments._run_case("licence-ratios", 8 + cases.index(case), seed) for seed in (1, 2)
        ]
        late[case.column] = sum(v["late"] for v in values)
    assert late["fb-unmod"] < late["easy"] - 2
    assert late["fb-mod"] < late["easy"] - 2
    assert late["easy"] < late["fcfs"] - 5


def test_runs_are_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASCHED_TRACES", str(trace("S1-jobs-0-1000.swf").parent))
    done: list[int] = []
    first = run_experiment(EXPERIMENTS["random-queues"], 2, done.append)
    assert sum(done) == 12
    again = run_experiment(EXPERIMENTS["random-queues"], 1)
    assert [r.values[:1] for r in first] == [r.values for r in again]
    usage = {(r.row, r.column): r.mean for r in first if r.figure == "U"}
    assert usage["2 x 64", "FCFS"] > usage["4 x 64", "FCFS"] > usage["8 x 64", "FCFS"]


# Stored results and the page of tables

RESULTS = [
    FigureResult("load 0.7", "easy", "wait, s", (12000.4, 13000.4), None, None),
    FigureResult("load 0.7", "easy", "U", (0.5, 0.6), 0.61, None),
    FigureResult("load 0.7", "fcfs", "wait, s", (14001.0, 15002.0), None, (12000.4, 13000.4)),
    FigureResult("load 0.7", "fcfs", "U", (0.4, 0.3), None, (0.5, 0.6)),
]


def test_stored_results_become_a_table(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENTS["contention"], source="a paper")
    save_results(tmp_path, experiment, 2, RESULTS)
    [stored] = load_results(tmp_path, ["better", "contention"])
    assert (stored.experiment, stored.runs) == ("contention", 2)
    page = render_tables([stored])
    assert page.startswith("# Tables of the experiments\n")
    assert "Source: a paper. 2 seeds, " in page
    assert page.endswith(
        "| setting | policy | wait, s | U | published |\n"
        "|---|---|--:|--:|--:|\n"
        "| load 0.7 | easy | 12500 | 0.55 | 0.61 |\n"
        "| load 0.7 | fcfs | 14502 (+2001 ± 6.4) | 0.35 (-0.2 ± 1.3) |  |\n"
    )


def test_experiments_name_the_formulas_of_their_policies() -> None:
    described = {name: describe_formulas(each.cases()) for name, each in EXPERIMENTS.items()}
    thesis, paper, default = described["deadline-readings"]
    assert thesis.startswith("`thesis`: Flexible Backfilling, preset `thesis`. A deadline is worth")
    assert "it is worth 0. nxt is the estimate. age_factor 0.01, least 0.1, most 20" in thesis
    assert "it is worth `least`. nxt is estimate x benchmark" in paper
    assert "no preset" in default
    assert ["lead 2" in line for line in described["load-shares"]] == [True]
    default, late, longest, discarded, thesis = described["convergent-readings"][1:]
    assert "have no share while another meets it" in default
    assert late.startswith("`cs-ni-np, late printed`: Convergent Scheduling, no preset. A deadline")
    assert "have a share" in late
    assert "relative to the longest time of all jobs" in late
    assert "relative to the job's longest time" in longest
    assert "Jobs that the knapsack discards return where they fit." in longest
    assert "Jobs that the knapsack discards wait for the next plan." in discarded
    assert thesis.startswith("`cs-ni-np, thesis`: Convergent Scheduling, preset `thesis`. A")
    assert "have a share" in thesis
    assert "relative to the job's longest time" in thesis
    tabu, rcbo, *with_plan = described["grid-plans"]
    assert tabu.startswith("`tabu`: EG-EDF and Tabu Search, preset `du2010`. Candidates of an")
    assert "compared in pairs with the best so far by" in tabu
    assert tabu.endswith("begins again with all machines.")
    assert "late jobs in place of jobs in time" in rcbo
    assert all("compared with the plan without the job by" in line for line in with_plan)
    for name in ("licence-ratios", "contention", "two-level", "plans", "convergent-exact"):
        assert described[name], name
    assert described["random-queues"] == []


def test_stored_results_name_the_code_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("git") is None:
        require("git", "git is not installed")

    def git(*arguments: str) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(
            ["git", "-C", tmp_path, *names, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    release = f"release {RELEASE}"
    assert measured_code(tmp_path) == release  # no checkout
    (tmp_path / "pyproject.toml").write_text('name = "metasched"\n')
    git("init", "--quiet")
    assert measured_code(tmp_path) == release  # no commit
    for folder in CODE_FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text("")
    git("add", ".")
    git("commit", "--quiet", "--message=a")
    revision = f"revision {git('rev-parse', '--short=9', 'HEAD')}"
    (tmp_path / "results.json").write_text("")
    assert measured_code(tmp_path) == revision
    assert measured_code(tmp_path / "metasched") == release  # in another checkout
    (tmp_path / "metasched/module.py").write_text("changed")
    assert measured_code(tmp_path) == f"{revision} with changes"
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert measured_code(tmp_path) == f"{revision}, perhaps with changes"


def test_the_page_of_tables_is_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(__file__).parents[2] / "docs/experiments"
    assert command(monkeypatch, "--tables", folder / "results") == 0
    assert capsys.readouterr().out == (folder / "tables.md").read_text()
    stored = load_results(folder / "results", list(EXPERIMENTS))
    assert [results.experiment for results in stored] == list(EXPERIMENTS)
    for results in stored:
        experiment = EXPERIMENTS[results.experiment]
        assert {figure.figure for figure in results.figures} <= set(experiment.figures)
        assert (results.about, results.baseline) == (experiment.about, experiment.baseline)


def test_wrong_folders_of_results_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "better.json").write_text('{"experiment": 3}')
    for arguments, message in (
        (["--tables", tmp_path / "none"], "no results in"),
        (["--tables", tmp_path], "store it again with --save"),
        (["random-queues", "--save", tmp_path / "none"], "create it first"),
    ):
        assert command(monkeypatch, *arguments) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_saved_results_can_be_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METASCHED_TRACES", str(trace("S1-jobs-0-1000.swf").parent))
    assert command(monkeypatch, "local-periods", "--save", tmp_path) == 0
    capsys.readouterr()
    assert command(monkeypatch, "--tables", tmp_path) == 0
    assert "| 1 x 128 | FCFS | 0.5643 | 0.587 | 15658 | 16228 |" in capsys.readouterr().out
