"""What all tests share: components that may be missing, real Slurm clusters, a real cell."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests import gridengine, slurm


def require(component: str, reason: str) -> NoReturn:
    """The component cannot be had: skip, or fail where METASCHED_REQUIRE names it."""
    required = os.environ.get("METASCHED_REQUIRE", "").replace(",", " ").split()
    if component in required:
        pytest.fail(f"METASCHED_REQUIRE names {component}, but: {reason}", pytrace=False)
    pytest.skip(f"needs {component}: {reason}")


@pytest.fixture(scope="session")
def common_folder() -> Iterator[Path]:
    """A folder through which every account may pass: pytest closes its own ones to others."""
    with tempfile.TemporaryDirectory(prefix="metasched-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


@pytest.fixture(scope="session")
def slurm_site(common_folder: Path) -> Iterator[slurm.SlurmSite]:
    """Real Slurm clusters alpha (4 nodes of 16 processors) and beta (3 of 8), for all tests."""
    reason = slurm.missing()
    if reason is not None:
        require("slurm", reason)
    with slurm.SlurmSite(common_folder / "slurm") as site:
        yield site


@pytest.fixture(scope="session")
def gridengine_cell(common_folder: Path) -> Iterator[gridengine.Cell]:
    """A real Grid Engine cell of one host with 8 slots, in a network namespace, for all tests."""
    reason = gridengine.missing()
    if reason is not None:
        require("gridengine", reason)
    with gridengine.Cell(common_folder / "gridengine") as cell:
        yield cell
