"""Mistakes of users and admins: each gives a one-line error and changes nothing."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from metasched.cli import main
from metasched.db.schema import REVISION
from tests.e2e.conftest import TWO_LOCAL, Site


def unchanged(site: Site) -> None:
    assert site.rows() == []


@pytest.fixture
def refusal(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], str]:
    """Return a function that runs `serve --check` and returns its one-line error.

    The command runs in this process, since starting a process takes longer than the check.
    """
    monkeypatch.setenv("METASCHED_CONFIG", str(site.config))
    monkeypatch.chdir(site.folder)
    monkeypatch.setattr(sys, "argv", ["metasched", "serve", "--check"])

    def refused() -> str:
        assert main() == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("metasched: error: "), captured
        assert captured.err.count("\n") == 1, captured
        return captured.err

    return refused


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["submit", "--nodez", "1", "job.sh"], 2, "--nodes"),
        (["submit"], 2, "no script"),
        (["submit", "absent.sh"], 2, "No such file"),
        (["submit", "."], 2, "directory"),
        (["submit", "empty.sh"], 2, "empty"),
        (["submit", "binary.sh"], 2, "binary"),
        (["submit", "bare.sh"], 2, "#!"),
        (["submit", "-n", "0", "--wrap", "true"], 2, "0"),
        (["submit", "-n", "-3", "--wrap", "true"], 2, "-3"),
        (["submit", "-n", "99999999999", "--wrap", "true"], 2, "99999999999"),
        (["submit", "-n", "many", "--wrap", "true"], 2, "many"),
        (["submit", "-n", "9", "--wrap", "true"], 3, "the largest is left with 8"),
        (["submit", "-t", "soon", "--wrap", "true"], 2, "soon"),
        (["submit", "--urgency", "4", "--wrap", "true"], 2, "0, 1, 2 or 3"),
        (["submit", "--deadline=-1h", "--wrap", "true"], 2, "-1h"),
        (["submit", "--cluster", "lefd", "--wrap", "true"], 3, "lefd"),
        (["submit", "--cluster", "", "--wrap", "true"], 2, "an empty word, --cluster"),
        (["submit", "--cluster", "left,", "--wrap", "true"], 2, 'empty name in "left,", --cl'),
        (["reserve", "--cluster", "", "-n", "1", "--duration", "1h"], 2, "an empty name in"),
        (["modify", "1", "--cluster", "left,,right"], 2, "write NAME or NAME,NAME"),
        (["status", "--user", ""], 2, "an empty word, --user; leave it out"),
        (["cancel", "1", "--user", ""], 2, "an empty word, --user"),
        (["cancel", "1", "--state", ""], 2, "an empty word, --state"),
        (["reserve", "-n", "1", "--duration", "1h", "--mail", ""], 2, "an empty word, --mail"),
        (["cluster", "drain", ""], 2, "an empty word, NAME"),
        (["submit", "--array", "1-", "--wrap", "true"], 2, "--array"),
        (["submit", "--array", "1-100001", "--wrap", "true"], 3, "the site allows 100000"),
        (["submit", "--dependency", "afterok", "--wrap", "true"], 2, "--dependency"),
        (["submit", "--dependency", "afterok:99", "--wrap", "true"], 5, "no job 99 of yours"),
        (["submit", "--licence", "matlab:", "--wrap", "true"], 2, "write NAME or NAME:N"),
        (["submit", "--licence", "matlab:1", "--wrap", "true"], 3, "no licence 'matlab' is known"),
        (["licence", "set", "matlab", "1"], 5, "no licence 'matlab' is known; known are: none"),
        (["licence", "set", "matlab", "x"], 2, "or `configured`"),
        (["licence", "release", "99"], 5, "no job 99"),
        (["submit", "--reservation", "1", "--wrap", "true"], 5, "no reservation 1"),
        (["reserve", "-n", "9999", "--duration", "1h"], 3, "no cluster has 9999 processors"),
        (["submit", "-J", "two\nlines", "--wrap", "true"], 2, "control"),
        (["submit", "-J", "x" * 10_000, "--wrap", "true"], 2, "255"),
        (["submit", "--partition", "week", "--wrap", "true"], 3, "week"),
        (["submit", "--account", "aero", "--wrap", "true"], 3, "aero"),
        (["submit", "--native", "left:'unclosed", "--wrap", "true"], 2, "quot"),
        (["submit", "--native", "nope:-x", "--wrap", "true"], 2, "nope"),
        (["submit", "-D", "/nowhere", "--wrap", "true"], 2, "/nowhere"),
        (["submit", "--mem", "lots", "--wrap", "true"], 2, "lots"),
        (["submit", "--gres", "gpu:1", "--wrap", "true"], 3, "gres"),
        (
            ["submit", "-o", "missing/%j", "--wrap", "true"],
            2,
            'no directory of "missing/%j", --output; create its directory',
        ),
        (["status", "12"], 5, "no job 12"),
        (["status", "x"], 2, "x"),
        (["cancel", "7"], 5, "no job 7"),
        (["cancel"], 2, "cancel"),
        (["wait", "99"], 5, "99"),
        (["story", "99999999999999999999"], 2, "99999999999999999999"),
        (["output", "1"], 5, "no job 1"),
        (["explain", "17_"], 2, "17_"),
        (["status", "--state", "runing"], 2, "runing"),
        (["statsu"], 2, "status"),
    ],
)
def test_one_line_and_nothing_changed(
    shared: Site, arguments: list[str], code: int, message: str
) -> None:
    (shared.folder / "empty.sh").touch()
    (shared.folder / "binary.sh").write_bytes(b"\x7fELF\x00\x00")
    (shared.folder / "bare.sh").write_text("echo no interpreter\n")
    assert message in shared.error(*arguments, code=code)
    unchanged(shared)


def test_a_script_that_cannot_be_read(shared: Site) -> None:
    closed = shared.folder / "closed.sh"
    closed.write_text("#!/bin/sh\n")
    closed.chmod(0)
    if os.access(closed, os.R_OK):
        pytest.skip("root may read anything")
    assert "Permission denied" in shared.error("submit", closed, code=2)
    unchanged(shared)


def test_a_deadline_that_has_passed_is_a_warning_or_with_strict_an_error(running: Site) -> None:
    past = ["--deadline", "2020-01-01T00:00:00", "--wrap", "true"]
    assert "passed" in running.error("submit", "--strict", *past, code=2)
    unchanged(running)
    done = running.run("submit", *past)
    assert done.stderr.startswith("metasched: warning: ")
    assert "passed" in done.stderr
    assert running.until_ended()[0]["state"] == "completed"


def test_names_that_are_strange_but_harmless(running: Site) -> None:
    for name in ('it\'s "quoted"', "naïve ☃ 名前", "--help", "$(reboot); `x`", "%j"):
        job = running.submit(f"--name={name}", "--wrap", "true")
        assert running.until_ended(job)[0]["name"] == name


def test_a_daemon_that_is_not_running(site: Site) -> None:
    for arguments in (["status"], ["submit", "--wrap", "true"], ["clusters"]):
        message = site.error(*arguments, code=4)
        assert "metasched serve" in message


def test_two_daemons_on_one_database(running: Site) -> None:
    message = running.error("serve", code=1)
    assert f"process {running.pid}" in message
    assert "--standby" in message
    assert running.json("clusters")


def test_two_daemons_on_one_database_by_two_names(running: Site) -> None:
    (running.folder / "link").symlink_to(running.folder)
    other = running.folder / "other.toml"
    other.write_text(
        f'[daemon]\ndatabase = "sqlite:///{running.folder}/link/metasched.db"\n'
        f'socket = "other.sock"\n{TWO_LOCAL}'
    )
    assert "another daemon" in running.error("serve", "-c", other, code=1)


def test_a_socket_that_is_left_over_is_replaced_and_a_file_is_not(site: Site) -> None:
    socket_path = site.folder / "ms.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path))
    site.start()
    assert site.stop() == 0
    assert not socket_path.exists()
    socket_path.write_text("precious")
    assert "no socket" in site.error("serve", code=2)
    assert socket_path.read_text() == "precious"


@pytest.mark.slow("starts a daemon, and sixteen commands that load all of its code")
def test_databases_that_cannot_be_used(site: Site) -> None:
    site.database.write_bytes(b"this is a letter, not a database\n" * 300)
    assert "restore a backup" in site.error("serve", code=1)
    site.database.unlink()
    site.start()
    site.stop()
    for statement, expected in (
        ("UPDATE alembic_version SET version_num = '0043'", "schema 0043 of a metasched before"),
        ("UPDATE alembic_version SET version_num = 's9999'", "schema s9999, newer than"),
        (
            f"DROP TABLE outbox; UPDATE alembic_version SET version_num = '{REVISION}'",
            "without outbox",
        ),
        ("DELETE FROM alembic_version", "has 0 schema revisions: a migration"),
    ):
        with closing(sqlite3.connect(site.database)) as other:
            other.executescript(statement)
            before = list(other.iterdump())
        for command in (
            ("serve",),
            ("db", "upgrade"),
            ("db", "downgrade", "--to", "s0001", "--yes"),
            ("db", "check"),
        ):
            assert expected in site.error(*command, code=1)
        with closing(sqlite3.connect(site.database)) as other:
            assert list(other.iterdump()) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[daemon\n", "TOML"),
        ("", "[[cluster]]"),
        ('[cluster]\nname = "a"\nadapter = "local"\ncpus = 1\n', "[[cluster]]"),
        ('[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\nfilesystems = "home"\n', "list"),
        ('[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\nbenchmark = inf\n', "benchmark"),
        ('[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\nkill_wait = -1\n', "kill_wait is"),
        ("[deamon]\n" + TWO_LOCAL, "write [daemon]"),
        ('[[cluster]]\nname = "a"\nadapter = "locl"\ncpus = 1\n', 'write "local"'),
        ('[[cluster]]\nname = "a"\nadapter = "local"\ncups = 1\n', 'write "cpus"'),
        ('[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 0\n', "cpus"),
        ('[[cluster]]\nname = "a"\nadapter = "local"\ncpus = "four"\n', "cpus"),
        ('[[cluster]]\nname = "a"\nadapter = "local"\n', '"cpus"'),
        ('[[cluster]]\nname = "a b"\nadapter = "local"\ncpus = 1\n', "name"),
        ('[[cluster]]\nname = "a"\nadapter = "slurm"\nacess = "auto"\nconfig = "/x"\n', "access"),
        (TWO_LOCAL + TWO_LOCAL, "twice"),
        ('[policy]\nfile = "absent.toml"\n' + TWO_LOCAL, "absent.toml"),
        ('[daemon]\ndatabase = "mysql://x/y"\n' + TWO_LOCAL, "sqlite:////"),
        ('[[user_class]]\nname = "platinum"\n' + TWO_LOCAL, "platinum"),
        ('[[licence]]\nname = "matlab"\ntotal = -4\n' + TWO_LOCAL, 'licence "matlab"'),
        ('[[licence]]\nname = "mat lab"\ntotal = 4\n' + TWO_LOCAL, "is no name"),
        ('[[licence]]\nname = "matlab"\n' + TWO_LOCAL, "neither a total nor a server"),
        ('[[licence]]\nname = "matlab"\ntotl = 4\n' + TWO_LOCAL, 'write "total"'),
        ('[[licence]]\nname = "matlab"\nserver = "m"\n' + TWO_LOCAL, 'no licence_server "m"'),
        (2 * '[[licence]]\nname = "matlab"\ntotal = 4\n' + TWO_LOCAL, "there twice"),
        (
            '[[licence]]\nname = "m"\ntotal = 4\nclusters = ["lefd"]\n' + TWO_LOCAL,
            'write "left"',
        ),
        (
            '[[licence]]\nname = "m"\ntotal = 4\nmachines = { lefd = "cad" }\n' + TWO_LOCAL,
            'write "left"',
        ),
        (
            '[[licence]]\nname = "m"\ntotal = 4\nmachines = { left = "a b" }\n' + TWO_LOCAL,
            "write the feature of those machines",
        ),
        (
            '[[licence]]\nname = "m"\ntotal = 4\nclusters = ["left"]\n'
            'machines = { right = "cad" }\n' + TWO_LOCAL,
            "add it to its clusters",
        ),
    ],
)
def test_configurations_that_cannot_be_used(
    site: Site, refusal: Callable[[], str], text: str, message: str
) -> None:
    site.config.write_text(text)
    line = refusal()
    assert message in line
    assert str(site.config) in line or "database" in line or "absent" in line
    assert not site.database.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('load = "obseved"\n', "observed"),
        ("agee = 3\n", 'write "age"'),
        ("[weights]\ndedline = 2\n", 'write "deadline"'),
        ("tolerance = -1\n", "tolerance"),
        ("age = inf\n", "age"),
        ("window = 5000\n", "window"),
        ("classes = { regular = -1 }\n", "regular"),
        ('age = "four hours"\n', "four hours"),
        ("weights = { deadline = 0, licence = 0, user = 0 }\n", "weight"),
    ],
)
def test_policies_that_cannot_be_used(
    site: Site, refusal: Callable[[], str], text: str, message: str
) -> None:
    site.configure(extra='[policy]\nfile = "policy.toml"\n')
    (site.folder / "policy.toml").write_text(text)
    line = refusal()
    assert message in line
    assert "policy.toml" in line


def test_a_configuration_that_cannot_be_read(site: Site, tmp_path: Path) -> None:
    site.config.unlink()
    assert str(site.config) in site.error("serve", code=2)
    site.config.mkdir()
    assert str(site.config) in site.error("serve", code=2)
