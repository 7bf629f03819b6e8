"""Outputs that no job can write are refused before the submission."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from metasched.client.output_folder import output_problem


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a folder and a file, beside an empty mount point."""
    (tmp_path / "work" / "out").mkdir(parents=True)
    (tmp_path / "work" / "file").touch()
    (tmp_path / "mount").mkdir()
    (tmp_path / "work" / "scratch").symlink_to(tmp_path / "mount" / "ada")
    return tmp_path / "work"


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("17.txt", ""),
        ("out/%j.txt", ""),
        ("out/17.txt", ""),
        ("./out/../out/17.txt", ""),
        ("file/17.txt", "no directory of"),
        ("none/17.txt", "no directory of"),
        ("none/deep/%a.txt", "no directory of"),
        ("%x/17.txt", ""),
        ("/dev/null", ""),
        ("/not-mounted-here/out/17.txt", ""),
        ("../mount/ada/17.txt", ""),  # the nodes have mounted a file system there
        ("scratch/17.txt", ""),
        ("scratch/../17.txt", ""),
        ("../workplace/17.txt", ""),
    ],
)
def test_problems(path: str, problem: str, folder: Path) -> None:
    assert output_problem(str(folder), path) == problem
    assert output_problem(str(folder), os.path.join(folder, path)) == problem


def test_permissions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a real file, which root could write."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert output_problem(str(folder), "file") == "no permission to write"
    assert output_problem(str(folder), "%j.txt") == "no permission to create"
    assert output_problem(str(folder), "../mount/17.txt") == ""
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda path: read_only)
    assert output_problem(str(folder), "%j.txt") == ""
