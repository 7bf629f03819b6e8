"""The command line and its client, against a fake daemon with prepared responses."""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from metasched import cli
from metasched.cli import app as cli_app
from metasched.client.client import (
    BadRequest,
    Client,
    DaemonUnreachable,
    PermissionDenied,
    ResponseLost,
)
from metasched.client.job_request import prepare_submission
from metasched.client.options import OPTIONS, parse_command_line
from metasched.client.schemas import SubmitRequest
from metasched.paths import (
    API_PROTOCOL,
    PROTOCOL_HEADER,
    DaemonAddressError,
    configured_socket,
    daemon_socket,
    personal_data,
    personal_socket,
)


@dataclass
class Fake:
    """A daemon with prepared responses by path; the last response of a list is repeated."""

    path: Path
    protocol: str = str(API_PROTOCOL)
    answers: dict[str, list[Any]] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, list[str]], Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # Idempotency-Key of each request in `asked`

    def answer(self, path: str, *answers: Any) -> None:
        """Set responses: JSON values, (status, JSON value) pairs, raw bytes, None for silence."""
        self.answers[path] = list(answers)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None: ...

    def _serve(self) -> None:
        fake, url = self.server.fake, urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        query = parse_qs(url.query)
        fake.requests.append((self.command, url.path, query, json.loads(body) if body else None))
        fake.keys.append(self.headers.get("Idempotency-Key", ""))
        answers = fake.answers.get(url.path, [(404, {"error": "no such path"})])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            self.server.released.wait(30)
        elif isinstance(answer, bytes):
            self.wfile.write(answer)
        else:
            status, value = answer if isinstance(answer, tuple) else (200, answer)
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header(PROTOCOL_HEADER, fake.protocol)
            self.end_headers()
            self.wfile.write(content)
        self.close_connection = True

    do_GET = do_POST = _serve


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    def __init__(self, fake: Fake) -> None:
        self.fake, self.released = fake, threading.Event()
        super().__init__(str(fake.path), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        # the handler logs the address of the peer
        return super().get_request()[0], ("client", 0)


@pytest.fixture
def daemon(home: Path) -> Iterator[Fake]:
    with tempfile.TemporaryDirectory(prefix="ms") as short:  # a socket's path is at most 107 bytes
        fake = Fake(Path(short, "s"))
        with _Server(fake) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            os.environ["METASCHED_SOCKET"] = str(fake.path)  # restored by the fixture `home`
            try:
                yield fake
            finally:
                server.released.set()
                server.shutdown()
                thread.join()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home without daemon, configuration or environment."""
    for name in ("METASCHED_CONFIG", "METASCHED_SOCKET", "_METASCHED_COMPLETE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass
class Done:
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `metasched` with these arguments in this process."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["metasched", *arguments])
        capsys.readouterr()
        code = cli.main()
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


def started(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `metasched` as a subprocess."""
    source = "import sys; from metasched.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", source, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def row(job: int = 17, state: str = "running", **fields: object) -> dict[str, object]:
    return {
        "job": job,
        "array": None,
        "task": None,
        "name": "sim",
        "user": "ada",
        "state": state,
        "reason": None,
        "priority": 7,
        "cluster": "left",
        "native_id": "5",
        "submitted": "2026-01-31T10:00:00.000+00:00",
        "expected_start": None,
        "started": None,
        "ended": None,
        "exit_code": None,
        **fields,
    }


def accepted(**fields: object) -> dict[str, object]:
    return {"jobs": [{"job": 17, "priority": 7, "cluster": "left", "warnings": [], **fields}]}


# submit


def test_submit_sends_a_complete_request(daemon: Fake, run: Run, home: Path) -> None:
    daemon.answer("/jobs", accepted())
    arguments = (
        "-n",
        "2",
        "-t",
        "10",
        "--native",
        "left:-x",
        "--export",
        "A=ü",
        "job.sh",
        "-n",
        "ü",
    )
    (home / "job.sh").write_text("#!/bin/sh\n#MS --urgency 2\n")
    done = run("submit", *arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out == "Job 17: priority 7, cluster left\n"
    [(method, path, _, body)] = daemon.requests
    assert (method, path) == ("POST", "/jobs")
    expected, _ = prepare_submission(*parse_command_line(arguments), environ={}, now=time.time())
    assert body == json.loads(json.dumps(expected))
    assert msgspec.convert(body, SubmitRequest).jobs[0].arguments == ("-n", "ü")


@pytest.mark.parametrize(
    ("option", "out"),
    [("--json", '{"job": 17, "priority": 7, "cluster": null}\n'), ("--parsable", "17\n")],
)
def test_submit_output_for_programs(daemon: Fake, run: Run, option: str, out: str) -> None:
    daemon.answer("/jobs", accepted(cluster=None))
    assert run("submit", option, "--wrap", "x").out == out


def test_warnings_go_to_stderr(daemon: Fake, run: Run, home: Path) -> None:
    daemon.answer("/jobs", accepted(warnings=["the deadline has passed"]))
    (home / "job.sh").write_text("#!/bin/sh\n#SBATCH --nice\n")
    done = run("submit", "--parsable", "job.sh")
    assert done.out == "17\n"
    assert done.err.splitlines() == [
        "metasched: warning: unknown options ignored, job.sh: --nice",
        "metasched: warning: the deadline has passed",
    ]


def test_strict_refuses_warnings(daemon: Fake, run: Run, home: Path) -> None:
    (home / "job.sh").write_text("#!/bin/sh\n#SBATCH --nice\n")
    done = run("submit", "--strict", "job.sh")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert done.err.endswith("--nice; fix it, or leave out --strict\n")
    assert daemon.requests == []


def test_dry_run_explains_the_outcome(daemon: Fake, run: Run) -> None:
    why = {
        "parts": [{"heuristic": "deadline", "contribution": 0.123456, "weight": 2}],
        "clusters": [verdict("left", chosen=True), verdict("right", eligible=False)],
    }
    daemon.answer("/jobs", accepted(job=None, why=why))
    done = run("submit", "--dry-run", "--wait", "--wrap", "x")
    assert (done.code, daemon.requests[0][3]["dry_run"]) == (0, True)
    assert done.out.startswith("Dry run, nothing submitted. Outcome: priority 7, cluster left\n")
    assert ["deadline", "0.1235", "2"] in [line.split() for line in done.out.splitlines()]
    assert json.loads(run("submit", "--dry-run", "--json", "--wrap", "x").out)["why"] == why


def test_submit_wait_exits_with_the_code_of_the_job(daemon: Fake, run: Run) -> None:
    daemon.answer("/jobs", accepted())
    daemon.answer("/jobs/wait", [row()], [row(state="failed", exit_code=9)])
    done = run("submit", "--wait", "--parsable", "--wrap", "x")
    assert (done.code, done.out) == (9, "17\n")
    assert [path for _, path, _, _ in daemon.requests] == ["/jobs", "/jobs/wait", "/jobs/wait"]


def test_typer_and_argparse_agree_on_submit(
    daemon: Fake, run: Run, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer("/jobs", accepted())
    (home / "job.sh").write_text("#!/bin/sh\n")
    arguments = [
        "submit",
        "-n",
        "2",
        "--hold",
        "--native",
        "a:-x",
        "--native",
        "b:-y",
        "--export=NONE",
    ]
    arguments += ["--mem", "4G", "job.sh", "--mem", "x"]
    run(*arguments)
    cli_app.build_app()(arguments, standalone_mode=False)
    assert len(daemon.requests) == 2
    assert daemon.requests[0] == daemon.requests[1]


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sttus"], 'unknown command "sttus", metasched; did you mean status?'),
        (["frobnicate"], 'unknown command "frobnicate", metasched; see `metasched --help`'),
        (["--verbose"], 'unknown option "--verbose", metasched; '),
        (
            ["status", "--usr", "x"],
            'unknown option "--usr", metasched status; did you mean --user?',
        ),
        (["status", "--user"], ", metasched status; see `metasched status --help`"),
        (["status", "x"], '"x" is no job, JOB; write 17, 17_3 for a task'),
        (["story", "17_"], '"17_" is no job'),
        (["wait", "-1"], "unknown option"),
        (["wait"], "missing argument"),
        (["story", "17", "18"], "metasched story; "),
        (
            ["cancel"],
            "nothing to cancel, metasched cancel; name jobs, --user, --state or --cluster",
        ),
        (["status", "--since", "soon"], '"soon" is no time, --since; '),
        (["demo", "--jobs", "0"], "--jobs"),
        (["demo", "--jobs", "x"], "--jobs"),
        (["submit", "--arary", "1-3", "x"], 'unknown option "--arary", metasched submit; did'),
        (
            ["submit", "--reservation", "x", "--wrap", "x"],
            '"x" is no number from 1 to 2147483647, --res',
        ),
        (["reserve", "--size", "4"], "no --duration, metasched reserve; "),
        (["reserve", "--duration", "1h"], "no --size, metasched reserve; "),
        (["reserve", "-n", "0", "--duration", "1h"], '"0" is no number from 1 to 2147483647, --s'),
        (["reserve", "-n", "1", "--duration", "0"], '"0" is no sensible duration, --duration; '),
        (["reserve", "-n", "1", "--start", "+1h"], "no end, --start; "),
        (
            ["reserve", "-n", "1", "--duration", "1h", "-L", "matlab,matlab"],
            'licence "matlab" is there twice, --licence; write NAME:N once',
        ),
        (["reserve", "-n", "1", "--end", "+1h"], "--end without --start"),
        (
            ["reserve", "-n", "1", "--start", "+2h", "--end", "+1h"],
            "the end is not after the start",
        ),
        (["reserve", "-n", "1", "--start", "soon", "--end", "+1h"], '"soon" is no time, --start; '),
        (["reserve", "--at-least", "1", "--duration", "1h"], "only one of --at-least and --at-mo"),
        (["reservation", "cancel", "x"], '"x" is no number from 1 to 2147483647, ID; '),
        (["submit", "-n", "0", "--wrap", "x"], '"0" is no number from 1 to 2147483647, --ntasks; '),
        (["submit", "no\nsuch\x1b[31m\udcff"], 'No such file or directory, script "no\\nsuch\\x1b'),
        (["submit", "--config", "no.toml", "--wrap", "x"], "no.toml; name another file"),
        (["status", "--config", "no.toml"], "no.toml; name another file with --config"),
        (["serve", "-c", "no.toml"], "no.toml"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    daemon: Fake, run: Run, arguments: list[str], message: str
) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("metasched: error: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert daemon.requests == []


@pytest.mark.parametrize(
    ("status", "code"), [(400, 2), (422, 2), (403, 3), (404, 5), (409, 1), (503, 4), (500, 1)]
)
def test_exit_code_by_http_status(daemon: Fake, run: Run, status: int, code: int) -> None:
    daemon.answer("/jobs", (status, {"error": "problem, place; remedy"}))
    for arguments in (["status"], ["submit", "--wrap", "x"]):
        done = run(*arguments)
        assert (done.code, done.out) == (code, "")
        assert done.err == "metasched: error: problem, place; remedy\n"


@pytest.mark.parametrize("protocol", ["1", "", "x"])
def test_an_error_of_an_earlier_daemon_names_the_remedy(
    daemon: Fake, run: Run, protocol: str
) -> None:
    daemon.protocol = protocol
    remedy = ", by a daemon of an earlier release; use the commands of its release"
    for status, problem in (
        (422, "unknown field, body"),
        (405, "Method Not Allowed: GET /jobs"),
        (404, "Not Found: GET /jobs"),
    ):
        daemon.answer("/jobs", (status, {"error": f"{problem}; see /docs"}))
        assert run("status").err == f"metasched: error: {problem}{remedy}\n"
    daemon.answer("/jobs", (404, {"error": "no job 7; see status"}))
    assert run("status").err == "metasched: error: no job 7; see status\n"


def test_an_error_response_without_a_message(daemon: Fake, run: Run) -> None:
    daemon.answer("/jobs", (502, ["?"]))
    done = run("status")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "status 502" in done.err


def test_no_daemon(run: Run) -> None:
    for arguments in (["status"], ["submit", "--wrap", "x"]):
        done = run(*arguments)
        assert (done.code, done.out) == (4, "")
        assert str(personal_socket()) in done.err
        assert "start it with `metasched serve`" in done.err


def test_a_socket_without_a_daemon(home: Path) -> None:
    (home / "file").touch()
    with pytest.raises(DaemonUnreachable, match="no daemon answers"):
        Client(home / "file").health()


@pytest.mark.skipif(os.getuid() == 0, reason="root may connect to every socket")
def test_a_socket_of_another_user(daemon: Fake) -> None:
    daemon.path.chmod(0)
    with pytest.raises(PermissionDenied, match="belongs to another user"):
        Client(daemon.path).health()


def test_a_path_too_long_for_a_socket(daemon: Fake, run: Run) -> None:
    os.environ["METASCHED_SOCKET"] = "/tmp/" + "x" * 103
    done = run("status")
    assert (done.code, done.err.count("\n")) == (4, 1)
    assert "more than 107 bytes" in done.err
    Client("/tmp/" + "x" * 102)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[}",
        b"SSH-2.0-OpenSSH\r\n",
        {"rows": 1},
        [1],
    ],
)
def test_an_incomplete_response(daemon: Fake, run: Run, answer: object) -> None:
    daemon.answer("/jobs", answer)
    for arguments in (["status"], ["submit", "--wrap", "x"]):
        done = run(*arguments)
        assert (done.code, done.out) == (1, "")
        assert done.err.count("\n") == 1
        assert "Traceback" not in done.err


@pytest.mark.parametrize("health", [{"instance": "a"}, {"idempotency_keys": False}, (401, {})])
def test_a_daemon_without_keys_gets_no_submission_twice(
    daemon: Fake, run: Run, health: object
) -> None:
    daemon.answer("/jobs", b"")
    daemon.answer("/health", health)
    assert "check with `metasched status`" in run("submit", "--wrap", "x").err
    assert [path for _, path, _, _ in daemon.requests] == ["/jobs", "/health"]


def test_a_submission_without_answer_is_repeated_with_its_key(
    daemon: Fake, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasched.client.client.RETRY_INTERVAL", 0.0)
    row: dict[str, Any] = {"job": 7, "priority": 3, "cluster": None, "tasks": None, "warnings": []}
    daemon.answer("/jobs", b"", (504, {"error": "?"}), (503, {"error": "away"}), {"jobs": [row]})
    daemon.answer("/health", (503, {"error": "away"}), {"idempotency_keys": True})
    assert run("submit", "--parsable", "--wrap", "x").out == "7\n"
    sent = [
        (key, body)
        for key, (_, path, _, body) in zip(daemon.keys, daemon.requests, strict=True)
        if path == "/jobs"
    ]
    assert len(sent) == 4
    assert all(again == sent[0] for again in sent)
    assert re.fullmatch("[0-9a-f]{32}", sent[0][0])
    # another submission has another key
    assert run("submit", "--parsable", "--wrap", "x").out == "7\n"
    assert daemon.keys[-1] not in (sent[0][0], "")


def test_a_refusal_of_a_repeated_submission_is_final(daemon: Fake, run: Run) -> None:
    daemon.answer("/jobs", b"", (409, {"error": "another submission has used key k"}))
    daemon.answer("/health", {"idempotency_keys": True})
    done = run("submit", "--wrap", "x")
    assert (done.code, "has used key k" in done.err) == (1, True)


def test_a_submission_is_repeated_for_a_time(daemon: Fake) -> None:
    daemon.answer("/jobs", b"")
    daemon.answer("/health", {"idempotency_keys": True})
    with pytest.raises(ResponseLost, match="check with"):
        Client(daemon.path, retry_time=0).submit({})
    assert len(daemon.requests) == 1
    with pytest.raises(BadRequest, match="no idempotency key"):
        Client(daemon.path).submit({}, "k\r\nX: y")


def test_a_response_that_times_out(daemon: Fake) -> None:
    daemon.answer("/health", None)
    with pytest.raises(ResponseLost, match=r"no answer in 0\.1 s"):
        Client(daemon.path, timeout=0.1).health()


# Finding the daemon


def test_paths_follow_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "relative/paths/are/ignored")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert personal_data() == home / ".local/share/metasched"
    assert personal_socket() == home / ".local/state/metasched/metasched.sock"


def test_precedence_of_daemon_addresses(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--config`, METASCHED_CONFIG, METASCHED_SOCKET, the personal configuration and path."""

    def config(name: str) -> str:
        path = home / f"{name}.toml"
        path.write_text(f'[daemon]\nsocket = "/{name}"\n')
        return str(path)

    assert daemon_socket() == personal_socket()
    own = home / "XDG_CONFIG_HOME/metasched"
    own.mkdir(parents=True)
    (own / "metasched.toml").write_text('[daemon]\nsocket = "own.sock"\n')
    assert daemon_socket() == own / "own.sock"
    monkeypatch.setenv("METASCHED_SOCKET", "/by-socket")
    assert daemon_socket() == Path("/by-socket")
    monkeypatch.setenv("METASCHED_CONFIG", config("by-config"))
    assert daemon_socket() == Path("/by-config")
    assert daemon_socket(config("by-option")) == Path("/by-option")


def test_the_site_daemon_is_the_fallback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = home / "site.sock"
    monkeypatch.setattr("metasched.paths.site_socket", lambda: site)
    assert daemon_socket() == personal_socket()
    site.touch()
    assert daemon_socket() == site
    personal_socket().parent.mkdir(parents=True)
    personal_socket().touch()
    assert daemon_socket() == personal_socket()


@pytest.mark.parametrize(
    "text", ["[daemon", "daemon = 3", "[daemon]\nsocket = 3", '[daemon]\nsocket = ""', "x = '\xff'"]
)
def test_configurations_that_name_no_socket(home: Path, text: str) -> None:
    (home / "bad.toml").write_text(text, encoding="latin-1")
    with pytest.raises(DaemonAddressError, match=r"bad\.toml.*; "):
        configured_socket(home / "bad.toml")


def test_a_configuration_without_a_socket_means_the_default_socket(home: Path) -> None:
    (home / "a.toml").write_text("[policy]\nfile = 'p.toml'\n")
    assert configured_socket(home / "a.toml") == personal_socket()


# status, cancel, hold, release, wait


def test_status_is_a_plain_uncut_table_in_a_pipe(daemon: Fake, run: Run) -> None:
    name = "ü" * 255
    rows = [row(name=name), row(18, "completed", array="1-3", task=3, exit_code=0)]
    daemon.answer("/jobs", rows)
    done = run("status")
    header, first, second = done.out.splitlines()
    assert header.split() == [
        *["JOB", "NAME", "USER", "STATE", "REASON", "PRIORITY", "CLUSTER", "NATIVE_ID"],
        *["SUBMITTED", "EXPECTED_START", "STARTED", "ENDED", "EXIT"],
    ]
    assert first.split() == ["17", name, "ada", "running", "7", "left", "5", row()["submitted"]]
    assert second.split()[:2] == ["18_3", "sim"]
    assert second.split()[-1] == "0"
    assert json.loads(run("status", "--json").out) == rows


def test_status_sends_its_filters(daemon: Fake, run: Run) -> None:
    daemon.answer("/jobs", [])
    before = time.time()
    run("status", "17", "18_3", "--user", "a&b", "--state", "held,queued", "--all")
    run("status", "--since", "2h")
    assert daemon.requests[0][2] == {
        "job": ["17", "18_3"],
        "user": ["a&b"],
        "state": ["held,queued"],
        "all": ["true"],
    }
    assert daemon.requests[1][2].keys() == {"since"}
    assert float(daemon.requests[1][2]["since"][0]) == pytest.approx(before - 7200, abs=60)


def test_tables_contain_no_control_characters(daemon: Fake, run: Run) -> None:
    daemon.answer("/jobs", [row(reason="manager:\x1b[2J\nx")])
    done = run("status")
    assert "manager:?[2J?x" in done.out
    assert done.out.count("\n") == 2


def test_characters_outside_the_encoding_of_the_terminal(daemon: Fake) -> None:
    daemon.answer("/jobs", [row(name="ünï")])
    out, err = started("status", env={**os.environ, "PYTHONIOENCODING": "ascii"}).communicate()
    assert (b"\\xfcn\\xef" in out, err) == (True, b"")


def test_status_on_a_terminal(
    daemon: Fake, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer("/jobs", [row(name="[bold]name", started="2026-01-31T10:00:00+00:00")])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = run("status")
    assert "[bold]name" in done.out
    assert "2026-01-3" in done.out
    assert "+00:00" not in done.out
    assert "ENDED" not in done.out


def test_licences_with_reservations(daemon: Fake, run: Run) -> None:
    start, end = "2090-01-31T10:00:00+00:00", "2090-01-31T11:00:00+00:00"
    row = {"licence": "matlab", "total": 4, "ours": 1, "outside": 0, "free": 3, "waiting": 0}
    row |= {"rho": 0.0, "state": "ok"}
    daemon.answer("/licences", [row])
    assert "RESERVATION" not in run("licences").out
    window = {"reservation": 7, "count": 2, "start": start, "end": end}
    daemon.answer("/licences", [row | {"reserved": 0, "windows": [window]}])
    assert run("licences").out.splitlines()[-1].split()[:3] == ["7", "matlab", "2"]


def test_a_reservation_for_another_user(daemon: Fake, run: Run) -> None:
    times = {"start": "2090-01-31T10:00:00+00:00", "end": "2090-01-31T11:00:00+00:00"}
    where = {"cluster": "alpha", "nodes": 1, "processors": None, "starts": []}
    offer: dict[str, Any] = where | times
    daemon.answer("/reservations", {"offers": [offer]})
    arguments = ("reserve", "-n", "1", "--duration", "1h", "--dry-run")
    assert run(*arguments).code == 0
    assert run(*arguments, "--user", "ada").code == 0
    requests = [body for _, path, _, body in daemon.requests if path == "/reservations"]
    assert [body.get("user") for body in requests] == [None, "ada"]


def test_reservations_on_a_terminal_are_shown_over_time(
    daemon: Fake, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservation = {
        "reservation": 7,
        "user": "ada",
        "cluster": "alpha",
        "size": 4,
        "state": "bound",
        "start": "2090-01-31T10:00:00+00:00",
        "end": "2090-01-31T11:00:00+00:00",
        "nodes": ["n1"],
        "cause": "asked for",
    }  # as reported by a daemon of an earlier release
    daemon.answer("/reservations", [reservation])
    assert "7 alpha 4 ada" not in run("reservations").out
    daemon.answer("/reservations", [reservation | {"licences": {"matlab": 2, "ansys": 1}}])
    assert "matlab:2,ansys:1" in run("reservations").out
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output = run("reservations").out
    assert "7 alpha 4 ada ......" in output
    assert "2090-01-31" in output.splitlines()[-1]


@pytest.mark.parametrize("command", ["cancel", "hold", "release"])
def test_actions(daemon: Fake, run: Run, command: str) -> None:
    rows = [{"job": 17, "task": None, "was": "held", "state": "queued", "note": "soon"}]
    daemon.answer(f"/jobs/{command}", {"jobs": rows})
    done = run(command, "17", "18_3", "--state", "held")
    assert done.code == 0
    assert done.out.splitlines()[1].split() == ["17", "held", "queued", "soon"]
    assert daemon.requests[0][3] == {"jobs": ["17", "18_3"], "user": None, "state": "held"}
    assert json.loads(run(command, "--user", "ada", "--json").out) == rows
    assert daemon.requests[1][3] == {"jobs": [], "user": "ada", "state": None}


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([("completed", 0)], 0),
        ([("failed", 3)], 3),
        ([("failed", 143)], 143),
        ([("failed", None)], 1),
        ([("failed", 0)], 1),
        ([("timeout", None)], 124),
        ([("timeout", 143)], 124),
        ([("cancelled", None)], 130),
        ([("rejected", None)], 3),
        ([("completed", 0), ("failed", 7), ("failed", 2)], 7),
    ],
)
def test_wait_exits_with_the_highest_code(
    daemon: Fake, run: Run, states: list[tuple[str, int | None]], code: int
) -> None:
    ended = [row(17 + i, state, exit_code=code) for i, (state, code) in enumerate(states)]
    daemon.answer("/jobs/wait", [row()], [row(state="unknown")], ended)
    done = run("wait", "17", "18")
    assert (done.code, done.err) == (code, "")
    assert len(daemon.requests) == 3
    assert daemon.requests[0][2]["job"] == ["17", "18"]
    assert len(done.out.splitlines()) == 1 + len(states)


# output


def paths(daemon: Fake, output: Path, error: Path | None = None) -> None:
    answer = {"output": str(output), "error": None if error is None else str(error)}
    daemon.answer("/jobs/17/output", answer)


def test_output_prints_the_bytes_of_the_file(daemon: Fake, home: Path) -> None:
    content = bytes(range(256)) * 1000
    (home / "out").write_bytes(content)
    (home / "err").write_bytes(b"oops")
    paths(daemon, home / "out")
    assert started("output", "17").communicate() == (content, b"")
    assert started("output", "17", "--error").communicate() == (content, b"")
    paths(daemon, home / "out", home / "err")
    assert started("output", "17", "--error").communicate() == (b"oops", b"")


def test_missing_output(daemon: Fake, run: Run, home: Path) -> None:
    paths(daemon, home / "out")
    daemon.answer("/jobs", [row(state="pending")])
    done = run("output", "17")
    assert done.code == 5
    assert "job 17 (pending)" in done.err
    assert done.err.endswith("wait for it with --follow\n")
    paths(daemon, home)
    done = run("output", "17")
    assert (done.code, done.err.count("\n")) == (1, 1)


def test_output_follows_until_the_job_has_ended(daemon: Fake, home: Path) -> None:
    paths(daemon, home / "out")
    daemon.answer("/jobs", [row(state="pending")])
    process = started("output", "17", "--follow")
    assert process.stdout is not None
    (home / "out").write_text("one\n")
    assert process.stdout.readline() == b"one\n"
    with (home / "out").open("a") as file:
        file.write("two\n")
    assert process.stdout.readline() == b"two\n"
    (home / "out").write_text("new\n")  # restarted: shorter than the part already read
    assert process.stdout.readline() == b"new\n"
    with (home / "out").open("a") as file:
        file.write("last")
    daemon.answer("/jobs", [row(state="failed", exit_code=1)])
    assert process.communicate(timeout=30) == (b"last", b"")
    assert process.returncode == 0


def test_following_a_job_that_never_wrote(daemon: Fake, run: Run, home: Path) -> None:
    paths(daemon, home / "out")
    daemon.answer("/jobs", [row(state="cancelled")])
    done = run("output", "17", "--follow")
    assert done.code == 5
    assert "see `metasched story 17`" in done.err


# story, explain, clusters


def test_story_is_a_line_per_event(daemon: Fake, run: Run) -> None:
    event = {"time": "2026-01-31T10:00:00+00:00", "task": None, "attempt": None, "event": "queued"}
    fields = {"from": None, "to": "queued", "cluster": None, "reason": None, "cause": "submitted"}
    sent = {"task": 3, "attempt": 1, "event": "send", "from": "queued", "to": "dispatching"}
    events = [event | fields, event | fields | sent | {"cluster": "left", "reason": "priority"}]
    daemon.answer("/jobs/17/story", {"job": 17, "events": events})
    done = run("story", "17")
    assert done.out.splitlines() == [
        "2026-01-31T10:00:00+00:00  queued  queued  (submitted)",
        "2026-01-31T10:00:00+00:00 task 3 attempt 1  send  queued -> dispatching on left  "
        "(priority: submitted)",
    ]
    assert json.loads(run("story", "17", "--json").out) == events


def verdict(cluster: str, **fields: object) -> dict[str, object]:
    answer = {"eligible": True, "reason": None, "text": "", "load": 120.0, "count": 2}
    return {"cluster": cluster, **answer, "chosen": False, **fields}


def test_explain(daemon: Fake, run: Run) -> None:
    down = {"eligible": False, "reason": "cluster_down", "text": "no answer for 30 s"}
    answer = {
        "job": 17,
        "task": 3,
        "state": "queued",
        "reason": "cluster_down",
        "priority": 7,
        "text": "It waits with us.",
        "parts": [{"heuristic": "user", "contribution": 7, "weight": 1.0}],
        "clusters": [
            verdict("left", chosen=True, account="physics"),
            verdict("right", load=None, **down),
        ],
    }
    daemon.answer("/jobs/17_3/explain", answer)
    lines = [line.split() for line in run("explain", "17_3").out.splitlines()]
    assert " ".join(lines[0]) == "Job 17_3 is queued, cluster_down, priority 7."
    assert " ".join(lines[1]) == "It waits with us."
    assert ["user", "7", "1"] in lines
    assert ["left", "yes", "yes", "physics", "120", "2"] in lines
    assert "right no 2 cluster_down: no answer for 30 s" in [" ".join(line) for line in lines]
    assert json.loads(run("explain", "17_3", "--json").out) == answer


def test_clusters(daemon: Fake, run: Run) -> None:
    rows = [
        {
            "cluster": "left",
            "adapter": "slurm",
            "access": "commands",
            "state": "up",
            "cpus": 8,
            "used": 3,
            "pending": 2,
            "load": [1234.5678, 0.0],
            "count": [4, 0],
        }
    ]
    daemon.answer("/clusters", rows)
    fields = run("clusters").out.splitlines()[1].split()
    assert fields == ["left", "slurm", "by", "commands", "up", "8", "3", "2", "1235", "4"]
    assert json.loads(run("clusters", "--json").out) == rows


# Help and completion


def test_help_names_every_command(run: Run) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        done = run(*arguments)
        assert done.code == 0
        assert all(f"\n  {name} " in done.out for name in cli_app.COMMANDS)


@pytest.mark.parametrize("command", cli_app.COMMANDS)
def test_help_has_examples(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Examples:\n    metasched {command}" in done.out


def test_help_of_submit_names_every_option(run: Run) -> None:
    output = run("submit", "-h").out
    assert all(name in output for option in OPTIONS for name in option.names)
    public = "ntasks cpus-per-task nodes mem mem-per-cpu gpus gres exclusive time begin deadline"
    public += " licence urgency cluster account partition qos constraint native reservation array"
    public += " dependency name output error chdir export requeue hold dry-run wrap parsable wait"
    output = output.replace(",", " ")
    assert all(f"--{name} " in output for name in [*public.split(), "json", "strict", "config"])


def test_version(run: Run) -> None:
    output = run("--version").out
    assert output.startswith("metasched ")
    assert "compiled" not in output  # the source tree is never compiled


def test_completion_knows_commands_and_options() -> None:
    def completed(*arguments: str) -> list[str]:
        environment = {"_METASCHED_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(arguments)}
        environ = {**os.environ, **environment, "COMP_CWORD": str(len(arguments) - 1)}
        out, _ = started(env=environ).communicate()
        return out.decode().split()

    assert completed("metasched", "sta") == ["status"]
    assert completed("metasched", "submit", "--urg") == ["--urgency"]


# The process


def test_submit_imports_nothing_slow(daemon: Fake, home: Path) -> None:
    daemon.answer("/jobs", accepted())
    (home / "job.sh").write_text("#!/bin/sh\n#SBATCH -n 2\n#MS -t 10m\n")
    source = "import sys; from metasched.cli import main; main(); print(*sys.modules)"
    command = [sys.executable, "-c", source, "submit", "--parsable", "job.sh"]
    # coverage imports modules itself
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    loaded = done.stdout.split()
    assert loaded.pop(0) == "17"
    slow = "typer click rich msgspec pydantic fastapi starlette uvicorn sqlalchemy alembic asyncio"
    slow += " http ssl email tomllib logging psutil concurrent unittest"
    assert {module.partition(".")[0] for module in loaded}.isdisjoint(slow.split())


def test_a_listing_in_a_pipe_imports_no_rich(daemon: Fake) -> None:
    daemon.answer("/jobs", [row()])
    source = "import sys; from metasched.cli import main; main(); print(*sys.modules)"
    command = [sys.executable, "-c", source, "status"]
    loaded = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    assert {"rich", "fastapi", "sqlalchemy", "metasched.daemon.service", "argparse"}.isdisjoint(
        loaded
    )


@pytest.mark.parametrize("arguments", [["wait", "17"], ["submit", "--wrap", "x"]])
def test_an_interrupt_is_quiet(daemon: Fake, arguments: list[str]) -> None:
    daemon.answer("/jobs", None)
    daemon.answer("/jobs/wait", None)
    process = started(*arguments)
    while not daemon.requests:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize("arguments", [["status"], ["output", "17"]])
def test_a_closed_pipe_is_no_error(daemon: Fake, home: Path, arguments: list[str]) -> None:
    daemon.answer("/jobs", [row(i) for i in range(3000)])
    (home / "out").write_text("x\n" * 1_000_000)
    paths(daemon, home / "out")
    process = started(*arguments)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=30) in (0, 1)
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""


def test_output_that_cannot_be_written(daemon: Fake) -> None:
    daemon.answer("/jobs", [row()])
    source = "import sys; from metasched.cli import main; sys.exit(main())"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", source, "status"], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode != 0
    assert done.stderr.startswith(b"metasched: error: No space left on device, standard output; ")
    assert b"Traceback" not in done.stderr
