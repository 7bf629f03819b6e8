"""Experiments that are interrupted and continued: the file of their finished runs."""

from __future__ import annotations

import fcntl
import json
import math
from pathlib import Path

import pytest

from metasched.errors import UserError
from metasched.laboratory.experiments.catalogue import EXPERIMENTS, run_experiment
from metasched.laboratory.experiments.finished_runs import open_finished_runs
from tests.harness.traces import trace

EXPERIMENT = EXPERIMENTS["local-periods"]


def test_an_interrupted_experiment_repeats_no_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METASCHED_TRACES", str(trace("S1-jobs-0-1000.swf").parent))
    path = tmp_path / "runs"
    whole = run_experiment(EXPERIMENT, 1, resume=path)
    header, *lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == len(EXPERIMENT.cases())
    lines.sort(key=lambda line: str(json.loads(line)["policy"]))
    finished = json.loads(lines[0])
    assert finished["policy"] == "FCFS"
    finished["figures"]["F"] = 1.25  # to see that it is not simulated again
    path.write_text(f"{header}{json.dumps(finished)}\n{lines[1]}{lines[2][:-20]}")

    done: list[int] = []
    continued = run_experiment(EXPERIMENT, 1, done.append, resume=path)
    assert done == [2, 1, 1, 1]
    assert len(path.read_text().splitlines()) == 1 + len(lines)
    changed = [
        (result.column, result.figure, result.values)
        for result, old in zip(continued, whole, strict=True)
        if result.values != old.values
    ]
    assert changed == [("FCFS", "F", (1.25,))]


def test_any_number_is_read_as_it_was_written(tmp_path: Path) -> None:
    figures = {"U": 0.1 + 0.2, "F": math.inf}
    with open_finished_runs(tmp_path / "runs", EXPERIMENT) as runs:
        runs.add(3, 7, figures)
    with open_finished_runs(tmp_path / "runs", EXPERIMENT) as runs:
        assert runs.figures == {(3, 7): figures}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("my notes", "no runs in"),
        ("my notes\n", "Expecting value"),
        ('{"experiment": 3}\n', "Expected `str`"),
        ('{"experiment": "plans", "code": "release 1"}\n', 'runs of the experiment "plans"'),
        ('{"experiment": "local-periods", "code": "release 0.0.1"}\n', "runs of release 0.0.1"),
    ],
)
def test_other_files_are_refused_and_stay(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "runs"
    path.write_text(content)
    with pytest.raises(UserError) as caught, open_finished_runs(path, EXPERIMENT):
        pass
    assert message in str(caught.value)
    assert str(caught.value).endswith(f"in {path}, --resume; name a new file")
    assert path.read_text() == content


@pytest.mark.parametrize(
    "line",
    [
        '{"setting": "1 x 128", "policy": "LSF-9", "seed": 1, "figures": {"U": 1, "F": 1}}',
        '{"setting": "1 x 128", "policy": "LSF-10", "seed": 1, "figures": {"U": 1}}',
    ],
)
def test_runs_of_no_case_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "runs"
    with open_finished_runs(path, EXPERIMENT):
        pass
    path.write_text(f"{path.read_text()}{line}\n")
    with (
        pytest.raises(UserError, match="a run of no case, 1 x 128, LSF-"),
        open_finished_runs(path, EXPERIMENT),
    ):
        pass


def test_two_processes_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (
            pytest.raises(UserError, match="another process writes"),
            open_finished_runs(path, EXPERIMENT),
        ):
            pass
    with pytest.raises(UserError, match="Is a directory"), open_finished_runs(tmp_path, EXPERIMENT):
        pass
