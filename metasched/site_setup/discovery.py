"""Finds the clusters that a host reaches: slurm.conf files and Grid Engine cells.

Nothing that is found is executed. Only regular files are read, and no more than their first
megabyte. Paths are those below `root`, as a process that has it as its root would name them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from metasched.site_setup.choices import GridEngineCell, SiteSetupError, SlurmCluster

_SLURM_FILES = (
    *("etc/slurm/slurm.conf", "etc/slurm/*/slurm.conf", "etc/slurm-llnl/slurm.conf"),
    *("usr/local/etc/slurm.conf", "opt/slurm*/etc/slurm.conf", "run/slurm/conf/slurm.conf"),
)
_SLURM_FOLDERS = ("usr/bin", "usr/local/bin", "opt/slurm/bin", "opt/slurm*/bin")
_CELL_ROOTS = (
    *("opt/sge*", "opt/gridengine*", "opt/ocs*", "opt/gcs*", "opt/uge*", "usr/local/sge*"),
    *("var/lib/gridengine", "usr/share/gridengine", "usr/lib/gridengine"),
)
_CELL_FOLDERS = ("usr/bin", "usr/lib/gridengine", "usr/local/bin")  # of packaged cells
_CELL_LIBRARIES = (
    "usr/lib/gridengine-drmaa/lib/libdrmaa.so*",
    "usr/lib/*/libdrmaa.so*",
)
_MAX_BYTES = 1 << 20
_CLUSTER_NAME = re.compile(r"^\s*ClusterName\s*=\s*([^\s#]+)", re.IGNORECASE | re.MULTILINE)
_PORT = re.compile(r"^\s*(?:export\s+)?(SGE_(?:QMASTER|EXECD)_PORT)=\"?([0-9]{1,5})\"?", re.M)


def find_slurm(root: Path, environment: Mapping[str, str]) -> list[SlurmCluster]:
    """Return the clusters of the slurm.conf files in usual places and in SLURM_CONF."""
    paths = [name] if (name := environment.get("SLURM_CONF", "")).startswith("/") else []
    paths += _found(root, _SLURM_FILES)
    clusters: dict[str, SlurmCluster] = {}
    for path in dict.fromkeys(paths):
        text = _read(root, path)
        if text is not None and _CLUSTER_NAME.search(text):
            cluster = slurm_cluster(root, path)
            clusters.setdefault(cluster.name, cluster)  # linked, or copied to another place
    return list(clusters.values())


def slurm_cluster(root: Path, config: str, name: str = "") -> SlurmCluster:
    """Return the cluster of a slurm.conf. SiteSetupError if the file names no cluster."""
    text = _read(root, config)
    if text is None:
        raise SiteSetupError(f"no readable file {config}; name a slurm.conf with --slurm")
    match = _CLUSTER_NAME.search(text)
    if not name and match is None:
        raise SiteSetupError(f"no ClusterName in {config}; add NAME= before the file in --slurm")
    own_folder = str(Path(config).parent.parent / "bin").lstrip("/")  # /opt/slurm/etc/slurm.conf
    folder = _folder_of(root, "sbatch", (own_folder, *_SLURM_FOLDERS))
    if folder is None:
        raise SiteSetupError(
            f"no sbatch for {config} in {', '.join(f'/{f}' for f in _SLURM_FOLDERS)}; "
            "install the client commands of that cluster"
        )
    return SlurmCluster(name or (match[1] if match else ""), config, folder)


def find_cells(root: Path, environment: Mapping[str, str]) -> list[GridEngineCell]:
    """Return the cells below usual folders and SGE_ROOT."""
    roots = [name] if (name := environment.get("SGE_ROOT", "")).startswith("/") else []
    roots += _found(root, _CELL_ROOTS)
    cells: dict[str, GridEngineCell] = {}
    for sge_root in dict.fromkeys(roots):
        for path in _found(root, [f"{sge_root.strip('/')}/*/common/act_qmaster"]):
            cell = grid_engine_cell(root, sge_root, Path(path).parts[-3])
            cells.setdefault(cell.name, cell)
    return list(cells.values())


def grid_engine_cell(
    root: Path, sge_root: str, cell: str = "default", name: str = ""
) -> GridEngineCell:
    """Return a cell. SiteSetupError if there is none, or no client commands."""
    common = f"{sge_root}/{cell}/common"
    if _read(root, f"{common}/act_qmaster") is None:
        raise SiteSetupError(f"no cell {cell} below {sge_root}; name ROOT:CELL with --gridengine")
    folder = _folder_of(root, "qsub", (f"{sge_root.strip('/')}/bin/*", *_CELL_FOLDERS))
    if folder is None:
        raise SiteSetupError(
            f"no qsub for {sge_root} in {sge_root}/bin/*, /usr/bin or /usr/lib/gridengine; "
            "install the client commands of that cell"
        )
    own_libraries = f"{sge_root.strip('/')}/lib/*/libdrmaa.so*"
    libraries = _found(root, [own_libraries, *_CELL_LIBRARIES])
    library = libraries[0] if libraries else f"{sge_root}/lib/libdrmaa.so"
    variables = {"SGE_ROOT": sge_root, "SGE_CELL": cell}
    variables |= dict(_PORT.findall(_read(root, f"{common}/settings.sh") or ""))
    default_name = cell if cell != "default" else "grid"
    return GridEngineCell(name or default_name, folder, library, variables)


def _found(root: Path, patterns: Iterable[str]) -> list[str]:
    """Return the absolute paths below a root that match, in the order of the patterns."""
    return [
        f"/{path.relative_to(root)}" for pattern in patterns for path in sorted(root.glob(pattern))
    ]


def _folder_of(root: Path, program: str, folders: Iterable[str]) -> str | None:
    """Return the first folder with a program that everybody can execute, without links.

    Debian's cells link to /usr/lib/gridengine from a folder that belongs to sgeadmin.
    """
    for path in _programs(root, program, folders):
        folder, base = str(Path(path).parent), os.path.realpath(root)
        target = Path(os.path.realpath(_below(root, folder)))
        return f"/{target.relative_to(base)}" if target.is_relative_to(base) else folder
    return None


def _programs(root: Path, program: str, folders: Iterable[str]) -> Iterator[str]:
    for path in _found(root, [f"{folder}/{program}" for folder in folders]):
        try:
            status = os.stat(_below(root, path))
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IXOTH:
            yield path


def _read(root: Path, path: str) -> str | None:
    """Return the beginning of a regular file; None if it cannot be read."""
    try:
        descriptor = os.open(_below(root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return None


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
