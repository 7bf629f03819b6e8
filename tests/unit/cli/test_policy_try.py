"""The command `policy try` on a recorded ledger and on a trace: its output, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from metasched.db.sqlite import Sqlite
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.synthetic import generate_lublin
from metasched.laboratory.simulate.workload import Overlay
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.harness.plug_in_packages import install
from tests.harness.recorded_site import record
from tests.unit.cli.fake_daemon import Run

JOBS = 150
TRACE = "; MaxProcs: 4\n" + "".join(
    f"{n} {n} -1 60 4 -1 -1 4 90 -1 1 {n % 2} 1 -1 1 -1 -1 -1\n" for n in range(1, 9)
)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some recorded days of two clusters."""
    path = tmp_path_factory.mktemp("record") / "ms.db"
    workload, _ = generate_lublin(JOBS, 8, 5)
    workload = Overlay(deadlines=0.5, gold=0.5).apply(workload, 5)
    clusters = [SimulatedCluster(name=name, cpus=8, queue_depth=0) for name in ("left", "right")]
    simulation = Simulation(workload, clusters, Policy(), lambda _: make_policy("easy", {}, {}))
    record(simulation, Sqlite(path))
    return path


@pytest.fixture
def candidate(tmp_path: Path) -> str:
    path = tmp_path / "candidate.toml"
    path.write_text("pull = false\n[weights]\ndeadline = 5\n")
    return str(path)


def test_the_changes_in_json_and_as_tables(ledger: Path, candidate: str, run: Run) -> None:
    answer = json.loads(run("policy", "try", candidate, "--database", str(ledger), "--json").out)
    assert answer["jobs"] == JOBS
    assert answer["compared_with"] == "the recorded policy"
    assert {each["name"] for each in answer["differences"]} == {"pull", "weights.deadline"}
    assert answer["replay"]["problems"] == []
    assert answer["replay"]["decisions"] >= 2 * JOBS
    wait = answer["figures"][0]
    # the simulator is the same, so the policy that was in force gives what was recorded
    assert wait["recorded"] == pytest.approx(wait["before"])
    assert wait["after"] != wait["before"]
    assert wait["low"] <= wait["change"] <= wait["high"]
    assert [each["name"] for each in answer["groups"]["cluster"]] == ["left", "right"]
    shown = run("policy", "try", candidate, "--database", str(ledger))
    assert shown.code == 0
    assert "they give all" in shown.out
    assert "WAIT_BEFORE" in shown.out


def test_a_page_with_everything_in_it(
    ledger: Path, candidate: str, tmp_path: Path, run: Run
) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "try.html"
    run("policy", "try", candidate, "--database", str(ledger), "--html", str(page))
    html = page.read_text()
    for title in ("Changed keys", "Waits", "User classes", "Clusters", "Notes"):
        assert f"<h2>{title}</h2>" in html
    assert 'src="http' not in html


def test_the_policy_itself_changes_nothing(ledger: Path, tmp_path: Path, run: Run) -> None:
    same = tmp_path / "same.toml"
    same.write_text("")
    result = run("policy", "try", str(same), "--database", str(ledger), "--json")
    answer = json.loads(result.out)
    assert answer["differences"] == []
    assert {each["change"] for each in answer["figures"]} == {0.0}
    assert answer["elsewhere"] == 0


def test_a_decision_that_a_replay_does_not_give_is_reported(
    ledger: Path, candidate: str, tmp_path: Path, run: Run
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(ledger.read_bytes())
    engine = Sqlite(copy).open_existing()
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET priority = 99 WHERE id = 3"))
    engine.dispose()
    result = run("policy", "try", candidate, "--database", str(copy))
    assert result.code == 1
    assert "1 decisions or states are not those recorded" in result.out
    assert "job 3 has priority 99, replayed " in result.out


def test_a_trace_where_there_is_no_history(candidate: str, tmp_path: Path, run: Run) -> None:
    trace = tmp_path / "site.swf"
    trace.write_text(TRACE)
    result = run(
        *("policy", "try", candidate, "--trace", str(trace), "--clusters", "4,4", "--json")
    )
    answer = json.loads(result.out)
    assert (answer["jobs"], answer["replay"], answer["compared_with"]) == (8, None, "default")
    assert answer["figures"][0]["recorded"] is None
    assert [each["jobs"] for each in answer["groups"]["user"]] == [4, 4]


def test_accounting_of_the_time_before(candidate: str, tmp_path: Path, run: Run) -> None:
    alpha, cell = tmp_path / "alpha.txt", tmp_path / "cell.txt"
    alpha.write_text(
        "JobID|User|Submit|Start|End|AllocCPUS\n1|ada|1000|1010|1070|4\n2|bob|1001|1070|1100|4\n"
    )
    cell.write_text(
        "=" * 62 + "\nowner ada\njobnumber 9\nslots 4\nqsub_time Thu Jan  1 00:30:00 1970\n"
        "start_time Thu Jan  1 00:31:00 1970\nend_time Thu Jan  1 00:32:00 1970\n"
    )
    options = ("--sacct", str(alpha), "--qacct", str(cell), "--cpus", "alpha=8", "--json")
    answer = json.loads(run("policy", "try", candidate, *options).out)
    assert (answer["jobs"], answer["compared_with"]) == (3, "default")
    assert answer["source"] == f"{alpha}, {cell}"
    # 10 s and 69 s on Slurm, 60 s on Grid Engine; now each of them starts at once
    assert answer["figures"][0]["recorded"] == pytest.approx((10 + 69 + 60) / 3)
    assert answer["figures"][0]["before"] == 0.0
    [note] = answer["notes"]
    assert "(cell 4)" in note


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "soon"], '"soon" is no time, --since; '),
        (["--since", "1h", "--until", "2h"], "the period ends before it begins, --until; "),
        (["--since", "1h"], "no task that was submitted in the period has run and ended; choose"),
        (["--clusters", "64"], "--clusters does not go with the other options; it is for --trace"),
        (["--cpus", "a=4"], "--cpus does not go with the other options; it is for --sacct"),
        (["--sacct", "x"], "--database does not go with the other options; name one source"),
        (["--before", "missing.toml"], "missing.toml"),
        (["--html", "page.txt"], "page.txt is not an HTML file, --html; "),
        (["--trace", "x.swf"], "--database does not go with the other options; name one source"),
    ],
)
def test_bad_options_are_one_line(
    ledger: Path, candidate: str, run: Run, arguments: list[str], message: str
) -> None:
    result = run("policy", "try", candidate, "--database", str(ledger), *arguments)
    assert result.code != 0
    assert result.out == ""
    [line] = result.err.splitlines()
    assert line.startswith("metasched: error: ")
    assert message in line


def test_mistakes_in_the_file_are_named_each(tmp_path: Path, ledger: Path, run: Run) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("aeg = 4\n[weights]\nuser = -1\n")
    result = run("policy", "try", str(bad), "--database", str(ledger))
    assert result.code == 2
    assert "age" in result.err
    assert len(result.err.splitlines()) == 2


def test_a_class_that_the_file_lacks_is_noted(tmp_path: Path, ledger: Path, run: Run) -> None:
    lacking = tmp_path / "lacking.toml"
    lacking.write_text("[classes]\nregular = 1\n")
    answer = json.loads(run("policy", "try", str(lacking), "--database", str(ledger), "--json").out)
    assert 'the file has no class "gold": its jobs count 1 here' in answer["notes"][0]


def test_a_heuristic_that_rates_no_job_is_told(
    tmp_path: Path, ledger: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the figures are those of another policy."""
    source = "from metasched.policies.heuristic import Heuristic\n\nclass Wrong(Heuristic):\n"
    source += "    def contribution(self, job):\n        raise ValueError\n"
    install(tmp_path, "tried_heuristics", source, {"metasched.heuristics": {"tried": "Wrong"}})
    monkeypatch.syspath_prepend(tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text("[heuristics.tried]\nweight = 1\n")
    answer = json.loads(run("policy", "try", str(policy), "--database", str(ledger), "--json").out)
    assert f"heuristic tried was excluded for {JOBS} jobs after; correct it" in answer["notes"]
    policy.write_text("[heuristics.missing]\nweight = 1\n")
    result = run("policy", "try", str(policy), "--database", str(ledger))
    assert result.code != 0
    [line] = result.err.splitlines()
    assert f"[heuristics.missing] of {policy}" in line


def test_other_databases(candidate: str, tmp_path: Path, run: Run) -> None:
    empty, other, old = (tmp_path / name for name in ("empty.db", "other.db", "old.db"))
    Sqlite(empty).open().dispose()
    other.write_text("no database at all")
    engine = Sqlite(old).open()
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    engine.dispose()
    for path, message in (
        (empty, "no start of a daemon in the period"),
        (other, "cannot be"),
        (old, "has schema 0001 of a metasched before 1.0"),
    ):
        result = run("policy", "try", candidate, "--database", str(path))
        assert result.code != 0
        [line] = result.err.splitlines()
        assert message in line
