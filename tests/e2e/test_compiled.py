"""The compiled build: it takes the same decisions as pure Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tests.conftest import require
from tests.harness import traces
from tests.harness.golden_lives import SIMULATIONS

ROOT = Path(__file__).parents[2]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
MODULES: list[str] = WHEEL["wheel"]["hooks"]["custom"]["modules"]
# tests that run on the compiled build: golden values, properties of core and policies
SUITE = (
    *("tests/unit/test_golden.py", "tests/unit/test_core.py", "tests/unit/test_classify.py"),
    *("tests/unit/test_dispatch.py", "tests/unit/test_queueing.py"),
    "tests/unit/test_flexible_backfilling.py",
    *("tests/unit/test_simulate.py", "tests/property/test_core.py"),
    *("tests/property/test_recovery.py", "tests/property/test_queueing.py"),
)
pytestmark = [
    pytest.mark.slow("compiles the package, then runs tests by the compiled build"),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python with the compiled build; its folder has the tests but no source."""
    if shutil.which("gcc") is None:
        require("compiler", "there is no gcc; install gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        require("compiler", "there is no Python.h; install python3-dev")
    folder = tmp_path_factory.mktemp("compiled")
    # the last option counts: what mypyc writes is tested, and gcc optimises it for minutes
    compiler = folder / "gcc"
    compiler.write_text('#!/bin/sh\nexec gcc "$@" -O0\n')
    compiler.chmod(0o755)
    environment = os.environ | {"CC": str(compiler)}
    subprocess.run([ROOT / "tests" / "compiled", folder / "venv"], env=environment, check=True)
    shutil.copytree(ROOT / "tests", folder / "tests")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder / "venv" / "bin" / "python"


def run(python: Path | str, *arguments: str, cwd: Path, **variables: str) -> str:
    completed = subprocess.run(
        [python, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "METASCHED_TRACES": str(traces.folder()),
            "PYTHONHASHSEED": "0",  # same order of sets of strings
            "PYTHONSAFEPATH": "1",
            **variables,
        },
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_every_module_named_is_compiled(compiled: Path) -> None:
    names = [name.removesuffix(".py").replace("/", ".") for name in MODULES]
    ask = (
        "import importlib, json, sys; "
        "print(json.dumps([importlib.import_module(n).__file__ for n in sys.argv[1:]]))"
    )
    files = json.loads(run(compiled, "-c", ask, *names, cwd=compiled.parent))
    assert len(files) == len(MODULES)
    assert [file for file in files if not file.endswith(".so")] == []
    assert run(compiled, "-m", "metasched", "--version", cwd=compiled.parent).endswith(
        "(compiled)\n"
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"METASCHED_COMPILE": "1", "CC": "/nowhere/cc"},
            "there is no /nowhere/cc, METASCHED_COMPILE; install gcc",
        ),
        ({"METASCHED_COMPILE": "false"}, "'false' is not 0 or 1, METASCHED_COMPILE; say 1 or 0"),
    ],
)
def test_a_wrong_build_setting_is_reported_at_once(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", str(ROOT)]
    completed = subprocess.run(
        [*build, "--outdir", str(tmp_path)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 1
    assert f"metasched: error: {message}" in completed.stderr
    assert "Traceback" not in completed.stdout + completed.stderr
    assert list(tmp_path.iterdir()) == []


def test_decides_every_golden_life_alike(compiled: Path) -> None:
    """As stored: tests/unit/test_golden_decisions.py compares pure Python with the same lives."""
    folder = compiled.parents[2]
    command = ("-m", "tests.harness.golden_decisions")
    output = run(compiled, *command, cwd=folder, PYTHONPATH=str(folder))
    module, _ = output.splitlines()
    assert Path(module).suffix == ".so"


@pytest.mark.parametrize(("workload", "clusters", "policy", "settings"), SIMULATIONS)
def test_simulates_the_same_schedule(
    compiled: Path,
    tmp_path: Path,
    workload: str,
    clusters: str | None,
    policy: str,
    settings: tuple[str, ...],
) -> None:
    wide = ["--clusters", clusters] if clusters else []
    arguments = [workload, "--policy", policy, *wide, "--json"]
    arguments += [argument for setting in settings for argument in ("--set", setting)]
    schedules = []
    for name, python in (("pure", Path(sys.executable)), ("compiled", compiled)):
        plan = tmp_path / f"{name}.csv"
        output = run(
            python, "-m", "metasched", "simulate", *arguments, "--schedule", str(plan), cwd=ROOT
        )
        figures = json.loads(output)
        for measured in ("wall_seconds", "cpu_seconds", "jobs_per_second"):
            del figures[measured]
        schedules.append((figures, plan.read_text()))
    assert schedules[0] == schedules[1]


def test_passes_the_suite(compiled: Path) -> None:
    folder = compiled.parents[2]
    left_out = (
        "tests/unit/test_simulate.py::test_every_event_passes_the_core",  # patches `step`
        "tests/unit/test_golden.py::test_all_of_",  # its first 10,000 jobs take the same lines
    )
    arguments = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    arguments += [argument for name in left_out for argument in ("--deselect", name)]
    output = run(compiled, *arguments, *SUITE, cwd=folder)
    assert " passed" in output
    assert str(folder / "venv") in run(
        compiled, "-c", "import metasched; print(metasched.__file__)", cwd=folder
    )
