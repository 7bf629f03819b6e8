"""What tests/conftest.py and tests/run make of slow marks, failures and crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILS_ONCE = """
from pathlib import Path
def test_fails_once(request):
    once = Path(request.config.rootpath, "once")
    if not once.exists():
        once.touch()
        raise AssertionError("beside other tests")
"""
CRASHES_ONCE = """
import os
from pathlib import Path
def test_crashes_once(request):
    once = Path(request.config.rootpath, "crashed")
    if not once.exists():
        once.touch()
        os._exit(9)
"""
MANY = """
import pytest
@pytest.mark.parametrize("number", range(4))
def test_fails(number): raise AssertionError
"""


def run_tests(folder: Path, processes: int = 0, **files: str) -> subprocess.CompletedProcess[str]:
    """Run test files by the function of tests/run that repeats failures."""
    for name, text in files.items():
        path = folder / "tests" / name / "test_it.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (folder / "pytest.ini").touch()
    (folder / ".venv/bin").mkdir(parents=True)
    python = folder / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    run = (ROOT / "tests/run").read_text()
    function = run[run.index("run_pytest() {") : run.index("\n}\n") + 3]
    command = ".venv/bin/python -m pytest -q -p tests.conftest --import-mode=importlib"
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{function}\nrun_pytest {command} -n {processes}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({"real": FAILS_ONCE}, 0),
        ({"real": MANY}, 1),
        ({"real": FAILS_ONCE, "unit": FAILS_ONCE.replace("once", "twice")}, 1),
        ({"real": FAILS_ONCE, "e2e": CRASHES_ONCE}, 3),
    ],
    ids=["fails once", "many fail", "unit and real", "crash and failure"],
)
def test_only_few_failures_of_real_managers_are_excused(
    tmp_path: Path, files: dict[str, str], status: int
) -> None:
    completed = run_tests(tmp_path, int("e2e" in files), **files)
    assert completed.returncode == status, completed.stdout + completed.stderr
    excused = "failed beside other tests only, a defect to repair:\ntests/real/" in completed.stderr
    assert excused == (status == 0)


@pytest.mark.parametrize("mark", ["slow", "slow('')"])
def test_a_slow_mark_says_why(tmp_path: Path, mark: str) -> None:
    text = f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n"
    completed = run_tests(tmp_path, unit=text)
    assert completed.returncode != 0
    assert "a slow mark without a reason, tests/unit/test_it.py::test_it" in completed.stdout
