"""The text of drop-in commands and quick commands, and of what they import, is Python 3.9."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import metasched

PACKAGE = Path(metasched.__file__).parent
QUICK = ("job_commands", "job_table", "quick_start", "submit")  # modules of `cli`
TYPER = {PACKAGE / "cli" / name for name in ("app.py", "explain.py")}  # under our own Python


def file_of(module: str) -> Path | None:
    """Return the file of a module of metasched; None for anything else."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.exists()), None)


def imports_of(node: ast.AST) -> Iterator[str]:
    """Yield all names that a module imports, in functions too, but not those for types alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.ImportFrom):
        assert node.module is not None, "a relative import"
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports_of(child)


def test_clients_keep_to_python_39() -> None:
    waiting = [*PACKAGE.glob("drop_in/*.py"), *(PACKAGE / f"cli/{name}.py" for name in QUICK)]
    waiting.append(PACKAGE / "drop_in/slurm/program")
    files = set[Path]()
    while waiting:
        file = waiting.pop()
        if file in files | TYPER:
            continue
        files.add(file)
        names = imports_of(ast.parse(file.read_text()))
        waiting += filter(None, map(file_of, filter(lambda n: n.startswith("metasched."), names)))
    assert {PACKAGE / f"client/{name}.py" for name in ("remote", "sudo")} < files
    # tomllib is tried, and its absence explained; annotations are not evaluated
    options = ("--target=3.9-", "--no-tips", "--violations", "--exclude", "tomllib")
    vermin = Path(sys.executable).with_name("vermin")
    done = subprocess.run(
        [vermin, *options, *sorted(files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
