"""`[cluster.job]` prologue and environment on real clusters of each kind."""

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
LOGIN = PROLOGUE + 'environment = "login"\n'
PROFILE = "export PROFILE=read GIVEN=profile\n"
LOGIN_SCRIPT = """#!/usr/bin/env python3
import os
names = "LOADED", "PROFILE", "GIVEN", "NAMED", "OTHER", "METASCHED_EXPORTED"
print(*(os.environ.get(name) for name in names), os.environ["METASCHED_JOB_ID"], sep="|")
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
    for arguments, code in ((("a", "b c"), 3), (("stop",), 7)):
        output = site.folder / f"{arguments[0]}.out"
        job = site.submit("-o", str(output), "--export", "ALL,USER=ada", str(script), *arguments)
        [row] = site.until_ended(job)
        assert row["exit_code"] == code, output.read_text()
        texts.append(output.read_text())
    assert texts == [f"loads for a\n{cluster} of ada a b c\n", "loads for stop\n"]


def check_login(site: Site, cluster: str) -> None:
    """The script sees the profile, not the submission, but for what `--export` has named."""
    (site.folder / ".bash_profile").write_text(PROFILE)
    environment = {"HOME": str(site.folder), "OTHER": "x", "NAMED": "of submission"}
    script, output = site.folder / "login.py", site.folder / "login.out"
    script.write_text(LOGIN_SCRIPT)
    value = 'it\'s "$HOME"'
    exported = f"ALL,USER=ada,NAMED,GIVEN={value}"
    options = ("--parsable", "-o", str(output), "--export", exported)
    job = int(site.run("submit", *options, script, "a", env=environment).stdout)
    [row] = site.until_ended(job)
    assert (row["exit_code"], output.read_text()) == (
        0,
        f"loads for a\n{cluster} of ada|read|{value}|of submission|None|None|{job}\n",
    )


def test_on_slurm(site: Site, one_node: SlurmSite) -> None:
    one_node["alpha"].empty()
    site.configure(one_node["alpha"].table("poll_interval = 0.5\n" + PROLOGUE))
    site.start()
    check(site, "alpha")


def test_login_environment_on_slurm(site: Site, one_node: SlurmSite) -> None:
    one_node["alpha"].empty()
    site.configure(one_node["alpha"].table("poll_interval = 0.5\n" + LOGIN))
    site.start()
    check_login(site, "alpha")


def test_on_a_local_cluster_with_claims(site: Site) -> None:
    (site.folder / "claims").mkdir()
    fence = f'fence_dir = "{site.folder}/claims"\n'
    site.configure(ONE_LOCAL + fence + PROLOGUE)
    site.start()
    check(site, "here")


def test_login_environment_on_a_local_cluster_with_claims(site: Site) -> None:
    (site.folder / "claims").mkdir()
    site.configure(f'{ONE_LOCAL}fence_dir = "{site.folder}/claims"\n{LOGIN}')
    site.start()
    check_login(site, "here")


def test_on_grid_engine(site: Site, gridengine_cell: Cell) -> None:
    gridengine_cell.empty()
    python = gridengine_cell.python(site.folder / "python")
    table = gridengine_cell.table(python, "poll_interval = 0.5\nsettle = 1\n" + PROLOGUE)
    site.configure(table)
    site.start()
    check(site, "cell")


def test_login_environment_on_grid_engine(site: Site, gridengine_cell: Cell) -> None:
    gridengine_cell.empty()
    python = gridengine_cell.python(site.folder / "python")
    site.configure(gridengine_cell.table(python, "poll_interval = 0.5\nsettle = 1\n" + LOGIN))
    site.start()
    check_login(site, "cell")
