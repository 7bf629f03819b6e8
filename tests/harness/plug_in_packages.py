"""A package with plug-ins in a folder, as pip would install it: modules and their entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    folder: Path, module: str, source: str, groups: Mapping[str, Mapping[str, str]]
) -> None:
    """Write a module and its metadata. `groups`: by entry-point group, name to class."""
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
