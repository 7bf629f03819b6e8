"""`metasched doctor` on a healthy site, and on sites with one problem each."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from tests.conftest import require
from tests.e2e.conftest import COMMAND, FOLDER, ONE_LOCAL, TWO_LOCAL, Site
from tests.harness import fake_clock, gridengine
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmSite

NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="no mode of a file keeps root out")
SLEEP = ["sleep", "4711"]
BEHIND = "import time\ntrue_time = time.time\ntime.time = lambda: true_time() - 100\n"


def sleepers() -> list[psutil.Process]:
    """Return the programs that hang."""
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == SLEEP]


def findings(site: Site, code: int) -> dict[str, dict[str, Any]]:
    return {f["check"]: f for f in json.loads(site.run("doctor", "--json", code=code).stdout)}


def patient_findings(
    site: Site, code: int, env: dict[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the findings by check; a manager may be slow beside other tests."""
    done = site.run("doctor", "--json", "--timeout", "60", code=code, env=env)
    return {finding["check"]: finding for finding in json.loads(done.stdout)}


@contextmanager
def hanging(process: int) -> Iterator[None]:
    """Stop a process for the time of the block."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def dead(site: Site, cluster: str) -> float:
    """Assert that doctor with its own time limit reports a cluster as dead; return its seconds."""
    begun = time.monotonic()
    row = findings(site, 1)[f"manager of {cluster}"]
    seconds = time.monotonic() - begun
    # on a busy host the limit of all checks may come before that of one
    assert row["id"] in ("cluster-unreachable", "check-timeout"), row
    return seconds


def test_a_healthy_site_then_one_problem_after_the_other(running: Site) -> None:
    job = running.submit("--wrap", "sleep 300", "--cluster", "right")
    running.until(lambda: running.row(job)["state"] == "running")
    checks = findings(running, 0)
    assert {"configuration", "filesystem", "database", "daemon", "cluster left"} <= set(checks)
    assert checks["clock of right"]["ok"]
    listener = checks[f"listener {running.folder / 'ms.sock'}"]["text"]
    assert "of 1024 connections, 0 of 512 wait for jobs; refused since the start: none" in listener
    assert checks["file descriptors"]["ok"]
    running.stop()
    check = findings(running, 1)["daemon"]
    assert "no daemon answers" in check["text"]
    assert "metasched serve" in check["mend"]

    whole = running.config.read_text()
    running.configure(TWO_LOCAL.partition('\n[[cluster]]\nname = "right"')[0])
    with sqlite3.connect(running.database) as other:
        other.execute("UPDATE attempt SET started = started - 100")
    other.close()
    running.start()
    checks = findings(running, 1)
    assert not checks[f"job {job}"]["ok"]
    assert f"metasched resolve {job} lost" in checks[f"job {job}"]["mend"]
    clock = checks["clock of right"]
    assert not clock["ok"]
    assert "s behind this host's" in clock["text"]
    assert "resolve" in running.run("doctor", code=1).stdout
    running.stop()

    running.config.write_text(whole.replace("cpus = 8", "cups = 8"))
    wrong = findings(running, 1)
    assert list(wrong) == ["configuration"]
    assert 'write "cpus"' in wrong["configuration"]["mend"]
    running.config.write_text(whole)
    running.start()
    running.run("cancel", str(job))
    running.until_ended(job)


@NOT_ROOT
def test_permissions_have_findings_of_their_own(running: Site) -> None:
    """The remedy for a permission is no backup."""
    assert findings(running, 0)["daemon's file"]["text"].endswith("as the daemon has read it")
    running.database.chmod(0o666)
    row = findings(running, 1)["database file"]
    assert (row["id"], row["severity"]) == ("database-mode", "error")
    assert row["mend"] == f"chmod 600 {running.database}"
    running.database.chmod(0o600)
    running.config.chmod(0o666)
    assert findings(running, 1)["configuration file"]["id"] == "config-writable"
    running.config.chmod(0o644)
    running.stop()
    running.database.chmod(0)
    state = running.folder / FOLDER
    state.chmod(0)
    try:
        rows = findings(running, 1)
    finally:
        state.chmod(0o700)
        running.database.chmod(0o600)
    me = getpass.getuser()
    assert rows["database"]["id"] == "database-unreadable"
    assert rows["database"]["mend"] == f"sudo -u {me} metasched doctor"
    assert "backup" not in json.dumps(rows)
    assert rows["state folder"]["id"] == "folder-unreadable"
    running.start()


def test_names_that_nobody_has_are_warnings(site: Site) -> None:
    site.configure(
        extra='[policy]\nfile = "policy.toml"\n'
        '[[user_class]]\nname = "gold"\nusers = ["nobody-here"]\ngroups = ["no-such-group"]\n'
    )
    (site.folder / "policy.toml").write_text("[classes]\ngold = 7\nregular = 1\n")
    rows = findings(site, 1)  # no daemon
    assert rows["user nobody-here"]["severity"] == "warning"
    assert rows["user nobody-here"]["text"] == 'no user nobody-here, user_class "gold"'
    assert rows["group no-such-group"]["id"] == "group-unknown"
    assert {row["id"] for row in rows.values() if row["severity"] == "error"} == {
        "daemon-unreachable",
        "database-unusable",
    }


@NOT_ROOT
def test_a_folder_of_the_socket_that_a_reboot_removed(site: Site) -> None:
    closed = site.folder / "run"
    closed.mkdir(mode=0o555)
    site.configure()
    site.config.write_text(site.config.read_text().replace("ms.sock", "run/metasched/ms.sock"))
    row = findings(site, 1)["socket"]
    assert row["id"] == "socket-folder-missing"
    assert row["mend"].startswith(f"install -d -o {getpass.getuser()} -m 755 {closed}/metasched")
    error = site.error("serve", code=2)
    assert error.startswith(f"no folder {closed}/metasched, and this account cannot create it; ")
    assert "install -d" in error


def test_a_dead_cluster_delays_no_other_answer(site: Site) -> None:
    """Its commands hang; doctor reports all else in time, and leaves no process behind."""
    program = site.folder / "squeue"
    program.write_text("#!/bin/sh\nexec sleep 4711\n")
    program.chmod(0o755)
    site.configure(
        f'[[cluster]]\nname = "dead"\nadapter = "slurm"\nconfig = "{site.folder}/none.conf"\n'
        f'bin_dir = "{site.folder}"\naccess = "commands"\n{ONE_LOCAL}'
    )
    rows = findings(site, 1)
    assert rows["manager of dead"]["id"] == "cluster-unreachable"
    assert "squeue: no answer within" in rows["manager of dead"]["text"]
    assert rows["manager of here"]["severity"] == "ok"
    assert rows["manager of here"]["text"] == "4 usable processors"
    site.until(lambda: not sleepers())


def test_all_that_is_dead_at_once_is_asked_at_the_same_time(site: Site) -> None:
    """A Slurm, a Grid Engine, a PostgreSQL and a licence server hang; they share one time limit."""
    for name in ("squeue", "python", "lmutil"):
        (site.folder / name).write_text(f"#!/bin/sh\nexec {' '.join(SLEEP)}\n")
        (site.folder / name).chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        site.url = f"postgresql://nobody@127.0.0.1:{mute.getsockname()[1]}/none"
        site.configure(
            f'[[cluster]]\nname = "slurm"\nadapter = "slurm"\nconfig = "{site.folder}/none.conf"\n'
            f'bin_dir = "{site.folder}"\naccess = "commands"\n'
            # a library of DRMAA that hangs takes its interpreter along
            f'[[cluster]]\nname = "grid"\nadapter = "drmaa"\nlibrary = "{site.folder}/none.so"\n'
            f'python = "{site.folder}/python"\n{ONE_LOCAL}'
            f'[[licence_server]]\nname = "lic"\nkind = "flexlm"\nservers = "27000@lic"\n'
            f'lmutil = "{site.folder}/lmutil"\n'
            '[[licence]]\nname = "matlab"\nserver = "lic"\n'
        )
        command = [str(COMMAND), "doctor", "--json", "--timeout", "8"]
        with subprocess.Popen(command, env=site.environment, stdout=subprocess.PIPE) as doctor:
            mute.settimeout(60)
            with mute.accept()[0]:
                site.until(lambda: len(sleepers()) == 3)  # all hang beside each other
                assert doctor.poll() is None
                output, _ = doctor.communicate(timeout=120)
    rows = {row["check"]: row for row in json.loads(output)}
    dead = {
        "database": "database-unusable",
        "manager of slurm": "cluster-unreachable",
        "manager of grid": "cluster-unreachable",
        "query of lic": "licence-server-unreachable",
    }
    # on a busy host the limit of all checks may come before that of one
    assert all(rows[name]["id"] in (id, "check-timeout") for name, id in dead.items()), rows
    assert rows["manager of here"]["severity"] == "ok"
    site.until(lambda: not sleepers())


def test_a_worker_that_cannot_run_this_release(site: Site) -> None:
    site.configure(ONE_LOCAL + 'python = "/bin/true"\n')
    row = findings(site, 1)["manager of here"]
    assert row["id"] == "cluster-worker"
    assert row["mend"].startswith("install metasched ")
    assert row["mend"].endswith("for /bin/true")


def test_a_changed_file_and_another_file(running: Site) -> None:
    running.config.write_text(running.config.read_text() + "# changed\n")
    row = findings(running, 0)["daemon's file"]
    assert (row["id"], row["severity"], row["mend"]) == (
        "daemon-changed-file",
        "note",
        "metasched reload",
    )
    other = running.folder / "other.toml"
    other.write_text(running.config.read_text())
    rows = json.loads(running.run("doctor", "--json", "-c", other).stdout)
    [row] = [row for row in rows if row["check"] == "daemon's file"]
    assert row["id"] == "daemon-other-file"
    assert row["mend"] == f"metasched doctor --config {running.config}"


def test_a_cluster_that_does_not_answer(site: Site) -> None:
    missing = site.folder / "none.conf"
    site.configure(
        f'[[cluster]]\nname = "alpha"\nadapter = "slurm"\nconfig = "{missing}"\n'
        f'bin_dir = "{site.folder}"\naccess = "commands"\npoll_interval = 0.2\n'
    )
    site.start("down:")
    site.until(lambda: "squeue" in findings(site, 1)["cluster alpha"]["text"])
    check = findings(site, 1)["cluster alpha"]
    assert "next try" in check["text"]
    assert check["mend"]


def test_a_slurm_without_a_usable_node(site: Site, slurm_site: SlurmSite) -> None:
    beta = slurm_site["beta"]
    beta.empty()
    site.configure(beta.table("poll_interval = 1\n"))
    site.start()
    assert patient_findings(site, 0)["manager of beta"]["severity"] == "ok"
    beta.run("scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=test")
    try:
        assert patient_findings(site, 1)["manager of beta"]["id"] == "cluster-no-node"
    finally:
        beta.run("scontrol", "update", "NodeName=ALL", "State=RESUME")
        # a controller that is killed within seconds would forget it: one that stops saves its state
        beta.stop_controller()
        beta.start_controller()


def clock_finding(
    site: Site, cluster: str, env: dict[str, str] | None = None
) -> tuple[str, str, int]:
    """Return id, severity and seconds of the finding on a controller whose clock is ahead."""
    finding = patient_findings(site, 1, env)[f"controller of {cluster}"]
    text_words = finding["text"].split()
    assert text_words[4:] == ["s", "ahead", "of", "this", "host"]
    return finding["id"], finding["severity"], int(text_words[3])


@pytest.mark.slow("doctor waits twice until its time limit; a controller is started twice")
def test_a_slurm_whose_controller_hangs_dies_or_has_another_clock(
    site: Site, slurm_site: SlurmSite, record_property: Callable[[str, object], None]
) -> None:
    if reason := fake_clock.missing():
        require("faketime", reason)
    beta = slurm_site["beta"]
    site.configure(beta.table())
    with hanging(beta.controller):
        record_property("seconds of doctor beside a slurmctld that hangs", dead(site, "beta"))
    beta.kill_controller()
    try:
        record_property("seconds of doctor beside a killed slurmctld", dead(site, "beta"))
        beta.start_controller(clock="+100s")
        id, severity, seconds = clock_finding(site, "beta")
        beta.stop_controller()
    finally:
        beta.start_controller()
    assert (id, severity) == ("clock-differs", "error")
    assert 90 < seconds < 110


@pytest.mark.slow("boots a cell; doctor waits twice for an answer until its time limit")
def test_a_cell_whose_qmaster_hangs_dies_or_has_another_clock_than_doctor(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    """Use a separate cell: execd may delay reports of ended jobs for minutes after a restart."""
    if reason := gridengine.missing():
        require("gridengine", reason)
    with Cell(site.folder / "cell") as cell:
        site.configure(cell.table(cell.python(site.folder / "python")))
        rows = patient_findings(site, 1)  # no daemon
        assert rows["manager of cell"]["severity"] == "ok"
        assert "controller of cell" not in rows
        with hanging(cell.qmaster):
            record_property("seconds of doctor beside a qmaster that hangs", dead(site, "cell"))
        cell.kill_qmaster()
        record_property("seconds of doctor beside a killed qmaster", dead(site, "cell"))
        cell.start_qmaster()
        # libfaketime runs neither in a qmaster nor beside the library: doctor's own clock is behind
        (site.folder / "sitecustomize.py").write_text(BEHIND)
        id, severity, seconds = clock_finding(site, "cell", {"PYTHONPATH": str(site.folder)})
    assert (id, severity) == ("clock-differs", "error")
    assert 90 < seconds < 110
