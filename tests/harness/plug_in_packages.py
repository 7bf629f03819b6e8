"""A package with plug-ins in a folder, as pip would install it: modules and their entry points."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs/examples/plug-in"


def install(
    folder: Path, module: str, source: str, groups: Mapping[str, Mapping[str, str]]
) -> None:
    """Write a module and its metadata. `groups`: by entry-point group, name to class."""
    sys.modules.pop(module, None)  # another test may have imported one of this name
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    lines = [
        line
        for group, classes in groups.items()
        for line in (f"[{group}]", *(f"{name} = {module}:{c}" for name, c in classes.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def install_example(folder: Path) -> None:
    """Install the package of the documents."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    classes = {
        group: {name: value.partition(":")[2] for name, value in entries.items()}
        for group, entries in project["entry-points"].items()
    }
    install(folder, "site_heuristics", (EXAMPLE / "site_heuristics.py").read_text(), classes)
