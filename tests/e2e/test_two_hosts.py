"""Active daemon and standby on two hosts, PostgreSQL and clients on a third.

Clients know both daemons. The active one is killed, hangs with its host and goes on later, or is
cut off from the database alone. Submissions come meanwhile; accepted jobs run once.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.conftest import COMMAND, Site
from tests.harness import postgresql
from tests.harness.daemons import no_namespace
from tests.harness.linked_hosts import NETWORK, Cable, LinkedHost
from tests.harness.postgresql import Server

pytestmark = pytest.mark.root

PORT = 7410
CERTIFICATE = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=metasched"
CLUSTER = """
[[cluster]]
name = "here"
adapter = "local"
cpus = 8
poll_interval = 0.2
call_timeout = 5
"""
# submits jobs until a file appears; a submission may be refused, or its result unknown
STREAM = """
until [ -e "$2/stop" ]; do
    "$1" submit --parsable -o /dev/null --wrap "echo \\$METASCHED_JOB_ID >>'$2/ran'"
done
"""


@dataclass
class Network:
    """Two hosts, each with a cable to the database server and another to clients beside it."""

    server: Server
    hosts: tuple[LinkedHost, LinkedHost]
    to_database: tuple[Cable, Cable]
    to_clients: tuple[Cable, Cable]
    certificate: Path  # with its key, for the addresses of both hosts


class Daemon(Site):
    """The daemon of a host, called from the host of the database server."""

    def __init__(self, folder: Path, network: Network, database: str, number: int) -> None:
        super().__init__(folder)
        cable = network.to_database[number]
        self.url = f"postgresql://metasched@{cable.hub_address}/{database}"
        self.config, self.log = folder / f"{number}.toml", folder / f"{number}.log"
        self.before = network.hosts[number].inside
        self._client_host = network.server.inside
        self._certificate = network.certificate
        addresses = [cable.host_address for cable in network.to_clients]
        self.own_url = f"https://{addresses[number]}:{PORT}"
        self.urls = ",".join(f"https://{address}:{PORT}" for address in addresses)
        key = network.certificate.with_suffix(".key")
        self.configure(
            CLUSTER,
            f'[tcp]\nlisten = "0.0.0.0:{PORT}"\nurl = "{self.urls}"\n'
            f'certificate = "{network.certificate}"\nkey = "{key}"\n',
        )
        self.config.write_text(self.config.read_text().replace("ms.sock", f"{number}.sock"))

    @property
    def client_environment(self) -> dict[str, str]:
        return self.environment | {
            "METASCHED_CONFIG": "",
            "METASCHED_SOCKET": self.urls,
            "METASCHED_TOKEN_FILE": str(self.folder / "token"),
            "SSL_CERT_FILE": str(self._certificate),
        }

    def submit_job(self, code: int = 0, urls: str = "") -> int:
        """Submit a job that notes its id, to the active daemon or that of `urls`; return the id.

        0 if the command ends with another code.
        """
        script = f"echo $METASCHED_JOB_ID >>'{self.folder}/ran'"
        arguments = ["submit", "--parsable", "-o", "/dev/null", "--wrap", script]
        environment = self.client_environment | {"METASCHED_SOCKET": urls or self.urls}
        command: list[str | Path] = [*self._client_host, COMMAND, *arguments]
        done = self._run(command, code, environment, {"cwd": self.folder})
        return int(done.stdout or 0)

    def stream(self, number: int) -> subprocess.Popen[bytes]:
        """Submit jobs one after another until the file `stop` appears."""
        with (self.folder / f"accepted.{number}").open("wb") as accepted:
            return subprocess.Popen(
                [*self._client_host, "sh", "-c", STREAM, "sh", COMMAND, self.folder],
                env=self.client_environment,
                stdout=accepted,
                stderr=subprocess.DEVNULL,
            )

    def send(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(number)

    def exit_code(self) -> int:
        assert self._daemon is not None
        return self._daemon.wait(120)


@pytest.fixture(scope="module")
def network(common_folder: Path) -> Iterator[Network]:
    if reason := postgresql.missing():
        require("postgresql", reason)
    if reason := no_namespace():
        require("namespaces", reason)
    if shutil.which("openssl") is None:
        require("openssl", "it makes the certificate")
    folder = common_folder / "two-hosts"
    folder.mkdir(mode=0o755)
    settings = ("fsync=off", "listen_addresses=*")
    with ExitStack() as stack:
        server = stack.enter_context(Server(common_folder / "pg2", settings, NETWORK))
        first, second = (
            stack.enter_context(LinkedHost(folder / name, NETWORK)) for name in ("one", "two")
        )
        hosts = (first, second)
        data = tuple(Cable(f"data{i}", server, host, i + 1) for i, host in enumerate(hosts))
        use = tuple(Cable(f"use{i}", server, host, i + 11) for i, host in enumerate(hosts))
        names = ",".join(f"IP:{cable.host_address}" for cable in use)
        options = ["-keyout", "tls.key", "-out", "tls.pem", "-addext", f"subjectAltName={names}"]
        subprocess.run(
            [*CERTIFICATE.split(), *options], cwd=folder, capture_output=True, check=True
        )
        yield Network(server, hosts, (data[0], data[1]), (use[0], use[1]), folder / "tls.pem")


@pytest.fixture
def daemons(tmp_path: Path, network: Network) -> Iterator[tuple[Daemon, Daemon]]:
    """The active daemon, and its standby."""
    database = network.server.create().partition("?")[0].rpartition("/")[2]
    (tmp_path / "ran").touch()
    first, second = (Daemon(tmp_path, network, database, number) for number in (0, 1))
    with closing(first), closing(second):
        first.start()
        first.run("token", "create", "--file", tmp_path / "token")
        second.options = ["--standby"]
        second.launch()
        second.until(lambda: "standby: another daemon" in second.log.read_text())
        yield first, second


@pytest.mark.slow("starts two daemons, then waits until the database has given up the first")
@pytest.mark.parametrize("fault", ["killed", "hangs", "cut off"])
def test_a_standby_on_another_host_takes_over(
    daemons: tuple[Daemon, Daemon],
    network: Network,
    fault: str,
    record_property: Callable[[str, object], None],
) -> None:
    first, second = daemons
    accepted = [first.submit_job() for _ in range(3)]
    streams = [first.stream(number) for number in range(2)]
    try:
        first.until(lambda: len(first.rows()) > 6)
        match fault:
            case "killed":
                first.send(signal.SIGKILL)
            case "hangs":
                first.send(signal.SIGSTOP)
            case "cut off":
                network.to_database[0].pull()
        failed = time.monotonic()
        accepted.append(first.submit_job())
        record_property("seconds until a submission was accepted", time.monotonic() - failed)
        match fault:
            case "hangs":
                first.send(signal.SIGCONT)
            case "cut off":
                first.until(lambda: not first.workers)
                first.submit_job(code=4, urls=first.own_url)
                network.to_database[0].plug()
        assert first.exit_code() == (-9 if fault == "killed" else 1)
        accepted.append(second.submit_job())
    finally:
        (first.folder / "stop").touch()
        network.to_database[0].plug()
        for stream in streams:
            stream.wait(120)
    for number in range(2):
        accepted += map(int, (first.folder / f"accepted.{number}").read_text().split())
    rows = second.until_ended()
    assert {row["state"] for row in rows} == {"completed"}
    ran = Counter(map(int, (first.folder / "ran").read_text().split()))
    assert set(accepted) <= ran.keys()
    assert ran == Counter(row["job"] for row in rows)
    second.stop()
    second.before = ()
    # from here on without a network to the server: by its socket
    second.url = network.server.url(second.url.rpartition("/")[2])
    second.replayed()
