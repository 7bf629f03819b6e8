"""Licence queries in processes. `lmutil` is a script here, since the program is proprietary.

The tests cover all code that needs no FlexLM server.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from metasched.config.reading import load_settings
from metasched.config.settings import ConfigError
from metasched.licence_servers.base import Feature, LicenceServerError, LicenceUse, UsageReport
from metasched.licence_servers.process import ServerQuery, query_server

ANSWER = """\
Flexible License Manager status on Tue 3/10/2026 09:29
License server status: 27000@lic1
lic1: license server UP (MASTER) v11.19.0
Vendor daemon status (on lic1):
  orbitd: UP v11.19.0
Feature usage info:
Users of solver:  (Total of 12 licenses issued;  Total of 1 license in use)
  "solver" v2026.1, vendor: orbitd, expiry: permanent(no expiration date)
    ada n1 /dev/pts/3 (v2026.1) (lic1/27000 101), start Tue 3/10/2026 8:15
Users of other: Cannot get users of other: No such feature exists. (-5,222)
"""
CLUSTER = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 1\n'


def script(folder: Path, body: str) -> Path:
    """Write an `lmutil` that runs `body`."""
    path = folder / "lmutil"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def flexlm(folder: Path, body: str, timeout: float = 60.0) -> ServerQuery:
    options = {"servers": "27000@lic1", "lmutil": str(script(folder, body))}
    return ServerQuery("flexlm", options, timeout)


def asked(question: ServerQuery) -> UsageReport:
    return asyncio.run(query_server(question))


def printing(folder: Path, text: str) -> str:
    (folder / "answer").write_text(text)
    return f"cat {folder}/answer"


def test_lmstat_runs_in_utc_and_english(tmp_path: Path) -> None:
    body = f'echo "$TZ $LC_ALL $*" > {tmp_path}/said\n{printing(tmp_path, ANSWER)}'
    report = asked(flexlm(tmp_path, body))
    assert (tmp_path / "said").read_text() == "UTC C lmstat -a -c 27000@lic1\n"
    since = 1773130500.0
    assert report.features == (Feature("solver", 12, 1, (LicenceUse("ada", "n1", 1, since),)),)
    assert [str(trouble) for trouble in report.troubles] == [
        "line 10: feature 'other': Cannot get users of other: No such feature exists. (-5,222)"
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yes 'Users of x: ' | head -c 20000000", "more than 8 MiB"),
        ("kill -9 $$", "lmutil was killed by signal 9"),
        ("exit 3", "not the output of lmstat"),
        ("echo no such host >&2; exit 1", "not the output of lmstat"),
    ],
)
def test_invalid_output(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(LicenceServerError, match=message):
        asked(flexlm(tmp_path, body))


def test_missing_lmutil(tmp_path: Path) -> None:
    options = {"servers": "27000@lic1", "lmutil": str(tmp_path / "absent")}
    with pytest.raises(LicenceServerError, match="No such file"):
        asked(ServerQuery("flexlm", options, 60.0))


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def until_gone(file: Path) -> None:
    """Wait until the process whose id is in the file has ended."""
    pid = int(file.read_text())
    deadline = time.monotonic() + 30
    while not gone(pid):
        assert time.monotonic() < deadline, pid
        time.sleep(0.02)


def test_a_hanging_query_is_killed_with_its_children(tmp_path: Path) -> None:
    body = f"sleep 1000 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/self; wait"
    with pytest.raises(LicenceServerError, match="no answer within 3 s"):
        asked(flexlm(tmp_path, body, timeout=3.0))
    until_gone(tmp_path / "self")
    until_gone(tmp_path / "child")


def test_background_processes_are_ended(tmp_path: Path) -> None:
    body = f"sleep 1000 >/dev/null 2>&1 & echo $! > {tmp_path}/child\n"
    asked(flexlm(tmp_path, body + printing(tmp_path, ANSWER)))
    until_gone(tmp_path / "child")


PLUGIN = """
import os, time
from dataclasses import dataclass
from metasched.licence_servers.base import Feature, LicenceServer, LicenceServerError, UsageReport

@dataclass(frozen=True)
class Options:
    mood: str = "well"

class Mine(LicenceServer):
    Options = Options

    def query(self):
        print("a stray print")
        match self.options.mood:
            case "hangs":
                with open(os.environ["SAID"], "w") as file:
                    file.write(str(os.getpid()))
                while True:
                    time.sleep(1000)
            case "dies":
                os._exit(7)
            case "garbage" | "half" | "nonsense" | "deep":
                from metasched.processes.frames import framed

                written = {
                    "garbage": b"[" * 99,
                    "half": bytes(3),
                    "nonsense": framed(b"nonsense"),
                    "deep": framed(b'{"x":' + b"[" * 50_000),
                }[self.options.mood]
                for descriptor in range(3, 20):
                    try:
                        os.write(descriptor, written)
                    except OSError:
                        pass
                os._exit(0)
            case "defect":
                return 1 / 0
            case "refuses":
                raise LicenceServerError("not\\ntoday")
        return "4 1"

    @staticmethod
    def parse(output, now):
        total, used = output.split()
        return UsageReport((Feature("mine", int(total), int(used)),))
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with a licence server plugin."""
    (tmp_path / "their_probe.py").write_text(PLUGIN)
    info = tmp_path / "their_probe-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-probe\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[metasched.licence_servers]\nmine = their_probe:Mine\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    return tmp_path


def test_a_plugin_is_queried(plugin: Path) -> None:
    assert asked(ServerQuery("mine", {}, 60.0)) == UsageReport((Feature("mine", 4, 1),))
    stored = asked(ServerQuery("mine", {"mood": "hangs"}, 60.0, output="9 8"))
    assert stored == UsageReport((Feature("mine", 9, 8),))


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (ServerQuery("mine", {"mood": "dies"}, 60.0), "the probe died with exit code 7"),
        (ServerQuery("mine", {"mood": "garbage"}, 60.0), "an answer of more than 64 MiB"),
        (ServerQuery("mine", {"mood": "nonsense"}, 60.0), "the probe sent an invalid result"),
        (ServerQuery("mine", {"mood": "deep"}, 60.0), "the probe sent an invalid result"),
        (ServerQuery("mine", {"mood": "half"}, 60.0), "the probe died with exit code 0"),
        (ServerQuery("mine", {"mood": "defect"}, 60.0), "a defect of the probe: ZeroDivisionError"),
        (ServerQuery("mine", {"mood": "refuses"}, 60.0), "^not today$"),
        (ServerQuery("mine", {}, 60.0, output="four"), "a defect of the probe: ValueError"),
        (ServerQuery("yours", {}, 60.0), "no kind of licence server 'yours'"),
    ],
)
def test_a_failing_plugin(plugin: Path, question: ServerQuery, message: str) -> None:
    with pytest.raises(LicenceServerError, match=message):
        asked(question)


def test_a_plugin_that_hangs_is_killed(plugin: Path) -> None:
    async def hangs() -> UsageReport:
        return await query_server(ServerQuery("mine", {"mood": "hangs"}, 2.0), grace=0.0)

    while not (plugin / "said").exists():  # a busy host may need longer to start it
        with pytest.raises(LicenceServerError, match="no answer within 2 s"):
            asyncio.run(hangs())
    until_gone(plugin / "said")


def command(
    *arguments: str, code: int = 0, text: str = "", cwd: Path
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [Path(sys.executable).parent / "metasched", "licence", "probe", *arguments],
        input=text,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
    )
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    return done


def test_the_command_parses_stored_output_without_a_configuration(tmp_path: Path) -> None:
    (output,) = json.loads(command("--from", "-", "--json", text=ANSWER, cwd=tmp_path).stdout)
    assert output["observed"] == "2026-03-10T09:29:00+00:00"
    (feature,) = output["features"]
    assert (feature["name"], feature["issued"], feature["used"]) == ("solver", 12, 1)
    assert feature["uses"][0]["since"] == "2026-03-10T08:15:00+00:00"
    shown = command("--from", "-", text=ANSWER, cwd=tmp_path).stdout
    assert "not understood: line 10" in shown
    assert "garbage" not in shown
    shown = command("--from", "-", text="x", code=1, cwd=tmp_path).stdout
    assert "not the output of lmstat" in shown
    (tmp_path / "a.json").write_text('{"licences": [{"name": "a", "total": null, "used": 0}]}')
    assert "uncounted" in command("--from", "a.json", "--kind", "command", cwd=tmp_path).stdout


def configured(folder: Path, servers: str) -> Path:
    path = folder / "metasched.toml"
    path.write_text(CLUSTER + servers)
    return path


def test_the_command_queries_configured_servers(tmp_path: Path) -> None:
    lmutil = script(tmp_path, printing(tmp_path, ANSWER))
    path = configured(
        tmp_path,
        f"""
[[licence_server]]
name = "main"
kind = "flexlm"
servers = "27000@lic1"
lmutil = "{lmutil}"
[[licence_server]]
name = "second"
kind = "command"
command = ["/bin/false"]
""",
    )
    done = command("--json", "-c", str(path), code=1, cwd=tmp_path)
    main, second = json.loads(done.stdout)
    assert (main["server"], main["error"], len(main["features"])) == ("main", "", 1)
    assert second["error"] == "/bin/false ended with 1: no explanation"
    assert "solver" in command("main", "-c", str(path), cwd=tmp_path).stdout
    message = command("mian", "-c", str(path), code=2, cwd=tmp_path).stderr
    assert 'no licence_server "mian"' in message
    assert "main, second" in message


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('kind = "flexlm"\nservers = "1@a"\n', 'no key "name"'),
        ('name = "a"\nkind = "flexml"\n', 'write "flexlm"'),
        ('name = "a"\nkind = "flexlm"\n', 'no key "servers", '),
        ('name = "a"\nkind = "flexlm"\nserver = "1@a"\n', 'write "servers"'),
        ('name = "a"\nkind = "flexlm"\nservers = ""\n', 'write "port@host"'),
        ('name = "a"\nkind = "flexlm"\nservers = "1@a"\ninterval = "0.1s"\n', "interval"),
        ('name = "a"\nkind = "flexlm"\nservers = "1@a"\ntimeout = 0\n', "timeout"),
        ('name = "a"\nkind = "flexlm"\nservers = "1@a"\nfeatures = 3\n', "features"),
        ('name = "a"\nkind = "command"\ncommand = "x"\n', "command"),
        ('name = "a"\nkind = "command"\ncommand = ["x"]\n', "absolute path"),
        (
            'name = "a"\nkind = "flexlm"\nservers = "1@a"\n'
            '[[licence_server]]\nname = "a"\nkind = "flexlm"\nservers = "1@a"\n',
            "there twice",
        ),
    ],
)
def test_an_invalid_server_configuration(tmp_path: Path, table: str, message: str) -> None:
    path = configured(tmp_path, f"[[licence_server]]\n{table}")
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "; " in str(caught.value)


def test_a_valid_server_configuration(tmp_path: Path) -> None:
    path = configured(
        tmp_path,
        '[[licence_server]]\nname = "a"\nkind = "command"\ncommand = ["/x", "y"]\n'
        'interval = "1m"\nfeatures = { matlab = "MATLAB" }\n',
    )
    (server,) = load_settings(path).licence_servers
    options: dict[str, Any] = {"command": ("/x", "y")}
    assert (server.options, server.interval, server.features) == (
        options,
        60.0,
        {"matlab": "MATLAB"},
    )
