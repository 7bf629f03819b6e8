"""Architecture: links of the top folders, allowed imports, and modules that a command loads."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeGuard

import pytest

from metasched.adapters.registry import ADAPTER_GROUP
from metasched.client.dialects import PREFIXES, script_dialect

ROOT = Path(__file__).parents[2]
LINKED = ("adapters", "policies", "db")
HEAVY = {"alembic", "fastapi", "pydantic", "sqlalchemy", "starlette", "uvicorn"}
# Files that may have the name of an adapter or dialect, and why none of them asks
# for the kind of a cluster.
NAMING_FILES = {
    "metasched/api/examples.py": "examples of answers",
    "metasched/cli/init.py": "options of a command that writes a configuration",
    "metasched/client/dialects.py": "names the dialects",
    "metasched/config/reading.py": "the configuration of a host without a file",
    "metasched/drop_in/sacct.py": "an option of the real command",
    "metasched/drop_in/sbatch_options.py": "an effect of options: passed on to the manager",
    "metasched/drop_in/sinfo.py": "an option of the real command",
    "metasched/drop_in/sprio.py": "an option of the real command",
    "metasched/drop_in/squeue.py": "an option of the real command",
    "metasched/paths.py": "a folder",
    "metasched/plug_ins/testing.py": "samples for authors of heuristics",
    "metasched/site_setup/choices.py": "accounts that own files of a manager",
    "metasched/site_setup/configuration.py": "writes a configuration",
    "metasched/laboratory/tuning/inputs.py": "key of the local policy",
}


@cache
def imports(folder: str) -> list[tuple[str, str, list[str]]]:
    """Return (file and line, module, imported names) of every absolute import below a folder."""
    found: list[tuple[str, str, list[str]]] = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            if isinstance(node, ast.Import):
                found += ((where, alias.name, []) for alias in node.names)
            elif node.module and not node.level:
                found.append((where, node.module, [alias.name for alias in node.names]))
    return found


@pytest.mark.parametrize("name", LINKED)
def test_top_folders_are_links_in_the_package(name: str) -> None:
    assert os.readlink(ROOT / "metasched" / name) == f"../{name}"


@pytest.mark.parametrize("folder", ["metasched", *LINKED, "tests"])
def test_nothing_imports_a_top_folder_as_a_module(folder: str) -> None:
    result = imports(folder)
    assert result
    assert [i for i in result if i[1].split(".")[0] in LINKED] == []


def test_import_arrows() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run(
        [linter, "--no-cache", "--config", "pyproject.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_policies_draw_from_seeded_generators_only() -> None:
    taken = [(where, names) for where, module, names in imports("policies") if module == "random"]
    assert taken
    assert all(names == ["Random"] for _, names in taken), taken


@pytest.mark.parametrize(
    "module", ["metasched.cli", "metasched.client.client", "metasched.client.job_request"]
)
def test_a_command_starts_without_what_only_the_daemon_needs(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert HEAVY.isdisjoint(json.loads(ran.stdout))


def test_what_runs_as_root_needs_nothing_but_the_standard_library() -> None:
    taken = {module for where, module, _ in imports("metasched") if "/launcher.py:" in where}
    assert "socket" in taken
    assert {module.partition(".")[0] for module in taken} <= sys.stdlib_module_names


def names_of_kinds() -> set[str]:
    """Return the names of the registered adapters and of the dialects of scripts."""
    adapters = {entry.name for entry in entry_points(group=ADAPTER_GROUP)}
    dialects = {script_dialect(f"#!/bin/sh\n{prefix} -V\n") for prefix in ("#SBATCH", *PREFIXES)}
    assert {"local", "slurm", "drmaa"} <= adapters
    assert {"slurm", "gridengine", "pbs"} <= dialects
    return adapters | dialects


def literals(tree: ast.AST, names: set[str]) -> Iterator[ast.Constant]:
    """Yield the literals that are exactly such a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in names:
            yield node


def asks_for_kind(node: ast.AST) -> TypeGuard[ast.expr | ast.Match]:
    """Return whether a node decides by `x.adapter`: compares it, looks it up or takes it apart."""

    def is_kind(part: ast.AST | None) -> bool:
        return isinstance(part, ast.Attribute) and part.attr == "adapter"

    match node:
        case ast.Compare():
            return any(map(is_kind, [node.left, *node.comparators]))
        case ast.Match():
            return is_kind(node.subject)
        case ast.Subscript():
            return is_kind(node.slice) or is_kind(node.value)
        case ast.Call(func=ast.Attribute() as called):
            is_lookup = called.attr in ("get", "pop", "index", "fullmatch", "match", "search")
            return is_kind(called.value) or (is_lookup and any(map(is_kind, node.args)))
    return False


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        ('c.adapter == NAME or "x" in c.adapter', True),
        ('c.adapter.startswith("sl")', True),
        ("TABLE[c.adapter]; c.adapter[:2]", True),
        ("TABLE.get(c.adapter, 1)", True),
        ('re.match("s", c.adapter)', True),
        ("match c.adapter:\n    case _: pass", True),
        ("adapter_class(c.adapter)", False),
        ('Row(adapter=c.adapter); f"{c.adapter}"', False),
    ],
)
def test_questions_for_a_kind_are_found(code: str, asks: bool) -> None:
    assert any(map(asks_for_kind, ast.walk(ast.parse(code)))) == asks


def test_no_kind_of_cluster_is_asked_for_by_name() -> None:
    """`Capabilities` says what differs between managers, also of adapters of other packages."""
    names, naming, compared = names_of_kinds(), dict[str, list[int]](), list[str]()
    paths = {path for folder in ("metasched", *LINKED) for path in (ROOT / folder).rglob("*.py")}
    for path in sorted(path for path in paths if "adapters" not in path.parts):
        file, tree = str(path.relative_to(ROOT)), ast.parse(path.read_bytes())
        if lines := [node.lineno for node in literals(tree, names)]:
            naming[file] = lines
        compared += [
            f"{file}:{node.lineno}"
            for node in ast.walk(tree)
            if asks_for_kind(node)
            or (isinstance(node, ast.Compare | ast.MatchValue) and any(literals(node, names)))
        ]
    assert compared == []
    assert {file: lines for file, lines in naming.items() if file not in NAMING_FILES} == {}
    assert NAMING_FILES.keys() <= naming.keys()  # no permission outlives its reason


def test_no_change_of_state_is_dropped() -> None:
    """Every change must be yielded: indexes, leases, gates and the book apply nothing else."""
    trees = {p: ast.parse(p.read_bytes()) for p in sorted((ROOT / "metasched/core").rglob("*.py"))}
    changing = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and any(
            type_name in ast.unparse(node.returns) for type_name in ("StateChange", "Consequence")
        )
    }
    assert {"apply", "apply_status", "apply_listing", "place_tasks"} <= changing
    assert {"apply_bound", "assign_nodes", "reassign_nodes", "apply_time"} <= changing
    dropped = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in changing
    ]
    assert dropped == []


def test_a_local_cluster_without_jobs_loads_no_numpy(tmp_path: Path) -> None:
    """It is a third of the memory of such a worker."""
    program = """
import sys
from pathlib import Path
from typing import TypeGuard
import metasched.adapters.worker
from metasched.adapters.local.adapter import Local, LocalOptions
from metasched.model.cluster import Cluster
cluster = Cluster(name="here", adapter="local")
adapter = Local(cluster, LocalOptions(cpus=4), "test", Path(sys.argv[1]))
adapter.poll()
adapter.close()
sys.exit("numpy is loaded" if "numpy" in sys.modules else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
