"""`init site` finds real managers by their own files, and the commands that it names answer."""

from __future__ import annotations

from pathlib import Path

from metasched.site_setup.discovery import find_cells, find_slurm
from tests.harness.daemons import output_of
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmSite

HERE = Path("/")


def test_a_slurm_cluster_by_its_configuration(slurm_site: SlurmSite) -> None:
    for real in slurm_site:
        clusters = {each.name: each for each in find_slurm(HERE, {"SLURM_CONF": str(real.conf)})}
        cluster = clusters[real.name]
        assert cluster.config == str(real.conf)
        command = [*real.inside, f"{cluster.bin_dir}/sinfo", "--noheader", "--format=%D %P"]
        environment = {"SLURM_CONF": cluster.config}
        answer = output_of(command, environment, real.folder)
        assert answer.split()[0] == str(real.spec.nodes)
        for program in ("sbatch", "scancel", "scontrol"):
            output_of([f"{cluster.bin_dir}/{program}", "--version"], environment, real.folder)


def test_a_grid_engine_cell_by_its_root(gridengine_cell: Cell) -> None:
    real = gridengine_cell
    cells = {each.name: each for each in find_cells(HERE, {"SGE_ROOT": str(real.root)})}
    cell = cells[real.name]
    assert cell.environment["SGE_ROOT"] == str(real.root)
    assert cell.environment["SGE_CELL"] == real.name
    # the cell has no settings.sh: a site has these ports there, or in /etc/services
    ports = {name: port for name, port in real.environment.items() if name.endswith("_PORT")}
    path = {"PATH": f"{cell.bin_dir}:/usr/bin:/bin"}
    environment = path | ports | dict(cell.environment)
    assert real.host in output_of([*real.inside, "qconf", "-sel"], environment, real.folder)
    for program in ("qsub", "qdel", "qhold", "qrls"):
        assert (Path(cell.bin_dir) / program).exists()
