"""Jobs that submit jobs: the drop-in commands on hosts without the daemon's socket."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import metasched
from metasched.model.job_token import parse_job_token
from tests.conftest import require
from tests.e2e.multi_user_site import MultiUserSite, gridengine_tables, slurm_tables
from tests.e2e.test_probe_jobs import probe
from tests.harness import accounts, gridengine, slurm
from tests.harness.accounts import KEEPER, OPERATOR, A, B
from tests.harness.daemons import HOST
from tests.harness.gridengine import Cell
from tests.harness.second_host import ADDRESS, FIRST_ADDRESS, SecondHost
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite

pytestmark = pytest.mark.root

DROP_INS = Path(metasched.__file__).parent / "drop_in/slurm"
FIRST_ID = 100_000_001
PORT = 7410
CERTIFICATE = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=metasched"
HEAD = """#!/bin/sh
exec 2>&1
PATH={drop_ins}:$PATH
[ -e {socket} ] && echo 'the socket is visible'
{extra}
rm -f inner.out
job=$(sbatch --parsable -o inner.out --wrap 'echo $SLURM_JOB_ID') || exit
squeue -h -j $job -o '%i %u' | sed "s/^$job /inner /"
held=$(sbatch --parsable -H --wrap true) && scancel $held
until [ -s inner.out ]; do sleep 0.1; done
grep -qx $job inner.out && echo done
"""
WAIT = """
printf %s $METASCHED_JOB_TOKEN_FILE >path
cp $METASCHED_JOB_TOKEN_FILE token
touch ready
until [ -e go ]; do sleep 0.1; done
"""
# sends a request with a token, as a thief would who trusts any certificate
ASK = """
import http.client, json, ssl, sys
address, token, method, path, body = sys.argv[1:]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
connection = http.client.HTTPSConnection(address, timeout=60, context=context)
headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
connection.request(method, path, body or None, headers)
answer = connection.getresponse()
print(json.dumps([answer.status, json.loads(answer.read())]))
"""


@dataclass
class NodeSite:
    """A site whose jobs run on hosts on which the daemon's socket is not."""

    site: MultiUserSite
    address: str  # of the daemon
    inside: tuple[str, ...]  # command that enters the daemon's network
    manager_files: Path
    stop_manager: Callable[[], None]
    start_manager: Callable[[], None]
    list_jobs: Callable[[], str]  # all that the manager tells about all jobs
    slurm: SlurmCluster | None = None

    def head(self, account: str, name: str, extra: str = "", wait: str = "") -> Path:
        """Write a script that submits a job; return its path."""
        folder = self.site.by(account).caller["cwd"]
        script: Path = folder / name
        socket = self.site.state / "ms.sock"
        text = HEAD.format(drop_ins=DROP_INS, socket=socket, extra=extra)
        script.write_text(text + wait)
        return script

    def ask(self, token: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        content = "" if body is None else json.dumps(body)
        command = [sys.executable, "-c", ASK, self.address, token, method, path, content]
        done = subprocess.run(
            [*self.inside, *command], capture_output=True, text=True, check=True, timeout=90
        )
        status, answer = json.loads(done.stdout)
        return status, answer


def set_up(
    folder: Path,
    inside: tuple[str, ...],
    address: str,
    tables: Callable[[str], tuple[str, str]],
    munge: str = "",
) -> MultiUserSite:
    """Configure a site with TLS, and claims; the daemon is not running yet."""
    if shutil.which("openssl") is None:
        require("openssl", "it makes the certificate")
    site = MultiUserSite(folder, inside=inside)
    command = [*CERTIFICATE.split(), "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    shutil.chown(folder / "key.pem", KEEPER)
    claims = folder / "claims"
    claims.mkdir()
    shutil.chown(claims, KEEPER)
    tcp = (
        f'[tcp]\nlisten = "0.0.0.0:{PORT}"\nurl = "https://{address}"\n'
        f'certificate = "cert.pem"\nkey = "key.pem"\n{munge}'
    )
    site.set_up(*tables(f'fence_dir = "{claims}"\n'), extra=tcp, daemon=f"first_id = {FIRST_ID}\n")
    return site


@pytest.fixture(scope="module")
def on_slurm(common_folder: Path) -> Iterator[NodeSite]:
    """A Slurm cluster with its nodes on a second host, which has a munged of its own."""
    if reason := slurm.missing():
        require("slurm", reason)
    folder = common_folder / "nodes-slurm"
    folder.mkdir(mode=0o755)
    with SecondHost(folder / "host") as host:
        spec = ClusterSpec("far", "f", nodes=1, cpus=4, host=host)
        with SlurmSite(folder / "slurm", [spec], namespace=host.first_host) as clusters:
            cluster, address = clusters["far"], f"{FIRST_ADDRESS}:{PORT}"
            site = set_up(
                folder / "site",
                clusters.inside,
                address,
                lambda options: slurm_tables(cluster, options),
                f'munge = true\nmunge_socket = "{cluster.socket}"\n',
            )
            host.show(site.state)

            def list_jobs() -> str:
                shown = cluster.run("scontrol", "--details", "show", "job")
                return shown + cluster.run("squeue", "-o", "%all")

            try:
                site.start()
                yield NodeSite(
                    site,
                    address,
                    clusters.inside,
                    cluster.folder,
                    cluster.kill_controller,
                    cluster.start_controller,
                    lambda: (
                        cluster.run("squeue", "-o", "%all") + cluster.run("scontrol", "show", "job")
                    ),
                    cluster,
                )
            finally:
                site.close()


@pytest.fixture(scope="module")
def on_gridengine(common_folder: Path) -> Iterator[NodeSite]:
    """A Grid Engine cell, which has no MUNGE."""
    if reason := gridengine.missing():
        require("gridengine", reason)
    folder = common_folder / "nodes-cell"
    folder.mkdir(mode=0o755)
    with Cell(folder / "cell", namespace=HOST) as cell:
        address = f"127.0.0.1:{PORT}"
        site = set_up(
            folder / "site",
            cell.inside,
            address,
            lambda options: gridengine_tables(cell, options),
        )
        cell.show(site.state)
        try:
            site.start()
            yield NodeSite(
                site,
                address,
                cell.inside,
                cell.folder,
                cell.kill_qmaster,
                cell.start_qmaster,
                lambda: cell.run("qstat", "-j", "*") + cell.run("qstat", "-xml", "-r", "-ext"),
            )
        finally:
            site.close()


@pytest.fixture(params=["slurm", "gridengine"])
def nodes(request: pytest.FixtureRequest) -> NodeSite:
    site: NodeSite = request.getfixturevalue(f"on_{request.param}")
    return site


def test_a_job_submits_jobs_by_munge(on_slurm: NodeSite) -> None:
    assert on_slurm.slurm is not None
    a = on_slurm.site.by(A)
    extra = (
        f"export METASCHED_MUNGE_SOCKET={on_slurm.slurm.socket}; unset METASCHED_JOB_TOKEN_FILE\n"
        f"ip -o -4 address show dev far | grep -o '{ADDRESS}'"
    )
    a.until_ended(a.submit("-o", "munge.out", on_slurm.head(A, "munge", extra)))
    printed = (on_slurm.site.folder / A / "munge.out").read_text()
    assert printed.splitlines() == [ADDRESS, f"inner {A}", "done"]


def test_a_job_submits_jobs_by_its_token(nodes: NodeSite) -> None:
    a = nodes.site.by(A)
    a.until_ended(a.submit("-o", "token.out", nodes.head(A, "by-token")))
    assert (nodes.site.folder / A / "token.out").read_text().splitlines() == [f"inner {A}", "done"]


def start_head(nodes: NodeSite, account: str) -> tuple[int, str, Path]:
    """Start a job that waits for the file `go`; return its id, its token and the token's file."""
    user, home = nodes.site.by(account), nodes.site.folder / account
    script = nodes.head(account, "waits", wait=WAIT)
    for name in ("ready", "go", "inner.out"):
        (home / name).unlink(missing_ok=True)
    job = user.submit("-o", "waits.out", script)
    nodes.site.until((home / "ready").exists)
    return job, (home / "token").read_text(), Path((home / "path").read_text())


@pytest.mark.slow("kills the daemon, then waits until calls to a stopped manager have failed")
def test_a_token_acts_for_the_owner_until_its_job_ends(nodes: NodeSite) -> None:
    site = nodes.site
    job, token, _ = start_head(nodes, A)
    try:
        status, answer = nodes.ask(token, "GET", "/health")
        assert (status, answer["user"], answer["operator"]) == (200, A, False)
        status, answer = nodes.ask(token, "POST", "/tokens", {"seconds": 60})
        assert (status, "cannot create tokens" in answer["error"]) == (403, True)
        other = site.by(B).submit("--hold", "--wrap", "true")
        assert nodes.ask(token, "POST", "/jobs/cancel", {"jobs": [str(other)]})[0] == 404
        assert site.by(B).row(other)["state"] == "held"
        for stolen in (token[:-1] + "0", token[:-1] + "1"):
            if stolen != token:
                assert nodes.ask(stolen, "GET", "/health")[0] == 401
        site.stop(signal.SIGKILL)
        site.start()
        assert nodes.ask(token, "GET", "/health")[0] == 200
        nodes.stop_manager()
        try:
            site.until(lambda: site.cluster_rows()[0]["state"].startswith("down"))
            assert nodes.ask(token, "GET", "/health")[0] == 200  # it may still run
        finally:
            nodes.start_manager()
    finally:
        (site.folder / A / "go").touch()
    site.until_ended(job)
    status, answer = nodes.ask(token, "GET", "/health")
    assert status == 401
    assert answer["error"].startswith("the token is of no running job")


def test_a_token_of_an_operator_has_no_rights_of_operators(nodes: NodeSite) -> None:
    job, token, _ = start_head(nodes, OPERATOR)
    status, answer = nodes.ask(token, "GET", "/health")
    (nodes.site.folder / OPERATOR / "go").touch()
    assert (status, answer["user"], answer["operator"]) == (200, OPERATOR, False)
    nodes.site.by(OPERATOR).until_ended(job)


def test_no_other_account_finds_a_token(nodes: NodeSite) -> None:
    site = nodes.site
    job, token, path = start_head(nodes, A)
    try:
        assert parse_job_token(token) is not None
        secret = token.rpartition(".")[2]
        assert path.read_text() == token  # as root
        as_b = accounts.become(B)
        read = subprocess.run([*as_b, "cat", path], capture_output=True, check=False)
        assert (read.returncode, read.stdout) == (1, b"")
        search = ["grep", "-rlaF", secret, nodes.manager_files, site.folder]
        result = subprocess.run(
            [*as_b, *map(str, search)], capture_output=True, text=True, check=False
        )
        assert result.stdout == ""
        processes = subprocess.run(
            [*as_b, "ps", "axewww", "-o", "args"], capture_output=True, text=True, check=True
        )
        assert "waits" in processes.stdout or "metasched" in processes.stdout
        assert secret not in processes.stdout
        listings = nodes.list_jobs()
        assert re.search(rf"ms-\w+-{job}-", listings)
        assert secret not in listings
        for command in ("token list", f"status {job} --json", f"story {job}", f"explain {job}"):
            assert secret not in site.by(A).run(*command.split()).stdout
        stored = subprocess.run(
            ["grep", "-rlaF", secret, site.state, site.log, site.folder / "claims"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert stored.stdout == ""  # as root
    finally:
        (site.folder / A / "go").touch()
    site.until_ended(job)
    assert not path.exists()


def test_an_account_that_reads_the_script_gains_nothing(nodes: NodeSite) -> None:
    """B knows the key, as from an open spool folder, and registers a token of his own."""
    site = nodes.site
    job, token, _ = start_head(nodes, A)
    try:
        tag_task_key = token.rpartition(".")[0]
        key = tag_task_key.rpartition(".")[2]
        [folder] = (site.folder / "claims").glob(f"jobs-*/claims-{key}")
        own = f"{tag_task_key}.{'0' * 64}"
        name = f"token.0.{hashlib.sha256(own.encode()).hexdigest()}"
        as_b = accounts.become(B)
        subprocess.run([*as_b, "mkdir", "-m", "700", folder / name], check=True)
        assert nodes.ask(own, "GET", "/health")[0] == 401
        [registered] = (path for path in folder.glob("token.*") if path.name != name)
        for change in (["rmdir", registered], ["mv", registered, folder / "moved"]):
            assert subprocess.run([*as_b, *map(str, change)], check=False).returncode != 0
        assert nodes.ask(token, "GET", "/health")[0] == 200
    finally:
        (site.folder / A / "go").touch()
    site.until_ended(job)


def test_doctor_tries_the_daemons_url_from_a_node(on_slurm: NodeSite) -> None:
    site = on_slurm.site
    assert probe(site, "--account", A)["severity"] == "ok"
    text = site.config.read_text()
    site.config.write_text(
        text.replace(
            f'url = "https://{FIRST_ADDRESS}:{PORT}', f'url = "https://{FIRST_ADDRESS}:{PORT + 1}'
        )
    )
    try:
        row = probe(site, "--account", A, code=1)
    finally:
        site.config.write_text(text)
    assert row["id"] == "probe-daemon"
    assert "does not reach the daemon's url" in row["text"]
