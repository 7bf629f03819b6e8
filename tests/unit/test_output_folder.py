"""Outputs that no job can write are refused before the submission."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metasched.client.output_folder import output_problem


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("out/%j.txt", ""),
        ("out/17.txt", ""),
        ("file/17.txt", "no directory of"),
        ("none/17.txt", "no directory of"),
        ("none/deep/%a.txt", "no directory of"),
        ("%x/17.txt", ""),
        ("/dev/null", ""),
        ("/not-mounted-here/out/17.txt", ""),
    ],
)
def test_problems(path: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "file").touch()
    assert output_problem(os.path.join(tmp_path, path)) == problem


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a real file, which root could write."""
    (tmp_path / "17.txt").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert output_problem(f"{tmp_path}/17.txt") == "no permission to write"
    assert output_problem(f"{tmp_path}/%j.txt") == "no permission to create"
