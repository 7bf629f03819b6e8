"""A site under a real systemd, in a container: from the archive to a reboot (tests/systemd)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.harness.container import Container, missing
from tests.harness.daemons import wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow("boots a Debian in a container, and once more"),
    pytest.mark.timeout(1800),
]

METASCHED = "/opt/metasched/bin/metasched"
SECONDS = 120.0


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    """A Debian with the installed archive."""
    source = os.environ.get("METASCHED_CONTAINER", "")
    if (reason := missing(source)) is not None:
        require("systemd", reason)
    archive = Path(os.environ["METASCHED_DIST"])
    # not in pytest's folder: the copy has devices, and files of many accounts
    with tempfile.TemporaryDirectory(prefix="metasched-container-") as folder:
        made = Container(Path(source), Path(folder, "root"))
        try:
            (made.folder / "root/archive").mkdir()
            subprocess.run(["tar", "-xf", archive, "-C", made.folder / "root/archive"], check=True)
            made.boot()
            yield made
        finally:
            made.remove()


def rows(container: Container, *arguments: str, account: str = "ada") -> Any:
    return json.loads(container.run("metasched", *arguments, "--json", account=account))


def row(container: Container, job: str) -> Any:
    return rows(container, "status", job)[0]


def until(container: Container, condition: Any, what: str) -> None:
    wait_until(condition, SECONDS, what, lambda: container.run("journalctl", "-n", "60"))


def submit(container: Container, command: str) -> str:
    return container.run(
        "metasched", "submit", "--parsable", "--wrap", command, account="ada"
    ).strip()


def unit(container: Container, name: str, key: str) -> str:
    return container.run("systemctl", "show", "--value", "-p", key, name).strip()


def test_a_site_from_its_archive_to_a_reboot(container: Container) -> None:
    container.run("sh", "-c", "cd /root/archive/* && ./install")
    container.run("useradd", "--create-home", "ada")
    container.run("useradd", "--create-home", "eve")

    # the host is set up, twice
    assert "created account metasched" in container.run(
        METASCHED, "init", "site", "--yes", "--local", "here=4"
    )
    assert container.run("metasched", "init", "site", "--yes") == "nothing to change\n"
    for name in ("metasched", "metasched-launcher"):
        verified = f"systemd-analyze verify {name}.service 2>&1"
        assert container.run("sh", "-c", verified) == ""
    assert "\n" in container.run("man", "-w", "metasched-submit")
    container.run("systemctl", "enable", "--now", "metasched-launcher", "metasched")
    assert unit(container, "metasched", "StatusText").endswith("of 1 clusters are up")
    until(container, lambda: rows(container, "clusters")[0]["state"] == "up", "the cluster")
    findings = json.loads(
        container.run("runuser", "-u", "metasched", "--", "metasched", "doctor", "--json")
    )
    assert [f for f in findings if f["severity"] in ("error", "warning")] == []

    # an ordinary account has a job; the daemon has no privilege, and its job no sandbox
    first = submit(container, "id -un; grep -c ^NoNewPrivs:.1 /proc/self/status; touch ~/made")
    until(container, lambda: row(container, first)["state"] == "completed", "the job")
    assert container.run("metasched", "output", first, account="ada").split() == ["ada", "1"]
    main = unit(container, "metasched", "MainPID")
    status = container.run("cat", f"/proc/{main}/status")
    assert "NoNewPrivs:\t1" in status
    assert "CapBnd:\t0000000000000000" in status
    owner = container.run("stat", "-c", "%U", f"/proc/{main}").strip()
    assert owner == "metasched"

    # a reload takes a change over, or fails and says why
    config = container.folder / "etc/metasched/metasched.toml"
    text = config.read_text()
    config.write_text(text.replace("cpus = 4", "cpus = 6"))
    container.run("systemctl", "reload", "metasched")
    until(container, lambda: rows(container, "clusters")[0]["cpus"] == 6, "the reload")
    config.write_text(text + "[nonsense]\n")
    container.run("systemctl", "reload", "metasched", code=1)
    assert "nonsense" in container.run("journalctl", "-u", "metasched", "-n", "20")
    config.write_text(text.replace("cpus = 4", "cpus = 6"))
    assert unit(container, "metasched", "MainPID") == main

    # the daemon and the launcher are killed while a job runs, which ends once
    job = submit(container, "echo run >> ~/runs; while [ ! -e ~/go ]; do sleep 0.2; done")
    until(container, lambda: row(container, job)["state"] == "running", "the start")
    until(container, lambda: (container.folder / "home/ada/runs").exists(), "the payload")
    for name in ("metasched", "metasched-launcher"):
        killed = unit(container, name, "MainPID")
        container.run("kill", "-9", killed)
        until(
            container,
            lambda name=name, killed=killed: (
                unit(container, name, "ActiveState") == "active"
                and unit(container, name, "MainPID") not in ("0", killed)
            ),
            f"the restart of {name}",
        )
    assert int(unit(container, "metasched", "NRestarts")) == 1
    # unknown as long as the cluster's worker had no launcher
    until(container, lambda: row(container, job)["state"] == "running", "the job, seen again")
    (container.folder / "home/ada/go").touch()
    until(container, lambda: row(container, job)["state"] == "completed", "the end")
    assert (container.folder / "home/ada/runs").read_text() == "run\n"

    # a stop leaves jobs alone; another account cannot end them, nor the daemon
    (container.folder / "home/ada/go").unlink()
    job = submit(container, "while [ ! -e ~/go ]; do sleep 0.2; done")
    until(container, lambda: row(container, job)["state"] == "running", "the start")
    container.run("metasched", "cancel", job, account="eve", code=None)
    container.run("systemctl", "restart", "metasched", "metasched-launcher")
    until(container, lambda: row(container, job)["state"] == "running", "the job, seen again")
    (container.folder / "home/ada/go").touch()
    until(container, lambda: row(container, job)["state"] == "completed", "the end")

    # after a reboot the site serves again
    container.reboot()
    until(container, lambda: unit(container, "metasched", "ActiveState") == "active", "the daemon")
    assert (container.run("stat", "-c", "%a %U", "/run/metasched").strip()) == "755 metasched"
    assert row(container, job)["state"] == "completed"
    last = submit(container, "true")
    until(container, lambda: row(container, last)["state"] == "completed", "a job after the boot")
    assert "nothing to change" in container.run("metasched", "init", "site", "--yes")


def test_the_archive_installs_without_network_and_names_no_host(tmp_path: Path) -> None:
    if (reason := missing(os.environ.get("METASCHED_CONTAINER", ""))) is not None:
        require("systemd", reason)
    subprocess.run(["tar", "-xf", os.environ["METASCHED_DIST"], "-C", tmp_path], check=True)
    (folder,) = tmp_path.iterdir()
    texts = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".whl"]
    assert {path.name for path in texts} >= {"install", "SHA256SUMS", "metasched.service"}
    for path in texts:
        # the addresses of a licence, of documents, and of this host are none of an index
        hosts = set(re.findall(r"https?://([^/\s\"':)]+)", path.read_text()))
        assert not [host for host in hosts if re.search("pypi|pythonhosted|index|mirror", host)]
    target = tmp_path / "target"
    install: list[str | Path] = ["unshare", "--net", folder / "install", target]
    subprocess.run(install, check=True, capture_output=True)
    version = subprocess.run(
        [target / "bin/metasched", "--version"], check=True, capture_output=True, text=True
    )
    assert version.stdout.split()[1] == folder.name.split("-")[1]

    (folder / "units/metasched.service").write_text("[Service]\nUser=root\n")
    damaged = subprocess.run(install, check=False, capture_output=True, text=True)
    assert damaged.returncode == 1
    assert "the archive is damaged; fetch it again" in damaged.stderr
