"""A Python with pyslurm for the tests, named by METASCHED_PYSLURM_PYTHON.

It must have pyslurm for the installed release of Slurm, metasched, msgspec and psutil. The modules
of metasched are then taken from this checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from metasched.adapters.slurm.adapter import Slurm, SlurmOptions
from metasched.model.cluster import Cluster
from tests.harness.slurm import SlurmCluster
from tests.harness.worker_adapter import WorkerAdapter

VARIABLE = "METASCHED_PYSLURM_PYTHON"
PYTHON = os.environ.get(VARIABLE, "")
ROOT = Path(__file__).parents[2]
# variables of a worker, as in the key `environment` of a cluster
ENVIRONMENT = {**Slurm.environment, "PYTHONPATH": str(ROOT)}


def missing() -> str | None:
    """Return why no such Python is available, or None."""
    if not PYTHON:
        return f"{VARIABLE} names no Python with pyslurm"
    # pyslurm is looked up, not imported: an import needs a slurm.conf
    completed = subprocess.run(
        [
            PYTHON,
            "-c",
            "import importlib.util as u, metasched.adapters.worker as w; w.adapter_class('slurm');"
            "assert u.find_spec('pyslurm')",
        ],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return None if completed.returncode == 0 else f"{PYTHON}: {completed.stderr.strip()[-300:]}"


def worker_adapter(
    cluster: SlurmCluster, options: SlurmOptions, instance: str, folder: Path
) -> WorkerAdapter:
    """Return the adapter in a worker under that Python; `folder` is the cluster's own."""
    return WorkerAdapter(
        Cluster(name=cluster.name, adapter="slurm"),
        options,
        instance,
        folder,
        Slurm.capabilities,
        [PYTHON],
        ENVIRONMENT,
    )


def stand_in(folder: Path) -> Path:
    """Create the folder with a module `pyslurm` that fails on request (tests/harness/stand_in)."""
    folder.mkdir()
    shutil.copy(ROOT / "tests" / "harness" / "stand_in" / "pyslurm.py", folder)
    return folder
