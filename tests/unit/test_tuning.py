"""`metasched tune`: search space, trials in order, resumption, the test of a gain, its file."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from msgspec import structs
from sqlalchemy import create_engine, inspect, text

from metasched.cli.app import run as run_command
from metasched.config.policy_file import examine_policy, parse_policy
from metasched.config.policy_words import policy_text
from metasched.core.events import ClusterDrained
from metasched.db.sqlite import Sqlite
from metasched.errors import UserError
from metasched.laboratory.simulate import metrics, swf
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.settings import simulate
from metasched.laboratory.simulate.synthetic import generate_lublin
from metasched.laboratory.simulate.workload import to_trace
from metasched.laboratory.tuning.held_out import count_refused, is_gain, paired_difference
from metasched.laboratory.tuning.inputs import InputSources, describe_inputs, read_inputs
from metasched.laboratory.tuning.objectives import (
    OBJECTIVES,
    dominates,
    mean_values,
    parse_objectives,
)
from metasched.laboratory.tuning.outcome import (
    JudgedTrial,
    StudyResult,
    choose,
    find_front,
    outcome_json,
)
from metasched.laboratory.tuning.search_space import GRID, make_search_space
from metasched.laboratory.tuning.study import Study, Trial, file_storage, open_study
from metasched.laboratory.tuning.trials import MIN_COMPARED, HeldOutRun, run_trial
from metasched.laboratory.tuning.tuned_policy import check_output, verdict
from metasched.model.limits import LimitSettings, LimitTable
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy, SelfOptimisation
from tests.harness.recorded_site import record

pytest.importorskip("optuna")

PAGE = Path(__file__).parents[2] / "docs/tuning.md"
SETTINGS = ("jobs=300", "cpus=48", "deadlines=0.6", "gold=0.2", "silver=0.3", "pace=0.6")
SOURCES = InputSources("lublin", "32,16", settings=SETTINGS, seed=3)
BOTH = ("missed_deadlines", "mean_wait")


class InThisProcess(Executor):
    """Runs what is submitted at once, after `before`."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        self._before()
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **named))
        return future


def run_study(
    storage: str,
    count: int,
    sources: InputSources = SOURCES,
    objectives: tuple[str, ...] = BOTH,
    executor: Executor | None = None,
) -> list[Trial]:
    inputs = read_inputs(sources)
    space = make_search_space(inputs)
    description = describe_inputs(sources, inputs) | {"objectives": ", ".join(objectives)}
    with open_study(storage, "test", description, objectives, 2) as stored:
        study = Study(stored, sources, space, objectives)
        study.run(count, executor or InThisProcess())
        return study.trials


# Objectives


def test_objectives_are_the_figures_of_simulate() -> None:
    inputs = read_inputs(SOURCES)
    schedule = simulate(inputs.training, inputs.clusters, inputs.settings)
    summary = metrics.summary(schedule, "", 1.0)
    values = mean_values(schedule, tuple(OBJECTIVES))
    assert values == pytest.approx([summary[name] for name in OBJECTIVES])
    assert all(values)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("mean_wiat", "write mean_wait"),
        ("mean_wait,mean_wait", "named twice"),
        ("", "available are"),
        (",".join([*OBJECTIVES][:5]), "at most 4"),
    ],
)
def test_objectives_that_are_refused(names: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse_objectives(names)


def test_front_and_choice() -> None:
    present = Trial(0, {}, (0.5, 100.0), None, 9)
    trials = [
        present,
        Trial(1, {}, (0.4, 90.0), None, 9),
        Trial(2, {}, (0.1, 99.0), None, 9),
        Trial(3, {}, (0.3, 60.0), None, 9),
        Trial(4, {}, (0.9, 10.0), None, 9),
        Trial(5, {}, (0.3, 60.0), None, 9),  # as trial 3
        Trial(6, {}, None, (0.1, 1.0), 0),  # pruned
    ]
    front = find_front(trials)
    assert [each.number for each in front] == [2, 3, 4]
    chosen = choose(front, present)
    assert chosen is not None
    assert chosen.number == 3  # its lesser gain, 40%, is above that of trial 2, 1%
    assert choose([trials[4]], present) is None
    assert choose([present], present) is None


# The search space


def test_the_present_policy_is_in_the_space() -> None:
    for present in (Policy(), Policy(pull_after=7.0, weights={"user": 3.0}, send="late")):
        inputs = read_inputs(SOURCES)
        inputs = replace(inputs, settings=replace(inputs.settings, meta_policy=present))
        space = make_search_space(inputs, tuple(GRID))
        policy = space.policy(space.present_indexes())
        assert policy_text(policy) == policy_text(present)


def test_keys_without_effect_are_not_tried() -> None:
    assert set(make_search_space(read_inputs(SOURCES)).grid) == set(GRID) - {
        "weights.licence",  # no job has licences
        "patience",
    }
    alone = read_inputs(SOURCES._replace(clusters="48", settings=("jobs=300", "cpus=48")))
    assert set(make_search_space(alone).grid) == {"send", "age"}
    with pytest.raises(UserError, match=r'unknown key "pull_affer", --keys; write pull_after'):
        make_search_space(alone, ("pull_affer",))


def test_policies_of_the_space_have_no_useless_settings() -> None:
    space = make_search_space(read_inputs(SOURCES), tuple(GRID))
    rng = random.Random(5)
    for _ in range(200):
        point = {key: rng.randrange(len(options)) for key, options in space.grid.items()}
        policy = space.policy(point)
        if any(space.values(point)[f"weights.{name}"] for name in ("deadline", "licence", "user")):
            reading = examine_policy(policy_text(policy), "tuned")
            assert reading.policy is not None
            assert reading.policy == replace(policy, weights=reading.policy.weights)
            assert reading.notes == ()


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(send="late", pull=False, tolerance=0.1, age=0.0, seed=-3),
        Policy(weights={"deadline": 2.0, "licence": 0.0, "user": 1.0}),
        Policy(classes={"regular": 2, 'odd "name"\n': 5, "ü": 1}),
        Policy(self_optimising={"base": SelfOptimisation(history=20, target=(0.9,) + (0.1,) * 9)}),
    ],
)
def test_a_policy_is_written_as_it_is_read(policy: Policy) -> None:
    assert parse_policy(policy_text(policy), "file") == policy


# Trials


def test_a_trial_is_pruned_if_half_of_the_earlier_dominate_it() -> None:
    whole = run_trial(SOURCES, Policy(), BOTH, [])
    assert whole.early is not None
    better = tuple(value / 2 for value in whole.early)
    worse = tuple(value * 2 for value in whole.early)
    half = MIN_COMPARED // 2
    unpruned = run_trial(SOURCES, Policy(), BOTH, [better] * (half - 1) + [worse] * (half + 1))
    assert unpruned._replace(cpu_seconds=0) == whole._replace(cpu_seconds=0)
    pruned = run_trial(SOURCES, Policy(), BOTH, [better] * half + [worse] * half)
    assert (pruned.values, pruned.early) == (None, whole.early)
    assert pruned.simulated_jobs < whole.simulated_jobs / 4
    mixed = (better[0], worse[1])  # a trade-off: it does not dominate
    assert run_trial(SOURCES, Policy(), BOTH, [mixed] * MIN_COMPARED).values == whole.values


def test_a_policy_that_the_daemon_refuses_is_no_trial() -> None:
    none = dict.fromkeys(("deadline", "licence", "user"), 0.0)
    run = run_trial(SOURCES, Policy(weights=none), BOTH, [])
    assert run.values is None
    assert "weight above 0" in run.error


class _Stopped(Exception):
    pass


def test_an_interrupted_study_ends_like_a_whole_one(tmp_path: Path) -> None:
    """The process ends before any simulation, in the middle, at the last: no trial differs."""
    sources = SOURCES._replace(settings=("jobs=140", *SETTINGS[1:]))
    count, objectives = 20, ("mean_wait",)
    simulated: list[None] = []
    whole = run_study(
        f"sqlite:///{tmp_path}/whole.db",
        count,
        sources,
        objectives,
        InThisProcess(lambda: simulated.append(None)),
    )
    assert any(each.values is None for each in whole), "no trial was pruned"
    storage, allowance = f"sqlite:///{tmp_path}/part.db", 0

    def stop() -> None:
        nonlocal allowance
        allowance -= 1
        if allowance < 0:
            raise _Stopped

    for allowed in (0, 1, 7, len(simulated) - 9):
        allowance = allowed
        with pytest.raises(_Stopped):
            run_study(storage, count, sources, objectives, InThisProcess(stop))
    assert run_study(storage, count, sources, objectives) == whole
    allowance = 0  # simulates nothing
    assert run_study(storage, count, sources, objectives, InThisProcess(stop)) == whole


def test_a_study_of_other_inputs_is_not_continued(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/trials.db"
    run_study(storage, 1)
    for other, key in (
        (SOURCES._replace(seed=4), "seed"),
        (SOURCES._replace(clusters="24,24"), "clusters"),
        (SOURCES._replace(settings=(*SETTINGS, "age=5")), "set"),
    ):
        with pytest.raises(UserError, match=f"another {key}, --study test; name another"):
            run_study(storage, 2, other)


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/ledger.db"
    engine = create_engine(storage)
    with engine.begin() as connection:
        connection.execute(text("create table alembic_version (version_num text)"))
    with pytest.raises(UserError, match="a database of another program"):
        run_study(storage, 1)
    assert inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()


@pytest.mark.parametrize(
    "storage",
    [
        *("nonsense", "sqlite:////nowhere/at/all.db", "nodb://x/y", "postgresql+nodb://x/y"),
        "postgresql://db:port/tuning",
    ],
)
def test_a_storage_that_cannot_be_used(storage: str) -> None:
    with pytest.raises(UserError, match="--storage"):
        run_study(storage, 1)


def test_trials_are_kept_beside_a_file_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "100%3F now?a=b#c.trials.db"
    run_study(file_storage(path), 1)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


# The test on the held-out part


def held_out(values: list[float]) -> HeldOutRun:
    submitted = {job: job * 3600.0 for job in range(len(values))}  # 24 a day
    return HeldOutRun(submitted, {"mean_wait": dict(enumerate(values))})


def test_a_real_gain_is_found_and_noise_is_not() -> None:
    rng = random.Random(1)
    present = [rng.expovariate(1 / 600) for _ in range(24 * 40)]
    noisy = [value + rng.gauss(0, 200) for value in present]
    better = [value * 0.8 for value in noisy]
    for values, gain in ((present, False), (noisy, False), (better, True)):
        difference = paired_difference(held_out(values), held_out(present), "mean_wait", 0)
        assert difference is not None
        assert difference.low <= difference.difference <= difference.high
        assert is_gain({"mean_wait": difference}) == gain
    worse = paired_difference(held_out(present), held_out(better), "mean_wait", 0)
    assert worse is not None
    assert worse.low > 0
    assert not is_gain({"mean_wait": difference, "mean_flow": worse}), "worse in another objective"
    assert not is_gain({"mean_wait": None})


def test_a_gain_by_refused_jobs_or_by_a_choice_that_saw_it_is_not_shown() -> None:
    present, better = held_out([600.0] * 480), held_out([300.0] * 480)
    fewer = HeldOutRun({job: better.submitted[job] for job in range(477)}, better.values)
    trial = Trial(1, {}, (300.0,), None, 9)
    outcomes = []
    for run, is_blind in ((better, True), (better, False), (fewer, True)):
        difference = {"mean_wait": paired_difference(run, present, "mean_wait", 0)}
        assert is_gain(difference)
        refused = count_refused(run, present)
        judged = JudgedTrial(trial, Policy(), {"mean_wait": 300.0}, difference, refused)
        outcomes.append(StudyResult(("mean_wait",), (), judged, (), judged, is_blind))
    shown, seen, refusing = map(verdict, outcomes)
    assert shown == "The gain holds on jobs that no trial has seen."
    assert "had seen them" in seen
    assert "limits refuse 3 more" in refusing
    assert [outcome_json(each)["present"]["gain"] for each in outcomes] == [True, True, False]


def test_intervals_cover_the_true_difference() -> None:
    """Of 200 periods with days of a common effect, about 95% of the intervals cover it."""
    rng, covered = random.Random(7), 0
    for period in range(200):
        days = [rng.gauss(0, 50) for _ in range(30)]
        present = [500.0] * (24 * 30)
        other = [510.0 + days[job // 24] + rng.gauss(0, 20) for job in range(24 * 30)]
        difference = paired_difference(held_out(other), held_out(present), "mean_wait", period)
        assert difference is not None
        covered += difference.low <= 10.0 <= difference.high
    assert 175 <= covered <= 198, covered  # with jobs resampled instead of days: 68


def test_dominates() -> None:
    assert dominates((1, 2), (1, 3))
    assert not dominates((1, 2), (1, 2))
    assert not dominates((1, 4), (2, 3))


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    terminated = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, terminated)


COMMAND = (
    "tune --trace lublin --clusters 32,16 --objective missed_deadlines,mean_wait --seed 3 "
    + " ".join(f"--set {setting}" for setting in SETTINGS)
).split()


def test_the_command_writes_a_policy_with_its_provenance(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*COMMAND, "--trials", "16", "--json", "--plot", "plot.svg"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["trials"] == 16
    assert answer["failed"] == []
    assert answer["present"]["difference"]["mean_wait"] == {"difference": 0, "low": 0, "high": 0}
    chosen = answer["chosen"]
    assert dominates(
        [chosen["training"][name] for name in BOTH],
        [answer["present"]["training"][name] for name in BOTH],
    )
    text_written = (folder / "tuned-policy.toml").read_text()
    reading = examine_policy(text_written, "tuned-policy.toml")
    assert reading.policy is not None
    assert reading.notes == ()
    for line in (
        f"# trial {chosen['trial']} of 16,",
        "# seed: 3",
        "# trace: lublin",
        "# release: ",
    ):
        assert line in text_written
    assert (folder / "plot.svg").stat().st_size > 1000

    # the file has the policy of the figures
    inputs = read_inputs(SOURCES)
    schedule = inputs.simulate(inputs.training, reading.policy)
    assert mean_values(schedule, BOTH) == pytest.approx([chosen["training"][n] for n in BOTH])

    assert answer["chosen_blind"]
    # another trade-off of the same study, without a further trial
    other = next(row for row in answer["trade_offs"] if row["trial"] != chosen["trial"])
    pick = ["--trials", "16", "--pick", str(other["trial"])]
    assert run_command([*COMMAND, *pick, "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["chosen_blind"]
    assert run_command([*COMMAND, *pick]) == 0
    assert f"# trial {other['trial']} of 16," in (folder / "tuned-policy.toml").read_text()
    assert f"Trial {other['trial']}:" in capsys.readouterr().out


def test_a_single_objective_and_all_processes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The outcome does not depend on the number of processes."""
    tables = []
    for cores in ("1", "3"):
        arguments = ["--trials", "12", "--json", "--cores", cores, "--out", f"with-{cores}.toml"]
        command = [argument if argument != ",".join(BOTH) else "mean_wait" for argument in COMMAND]
        assert run_command([*command, *arguments, "--plot", "p.png"]) == 0
        answer = json.loads(capsys.readouterr().out)
        for key in ("wall_seconds", "cpu_seconds", "file"):
            del answer[key]
        tables.append(answer)
    assert tables[0] == tables[1]
    assert len(tables[0]["trade_offs"]) <= 1


def test_no_file_of_another_origin_is_replaced(folder: Path) -> None:
    own = folder / "policy.toml"
    own.write_text("pull = false\n")
    with pytest.raises(UserError, match=r"policy\.toml exists and is not of metasched tune"):
        run_command([*COMMAND, "--trials", "2", "--out", "policy.toml"])
    assert own.read_text() == "pull = false\n"
    with pytest.raises(UserError, match="create the folder"):
        check_output(folder / "missing" / "p.toml")
    assert {path.name for path in folder.iterdir()} == {"policy.toml"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--held-out", "0.05"], "a part of 15 jobs, --held-out 0.05; raise it"),
        (["--held-out", "0.95"], "a part of 15 jobs, --held-out 0.95; lower it"),
        (["--held-out", "nan"], "nan is no share, --held-out"),
        (["--set", "deadlines=0"], "no job has a deadline, --objective missed_deadlines"),
        (["--pick", "99"], "no trial 99 in this study, --pick"),
        (["--policy", "none.toml"], "none.toml"),
        (["--local", "esay"], "easy"),
    ],
)
def test_bad_input_is_one_line(folder: Path, arguments: list[str], problem: str) -> None:
    with pytest.raises(UserError) as raised:
        run_command([*COMMAND, "--trials", "1", *arguments])
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (folder / "tuned-policy.toml").exists()


def test_the_record_of_a_site(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ledger as a daemon stores it: its clusters, its policy in force, its jobs."""
    workload, _ = generate_lublin(150, 16, 2)
    clusters = [SimulatedCluster(name=name, cpus=16, queue_depth=0) for name in ("a", "b")]
    live = Policy(pull=False, tolerance=0.2)
    record(
        Simulation(workload, clusters, live, lambda _: make_policy("easy", {}, {})),
        Sqlite(folder / "site.db"),
    )
    arguments = ["tune", "--history", "--database", "site.db", "--trials", "6", "--json"]
    assert run_command(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["trials"] == 6
    sources = InputSources("", database="site.db")
    inputs = read_inputs(sources)
    description, recorded = describe_inputs(sources, inputs), inputs.recorded
    assert recorded is not None
    for other in (  # what has no part in the jobs' digest
        replace(recorded, drains=(ClusterDrained(1.0, "a", "op", "", False),)),
        replace(recorded, local_policies={"a": "fcfs", "b": "easy"}),
        replace(recorded, limits=LimitSettings(each_user=LimitTable(queued=3))),
        replace(recorded, clusters=recorded.clusters[:1]),
    ):
        described = describe_inputs(sources, replace(inputs, recorded=other))
        assert [key for key in description if described[key] != description[key]] == ["site"]
    limited = replace(
        inputs.workload,
        entries=tuple(
            entry._replace(job=structs.replace(entry.job, time_limit=entry.job.estimated))
            for entry in inputs.workload.entries
        ),
    )
    described = describe_inputs(sources, replace(inputs, workload=limited))
    assert [key for key in description if described[key] != description[key]] == ["trace"]
    space = make_search_space(inputs)
    assert space.policy(space.present_indexes()) == replace(live, weights=ANY)
    for option in (["--clusters", "8"], ["--set", "age=5"], ["--jobs", "0:9"], ["--local", "easy"]):
        with pytest.raises(UserError, match=f"has its own, {option[0]}; leave it out"):
            run_command([*arguments, *option])
    with pytest.raises(UserError, match="--trace or --history"):
        run_command(["tune"])
    with pytest.raises(UserError, match=r"none\.db"):
        run_command(["tune", "--history", "--database", "none.db"])
    assert not (folder / "none.db").exists()


def test_the_commands_of_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In their order, with few trials where the page has the default; `policy diff` finds some."""
    workload, _ = generate_lublin(150, 32, 2)
    trace = to_trace(workload)
    swf.write_trace(folder / "site.swf", trace.records, trace.header)
    lines = [
        shlex.split(line)[1:]
        for line in PAGE.read_text().splitlines()
        if line.startswith("    metasched ")
    ]
    assert [words[0] for words in lines] == ["tune", "tune", "tune", "policy", "policy"]
    for words in lines:
        if words[0] == "tune" and "--trials" not in words:
            words += ["--trials", "8"]
        assert run_command(words) == (1 if words[1] == "diff" else 0), words
    assert "16 trials" in capsys.readouterr().out


def test_an_interrupt_names_the_command_that_continues(folder: Path) -> None:
    words = [argument if argument != "jobs=300" else "jobs=1500" for argument in COMMAND]
    command = [sys.executable, "-m", "metasched", *words, "--trials", "500", "--cores", "2"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=os.environ
    )
    try:
        while not _finished_trials(folder / "tuned-policy.trials.db"):
            assert process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to the processes, too
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.count("\n") == 1, errors
    assert "of 500 trials are finished and kept; continue with: metasched tune --trace" in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert not (folder / "tuned-policy.toml").exists()


def _finished_trials(database: Path) -> int:
    if not database.exists():
        return 0
    engine = create_engine(f"sqlite:///{database}")
    try:
        with engine.connect() as connection:
            query = text("select count(*) from trials where state = 'COMPLETE'")
            return int(connection.execute(query).scalar() or 0)
    except Exception:  # its tables are made
        return 0
    finally:
        engine.dispose()
