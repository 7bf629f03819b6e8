"""Scripts with `#$` and `#PBS` lines on real clusters: resources and variables of their dialect."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import metasched
from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness import slurm
from tests.harness.gridengine import Cell
from tests.harness.slurm import ClusterSpec, SlurmSite

SBATCH = Path(metasched.__file__).parent / "drop_in/slurm/sbatch"
QUICK = "poll_interval = 0.5\nsettle = 1\n"
TORQUE = """#!/bin/bash
#PBS -N 'a name'
#PBS -l nodes={nodes}:ppn=2,walltime=90
#PBS -j oe
[ "$METASCHED_JOB_ID" = "$PBS_JOBID" ] && echo id
for name in JOBNAME ENVIRONMENT NUM_NODES NUM_PPN NP WALLTIME O_LOGNAME; do
    eval "echo $name=\\$PBS_$name"
done
[ "$PBS_O_WORKDIR" = "$PWD" ] && echo workdir
sort "$PBS_NODEFILE" | uniq -c | awk '{{print "lines", $1}}'
python3 -c 'import os; print(len(open(os.environ["PBS_NODEFILE"]).readlines()))'
"""
GRID_ENGINE = """#!/bin/sh
#$ -N name -cwd -j y
#$ -pe smp 3
#$ -l h_rt=60
#$ -t 4-5
echo "$NSLOTS $NHOSTS $SGE_TASK_ID $SGE_TASK_FIRST $SGE_TASK_LAST $ENVIRONMENT"
[ -n "$JOB_ID" ] && [ -n "$QUEUE" ] && [ -d "$TMPDIR" ] && echo set
awk '{print NF, $2}' "$PE_HOSTFILE"
[ "$SGE_O_WORKDIR" = "$PWD" ] && echo workdir
"""


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    if reason := slurm.missing():
        require("slurm", reason)
    spec = ClusterSpec("alpha", "n", nodes=2, cpus=4)
    with SlurmSite(tmp_path_factory.mktemp("dialects"), [spec]) as site:
        yield site


def outputs(site: Site, script: str) -> list[str]:
    """Run a script; return what each task printed."""
    file = site.folder / "script"
    file.write_text(script)
    job = site.submit("-o", str(site.folder / "%j.out"), str(file))
    rows = site.until_ended(job)
    texts = []
    for number, row in enumerate(rows, start=job):
        texts.append((site.folder / f"{number}.out").read_text())
        assert row["state"] == "completed", (row, texts)
    return texts


def check_torque(site: Site, nodes: int) -> None:
    [text] = outputs(site, TORQUE.format(nodes=nodes))
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    assert text.splitlines() == [
        "id",
        "JOBNAME=a name",
        "ENVIRONMENT=PBS_BATCH",
        f"NUM_NODES={nodes}",
        "NUM_PPN=2",
        f"NP={2 * nodes}",
        "WALLTIME=90",
        f"O_LOGNAME={user}",
        *["workdir"] * (os.getcwd() != "/"),
        *["lines 2"] * nodes,
        str(2 * nodes),
    ]


def check_gridengine(site: Site) -> None:
    for index, text in zip((4, 5), outputs(site, GRID_ENGINE), strict=True):
        assert text.splitlines() == [f"3 1 {index} 4 5 BATCH", "set", "4 3", "workdir"]


def test_on_slurm(site: Site, two_nodes: SlurmSite) -> None:
    two_nodes["alpha"].empty()
    site.configure(two_nodes["alpha"].table("poll_interval = 0.5\n"))
    site.start()
    check_torque(site, 2)
    check_gridengine(site)


def test_on_a_local_cluster(site: Site) -> None:
    site.configure(ONE_LOCAL)
    site.start()
    check_torque(site, 1)
    check_gridengine(site)


def test_on_grid_engine(site: Site, gridengine_cell: Cell) -> None:
    gridengine_cell.empty()
    table = gridengine_cell.table(gridengine_cell.python(site.folder / "python"), QUICK)
    site.configure(table)
    site.start()
    check_torque(site, 1)
    check_gridengine(site)


def test_the_drop_in_sbatch_reads_them(site: Site) -> None:
    site.configure(ONE_LOCAL, extra="first_id = 100000001\n")
    site.start()

    def sbatch(script: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SBATCH, "--parsable", "-o", "/dev/null", *options],
            input=f"#!/bin/sh\n{script}\n",
            env=dict(os.environ) | site.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = sbatch("#PBS -l nodes=1:ppn=3,walltime=90\ntrue")
    assert done.returncode == 0, done
    [row] = site.until_ended(int(done.stdout))
    assert row["state"] == "completed"
    bad = "#PBS -N x\n#PBS -l cput=60\ntrue"
    refused = sbatch(bad)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        'sbatch: error: "-l cput=60" has no equivalent, stdin line 3; '
        "write what it means as #MS options\n"
    )
    assert sbatch(bad, "--ignore-pbs").returncode == 0
