"""`[cluster.job] prologue` on real clusters of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness import slurm
from tests.harness.gridengine import Cell
from tests.harness.slurm import ClusterSpec, SlurmSite

PROLOGUE = """[cluster.job]
prologue = '''
echo "loads for $1" # it's
export LOADED="$METASCHED_CLUSTER of $USER"
[ "$1" != stop ] || exit 7
'''
"""
SCRIPT = """#!/bin/bash
#SBATCH -n 1
echo "$LOADED" $*
exit 3
"""


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    if reason := slurm.missing():
        require("slurm", reason)
    spec = ClusterSpec("alpha", "n", nodes=1, cpus=4)
    with SlurmSite(tmp_path_factory.mktemp("prologue"), [spec]) as site:
        yield site


def check(site: Site, cluster: str) -> None:
    script = site.folder / "script"
    script.write_text(SCRIPT)
    texts = []
    for words, code in ((("a", "b c"), 3), (("stop",), 7)):
        output = site.folder / f"{words[0]}.out"
        job = site.submit("-o", str(output), "--export", "ALL,USER=ada", str(script), *words)
        [row] = site.until_ended(job)
        assert row["exit_code"] == code, output.read_text()
        texts.append(output.read_text())
    assert texts == [f"loads for a\n{cluster} of ada a b c\n", "loads for stop\n"]


def test_on_slurm(site: Site, one_node: SlurmSite) -> None:
    one_node["alpha"].empty()
    site.configure(one_node["alpha"].table("poll_interval = 0.5\n" + PROLOGUE))
    site.start()
    check(site, "alpha")


def test_on_a_local_cluster_with_claims(site: Site) -> None:
    (site.folder / "claims").mkdir()
    fence = f'fence_dir = "{site.folder}/claims"\n'
    site.configure(ONE_LOCAL + fence + PROLOGUE)
    site.start()
    check(site, "here")


def test_on_grid_engine(site: Site, gridengine_cell: Cell) -> None:
    gridengine_cell.empty()
    python = gridengine_cell.python(site.folder / "python")
    table = gridengine_cell.table(python, "poll_interval = 0.5\nsettle = 1\n" + PROLOGUE)
    site.configure(table)
    site.start()
    check(site, "cell")
