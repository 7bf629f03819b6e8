"""A client, daemon or worker of another release is refused in one line that names the remedy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from metasched.adapters.protocol import WORKER_PROTOCOL, WorkerBoot, WorkerCall, WorkerReply
from metasched.api.version_exchange import VersionExchange
from metasched.config.settings import ClusterSettings
from metasched.daemon.host import SchedulerHost
from metasched.daemon.worker_process import WorkerProcess
from metasched.model.cluster import Cluster
from metasched.paths import API_PROTOCOL, PROTOCOL_HEADER
from metasched.processes.frames import framed
from metasched.version import RELEASE


async def respond(version: str) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return status, headers and body of the answer to a client of this version."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    header = (PROTOCOL_HEADER.lower().encode(), version.encode())
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [header]}
    await VersionExchange(PlainTextResponse("served"))(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


@pytest.mark.parametrize(
    ("version", "status", "text"),
    [
        (str(API_PROTOCOL), 200, b"served"),
        (str(API_PROTOCOL + 1), 400, b"of a later release than the daemon"),
        ("1" * 10, 400, b"no version of the API"),
        ("-1", 400, b"no version of the API"),
    ],
)
def test_a_client_of_a_later_release_is_refused(version: str, status: int, text: bytes) -> None:
    answered, headers, body = asyncio.run(respond(version))
    assert answered == status
    assert text in body
    assert headers[PROTOCOL_HEADER.lower().encode()] == str(API_PROTOCOL).encode()


@pytest.mark.parametrize("other", [0, WORKER_PROTOCOL - 1, WORKER_PROTOCOL + 1])
def test_a_worker_refuses_a_daemon_of_another_release(other: int) -> None:
    boot = WorkerBoot(
        adapter="local",
        cluster=Cluster(name="left", adapter="local"),
        options={},
        instance="cafe",
        folder="/nowhere",
        protocol=other,
    )
    done = subprocess.run(
        [sys.executable, "-m", "metasched.adapters.worker"],
        input=framed(msgspec.json.encode(boot)),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"metasched: error: left: the daemon has protocol {other}, this worker {WORKER_PROTOCOL}; "
        f"install the daemon's release for {sys.executable}\n"
    )


def test_a_worker_refuses_a_daemon_that_writes_lines() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "metasched.adapters.worker"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stderr is not None
        try:
            worker.stdin.write(b'{"adapter":"local","protocol":2}\n')
            worker.stdin.flush()  # and the pipe stays open
            assert worker.wait(20) == 1
            assert worker.stderr.read().decode() == (
                "metasched: error: the daemon has no frames, as before protocol 3; "
                f"install the daemon's release for {sys.executable}\n"
            )
        finally:
            worker.kill()


def test_a_worker_that_reads_lines_ends_with_the_remedy(tmp_path: Path) -> None:
    """So did those of before protocol 3."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread -r boot\nexit 1\n")
    python.chmod(0o755)
    core = SimpleNamespace(instance="cafe", instances=SimpleNamespace(names=frozenset()))
    host = SimpleNamespace(
        settings=SimpleNamespace(state_folder=tmp_path, launcher=None),
        ledger=SimpleNamespace(active_until=None),
        core=core,
    )
    cluster = Cluster(name="left", adapter="local")
    settings = ClusterSettings(cluster, {}, 1.0, 20.0, str(python), {})

    async def ask() -> WorkerReply:
        worker = WorkerProcess(cast(SchedulerHost, host), settings, on_exit=lambda: None)
        reply = await worker.call(WorkerCall("poll"))
        await worker.stop()
        return reply

    assert asyncio.run(ask()).reason == (
        "its worker died with exit code 1 before its first answer; "
        f"install metasched {RELEASE} for {python}"
    )
