"""The wheel, built directly and from the sdist, contains the whole package and nothing else."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from email.parser import Parser
from importlib.metadata import EntryPoint
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HASH = "0123456789abcdef" * 2 + "01234567"
COMMIT_FILE = "metasched/COMMIT"

# Alembic loads its scripts as files, not as modules; an import of `__main__` would run it.
LIST_MODULES = """
import importlib, json, metasched, pkgutil
names = ["metasched"]
for found in pkgutil.walk_packages(metasched.__path__, "metasched."):
    if not found.name.endswith("__main__") and ".migrations." not in found.name:
        names.append(found.name)
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""


def sources() -> set[str]:
    """Return every file of the package in the tree, with links followed."""
    return {
        os.path.relpath(Path(folder, name), ROOT)
        for folder, _, names in os.walk(ROOT / "metasched", followlinks=True)
        for name in names
        if "__pycache__" not in folder
    }


def source_archive(folder: Path) -> Path:
    """Copy what a build needs; the copy has no .git."""
    compiled = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("metasched", "adapters", "db", "policies", "packaging", "man"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=compiled)
    for name in ("README.md", "LICENSE", "pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    return folder


def built_wheel(checkout: Path, folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", *options]
    subprocess.run([*command, "--outdir", folder, checkout], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout of the commit HASH."""
    folder = source_archive(tmp_path_factory.mktemp("checkout"))
    (folder / ".git").mkdir()
    (folder / ".git/HEAD").write_text(f"{HASH}\n")
    return folder


@pytest.fixture(
    scope="module",
    params=[pytest.param(way, marks=pytest.mark.install) for way in ("direct", "from the sdist")],
)
def wheel(
    checkout: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    options = ["--wheel"] if request.param == "direct" else []  # else: the sdist, then its wheel
    return built_wheel(checkout, tmp_path_factory.mktemp("dist"), *options)


def version_of(wheel: Path) -> str:
    """Return the version in a wheel's file name: NAME-VERSION-PYTHON-ABI-PLATFORM.whl."""
    return wheel.name.split("-")[1]


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    info = f"metasched-{version_of(wheel)}.dist-info"
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    data = f"metasched-{version_of(wheel)}.data"
    assert {name.split("/")[0] for name in names} == {"metasched", info, data}
    assert {name for name in names if name.startswith(data)} == {
        f"{data}/data/share/man/man1/{path.name}" for path in (ROOT / "man").iterdir()
    }
    assert {name for name in names if name.startswith("metasched/")} == sources() | {COMMIT_FILE}
    assert f"{info}/licenses/LICENSE" in names


def test_wheel_carries_the_commit_of_its_build_and_no_path(wheel: Path, checkout: Path) -> None:
    with ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert contents[COMMIT_FILE].decode() == f"{HASH[:9]}\n"
    folders = [bytes(folder) for folder in (checkout, ROOT, Path(sys.prefix), wheel.parent)]
    paths = {
        (name, folder)
        for name, content in contents.items()
        for folder in folders
        if folder in content
    }
    assert paths == set()


@pytest.mark.install
def test_a_source_archive_names_no_commit(tmp_path: Path) -> None:
    wheel = built_wheel(source_archive(tmp_path / "source"), tmp_path, "--wheel")
    assert version_of(wheel) == PROJECT["version"]
    with ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("metasched/")} == sources()


def test_wheel_keeps_the_drop_in_commands_executable(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        modes = {
            entry.filename.rpartition("/")[2]: entry.external_attr >> 16
            for entry in archive.infolist()
            if entry.filename.startswith("metasched/drop_in/slurm/")
        }
    assert modes.keys() >= {
        "program",
        "sacct",
        "scancel",
        "scontrol",
        "squeue",
        "srun",
        "task_prolog",
    }
    assert all(mode & 0o111 == 0o111 for mode in modes.values()), modes


def imports_of(path: Path) -> set[str]:
    """Return the top-level names that a module imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_every_import_is_a_declared_dependency() -> None:
    groups = (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    names = (re.split(r"[\[<>=~!;]", line)[0].strip() for group in groups for line in group)
    declared = {name.replace("-", "_") for name in names}
    # pyslurm is built with the site's Slurm; pydantic_core comes with pydantic, mypyc with mypy
    declared |= {"metasched", "pyslurm", "pydantic_core", "mypyc"} | sys.stdlib_module_names
    imported = {
        name for path in sources() if path.endswith(".py") for name in imports_of(ROOT / path)
    }
    assert imported - declared == set()


def test_metadata(wheel: Path) -> None:
    info = f"metasched-{version_of(wheel)}.dist-info"
    with ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entries = archive.read(f"{info}/entry_points.txt").decode()
    assert metadata["Name"] == "metasched"
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    needed = [d for d in metadata.get_all("Requires-Dist", []) if "extra ==" not in d]
    assert len(needed) == len(PROJECT["dependencies"])
    assert f"metasched = {PROJECT['scripts']['metasched']}" in entries


@pytest.mark.slow("imports each module, in an environment of its own")
def test_every_module_imports_from_a_bare_environment(wheel: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    python = bare / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    assert (bare / "share/man/man1/metasched-submit.1").is_file()
    # Python adds the folder named in a .pth file, but does not read the .pth files in it: the
    # dependencies can be imported, the editable install of the tree cannot.
    base = {"base": str(bare), "platbase": str(bare)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=base))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    ran = subprocess.run(
        [python, "-I", "-c", LIST_MODULES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    loaded = json.loads(ran.stdout)
    assert {Path(file).is_relative_to(site / "metasched") for file in loaded.values()} == {True}
    version = subprocess.run(
        [bare / "bin/metasched", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout == f"metasched {PROJECT['version']} (commit {HASH[:9]})\n"
    expected = {path for path in sources() if path.endswith(".py") and "migrations/" not in path}
    expected = {path for path in expected if not path.endswith("__main__.py")}
    assert {os.path.relpath(file, site) for file in loaded.values()} >= expected


@pytest.mark.parametrize(
    ("group", "entry", "target"),
    [
        (group, entry, target)
        for group, entries in {
            **PROJECT["entry-points"],
            "console_scripts": PROJECT["scripts"],
        }.items()
        for entry, target in entries.items()
    ],
)
def test_entry_points_name_things_that_exist(group: str, entry: str, target: str) -> None:
    assert callable(EntryPoint(entry, target, group).load())
