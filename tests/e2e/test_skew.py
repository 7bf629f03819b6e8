"""Client, daemon, launcher and worker of adjacent releases work together or give one error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metasched.paths import API_PROTOCOL, PROTOCOL_HEADER
from tests.e2e.conftest import Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.e2e.two_releases import LICENCE, LOCAL, UpgradedSite
from tests.harness.accounts import KEEPER, A, B
from tests.harness.previous_release import PreviousRelease
from tests.harness.root_launcher import RootLauncher

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def use(run: Run, folder: Path) -> None:
    """Use the commands on jobs and resources; each must succeed."""

    def output_of(*arguments: str | Path) -> str:
        return run(*arguments).stdout

    waiting = output_of("submit", "--parsable", "-t", "5", "--hold", "--wrap", "echo done").strip()
    output_of("modify", waiting, "--time", "10")
    output_of("release", waiting)
    output_of("wait", waiting)
    assert output_of("output", waiting) == "done\n"
    [row] = json.loads(output_of("status", waiting, "--json"))
    assert (row["state"], row["exit_code"]) == ("completed", 0)
    assert json.loads(output_of("story", waiting, "--json"))
    array = ("submit", "--parsable", "--array=0-1", "-L", "solver:1", "--wrap", "sleep 600")
    running = output_of(*array).strip()
    assert f"{running}" in output_of("explain", running)
    output_of("hold", running)
    output_of("cancel", running)
    for listing in ("clusters", "licences", "reservations"):
        json.loads(output_of(listing, "--json"))
    output_of("cluster", "drain", "left")
    output_of("cluster", "resume", "left")


@pytest.fixture
def site(tmp_path: Path, previous_release: PreviousRelease) -> Iterator[UpgradedSite]:
    new_site = UpgradedSite(tmp_path, previous_release)
    new_site.configure(LICENCE + LOCAL)
    try:
        yield new_site
    finally:
        new_site.close()


def test_commands_of_the_previous_release_work_with_this_daemon(site: UpgradedSite) -> None:
    site.upgrade()
    use(site.run_previous, site.folder)


def test_commands_work_with_a_daemon_of_the_previous_release(site: UpgradedSite) -> None:
    site.start()
    site.upgraded = True  # the commands, not the daemon
    use(site.run, site.folder)


def answer_to(site: Site, head: str) -> str:
    """Return the daemon's response to a request with this head."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(site.folder / "ms.sock"))
        connection.sendall(f"{head}\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def test_a_command_of_a_later_release_is_refused_in_one_line(site: UpgradedSite) -> None:
    site.upgrade()
    header = f"{PROTOCOL_HEADER}: {API_PROTOCOL}".lower()
    for path in ("/health", "/clusters"):
        response = answer_to(site, f"GET {path} HTTP/1.0\r\n{header}")
        assert response.startswith("HTTP/1.1 200 ")
        assert header in response.lower()
    response = answer_to(site, f"GET /health HTTP/1.0\r\n{PROTOCOL_HEADER}: {API_PROTOCOL + 1}")
    assert response.startswith("HTTP/1.1 400 ")
    assert "of a later release than the daemon (API 3, the daemon's 2); use the com" in response
    for invalid in ("x", "-1", "1" * 5000):
        response = answer_to(site, f"GET /health HTTP/1.0\r\n{PROTOCOL_HEADER}: {invalid}")
        assert response.startswith("HTTP/1.1 400 ")


def test_a_worker_of_the_previous_release_is_reported_with_the_remedy(
    site: UpgradedSite, tmp_path: Path
) -> None:
    """The worker module was renamed: a cluster's own Python needs the daemon's release."""
    python = tmp_path / "python"
    program = site.previous.command[0]
    python.write_text(
        f'#!/bin/sh\ncd /; PYTHONPATH="{site.previous.folder}" exec "{program}" "$@"\n'
    )
    python.chmod(0o755)
    site.configure(f'{LOCAL}python = "{python}"\n')
    site.upgraded = True
    site.launch()
    remedy = "before its first answer; install metasched "
    site.until(lambda: remedy in site.cluster_rows()[0]["state"])
    assert str(python) in site.cluster_rows()[0]["state"]
    job = site.submit("--wrap", "true")
    assert site.row(job)["state"] == "queued"


class MixedSite(MultiUserSite):
    """A site whose launcher or daemon may be that of the previous release."""

    def __init__(self, folder: Path, previous: PreviousRelease) -> None:
        super().__init__(folder)
        self.previous, self.previous_daemon = previous, False

    def launch(self) -> None:
        if not self.previous_daemon:
            super().launch()
            return
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                [*self.before, *self.previous.command, "serve"],
                env=self.previous.environment(self.environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def use_launcher(self, program: Path | None = None) -> None:
        """Replace the launcher by `program`, or by the launcher of the present release."""
        self.launcher.kill()
        self.launcher.program = str(program or RootLauncher.program)
        self.set_up(LOCAL, f"[cluster.left]\n{SUPERVISE}")


@pytest.fixture
def mixed(common_folder: Path, previous_release: PreviousRelease) -> Iterator[MixedSite]:
    number = len(os.listdir(common_folder))
    new_site = MixedSite(common_folder / f"mixed-{number}", previous_release)
    try:
        yield new_site
    finally:
        new_site.close()


@pytest.mark.root
def test_a_launcher_of_the_previous_release_closes_the_cluster(mixed: MixedSite) -> None:
    mixed.use_launcher(mixed.previous.folder / "metasched" / "launcher.py")
    mixed.start("down:")
    line = "the launcher has protocol 1, this daemon 2; restart the launcher with the daemon's"
    mixed.until(lambda: line in mixed.cluster_rows()[0]["state"])
    a = mixed.by(A)
    assert line in a.error("submit", "--wrap", "true", code=4)
    assert line in mixed.by(KEEPER).run("doctor", code=1).stdout
    mixed.use_launcher()
    mixed.until(lambda: mixed.cluster_rows()[0]["state"] == "up")
    job = a.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
    assert a.until_ended(job)[0]["state"] == "completed"


@pytest.mark.root
def test_this_launcher_serves_a_daemon_of_the_previous_release(mixed: MixedSite) -> None:
    mixed.use_launcher()
    mixed.previous_daemon = True
    mixed.start()
    a = mixed.by(A)
    job = a.submit("-t", "5", "-o", "out", "--wrap", "id -un")
    assert a.until_ended(job)[0]["state"] == "completed"
    assert (mixed.folder / A / "out").read_text() == f"{A}\n"
    running = a.submit("-t", "5", "-o", "/dev/null", "--wrap", "sleep 600")
    a.until(lambda: a.row(running)["state"] == "running")
    a.run("cancel", str(running))
    assert a.until_ended(running)[0]["state"] == "cancelled"
    mixed.by(B)  # makes B's folder
    refusal = a.error("submit", "--chdir", mixed.folder / B, "--wrap", "true", code=3)
    assert refusal.startswith(f"directory {mixed.folder / B}: Permission denied; ")
