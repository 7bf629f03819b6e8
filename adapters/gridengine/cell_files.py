"""Files of a cell: where they and its qmaster are, and whether accounts can read job scripts."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path


def cell_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the cell that the variables of Grid Engine name."""
    return Path(environment.get("SGE_ROOT", "/"), environment.get("SGE_CELL", "default"))


def qmaster_address(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return host and port of the qmaster; None if the cell's files, or this host, lack them."""
    try:
        hosts = (cell_folder(environment) / "common" / "act_qmaster").read_text().split()
        port = environment.get("SGE_QMASTER_PORT") or socket.getservbyname("sge_qmaster", "tcp")
    except (OSError, ValueError):
        return None
    return (hosts[0], str(port)) if hosts else None


def open_script_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the qmaster's folder of job scripts if every account can enter it.

    The qmaster writes scripts that everybody may read. None if the folder is closed, or is not on
    this host.
    """
    try:
        bootstrap = (cell_folder(environment) / "common" / "bootstrap").read_text()
        settings = dict(line.split(maxsplit=1) for line in bootstrap.splitlines() if " " in line)
        folder = Path(settings["qmaster_spool_dir"].strip(), "job_scripts")
        is_open = all(path.stat().st_mode & 0o001 for path in (folder, *folder.parents))
    except (OSError, KeyError, ValueError):
        return None
    return folder if is_open else None
