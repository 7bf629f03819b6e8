"""Figures of the structure: lines, packages, layers, imports between packages.

`python -m tests.harness.structure` prints them for the checkout that it is run in.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import grimp

ROOT = "metasched"
PRODUCT = (ROOT, "adapters", "policies", "db")  # the last three are linked into the first


def layers() -> list[list[str]]:
    """Return the packages of each layer, from the top, as pyproject.toml orders them."""
    contracts = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]
    [ordered] = [
        contract["layers"]
        for contract in contracts["contracts"]
        if contract["type"] == "layers" and "containers" not in contract
    ]
    return [[name.strip() for name in layer.split("|")] for layer in ordered]


def imports_between_packages() -> set[tuple[str, str]]:
    """Return (importer, imported) for each two packages directly below metasched."""
    graph = grimp.build_graph(ROOT, cache_dir=None)
    pairs = {
        (_package_of(importer), _package_of(imported))
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    }
    return {(importer, imported) for importer, imported in pairs if importer != imported}


def _package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _lines(*folders: str) -> int:
    files = [path for folder in folders for path in Path(folder).rglob("*.py")]
    return sum(len(path.read_bytes().splitlines()) for path in files)


def main() -> None:
    pairs = imports_between_packages()
    figures = {
        "lines": _lines(*PRODUCT),
        "lines of tests": _lines("tests"),
        "packages": sum(map(len, layers())),
        "layers": len(layers()),
        "imports between packages": len(pairs),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
