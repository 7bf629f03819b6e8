"""Jobs that submit jobs: the drop-in commands on hosts without the daemon's socket."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.multi_user_site import MultiUserSite, slurm_tables
from tests.harness import slurm
from tests.harness.accounts import A
from tests.harness.second_host import ADDRESS, FIRST_ADDRESS, SecondHost
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite

pytestmark = pytest.mark.root

FIRST_ID = 100_000_001
PORT = 7410
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=metasched "
    "-addext subjectAltName=IP:10.98.0.1"
)
HEAD = """#!/bin/sh
exec 2>&1
export METASCHED_MUNGE_SOCKET={munge}
[ -e {socket} ] && echo 'the socket is visible'
ip -o -4 address show dev far | grep -o '{address}'
job=$(sbatch --parsable -o inner.out --wrap 'echo $SLURM_JOB_ID') || exit
squeue -h -j $job -o '%i %u' | sed "s/^$job /inner /"
held=$(sbatch --parsable -H --wrap true) && scancel $held
until [ -s inner.out ]; do sleep 0.1; done
grep -qx $job inner.out && echo done
"""


def make_certificate(folder: Path, account: str) -> None:
    """Write `key.pem`, of the daemon's account alone, and `cert.pem`."""
    if shutil.which("openssl") is None:
        require("openssl", "it makes the certificate")
    words = [*CERTIFICATE.split(), "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(words, cwd=folder, capture_output=True, check=True)
    shutil.chown(folder / "key.pem", account)


@dataclass
class FarSite:
    """A site whose only cluster has its nodes on a second host."""

    site: MultiUserSite
    cluster: SlurmCluster
    host: SecondHost


@pytest.fixture(scope="module")
def far(common_folder: Path) -> Iterator[FarSite]:
    if reason := slurm.missing():
        require("slurm", reason)
    folder = common_folder / "nodes"
    folder.mkdir(mode=0o755)
    with SecondHost(folder / "host") as host:
        spec = ClusterSpec("far", "f", nodes=1, cpus=4, host=host)
        with SlurmSite(folder / "slurm", [spec], namespace=host.first_host) as clusters:
            cluster = clusters["far"]
            site = MultiUserSite(folder / "site", inside=clusters.inside)
            make_certificate(site.folder, "metasched-test-d")
            tcp = (
                f'[tcp]\nlisten = "0.0.0.0:{PORT}"\nurl = "https://{FIRST_ADDRESS}:{PORT}"\n'
                f'munge = true\nmunge_socket = "{cluster.socket}"\n'
                'certificate = "cert.pem"\nkey = "key.pem"\n'
            )
            first_id = f"first_id = {FIRST_ID}\n"
            site.set_up(*slurm_tables(cluster), extra=tcp, daemon=first_id)
            host.hide(site.state)
            try:
                site.start()
                yield FarSite(site, cluster, host)
            finally:
                site.close()


def test_a_job_submits_jobs_by_munge(far: FarSite) -> None:
    a = far.site.by(A)
    script = far.site.folder / A / "head"
    script.write_text(
        HEAD.format(munge=far.cluster.socket, socket=far.site.state / "ms.sock", address=ADDRESS)
    )
    job = a.submit("-o", "head.out", script)
    a.until_ended(job)
    assert (script.parent / "head.out").read_text().splitlines() == [
        ADDRESS,
        f"inner {A}",
        "done",
    ]
