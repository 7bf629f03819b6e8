"""The largest requests of account a: refused by their size, or cheap; account b is served.

Processor time of the scheduler's thread decides, with a wide margin: each took minutes of it, or
hundreds of MB.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import pwd
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from metasched.model.request_bounds import MAX_SUBMITTED_TERMS
from metasched.paths import MAX_REQUEST_BYTES
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, running_site
from tests.harness.accounts import A, B
from tests.harness.http_calls import UnixConnection

pytestmark = pytest.mark.root

LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
TARGETS, WAITING = 200, 100  # jobs that others wait for, and these
JSON = {"Content-Type": "application/json"}
COUNT = itertools.count()


def submission(jobs: list[dict[str, Any]], **fields: object) -> dict[str, Any]:
    common = {"script": "s", "environment": "e", "directory": "/", "output": "/dev/null"}
    return {
        "jobs": [{**common, "held": True, **job} for job in jobs],
        "scripts": {"s": "#!/bin/sh\n"},
        "environments": {"e": {}},
        **fields,
    }


class Contested:
    """A site with accounts a and b, and the processor time of its scheduler's thread."""

    def __init__(self, site: MultiUserSite) -> None:
        self.site = site
        assert site._daemon is not None
        self._daemon = psutil.Process(site._daemon.pid)

    def connect(self, account: str) -> http.client.HTTPConnection:
        connection = UnixConnection(self.site.state / "ms.sock", timeout=120)
        os.seteuid(pwd.getpwnam(account).pw_uid)  # which the kernel reports to the daemon
        try:
            connection.connect()
        finally:
            os.seteuid(0)
        return connection

    def send(self, account: str, method: str, target: str, body: object = None) -> tuple[int, Any]:
        with contextlib.closing(self.connect(account)) as connection:
            connection.request(method, target, None if body is None else json.dumps(body), JSON)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def thread_seconds(self) -> float:
        """Return the processor time of the thread that schedules and serves."""
        return sum(
            thread.user_time + thread.system_time
            for thread in self._daemon.threads()
            if thread.id == self._daemon.pid
        )

    @contextlib.contextmanager
    def costing(self, seconds: float) -> Iterator[None]:
        """Let the block cost the scheduler's thread at most some seconds of processor time."""
        before = self.thread_seconds()
        yield
        spent = self.thread_seconds() - before
        print(f"{spent:.2f} s of the scheduler's thread")
        assert spent < seconds

    def served_meanwhile(self, attack: Callable[[], object]) -> int:
        """Attack while b reads and submits; return how often b was served."""
        job = self.send(B, "POST", "/jobs", submission([{}]))[1]["jobs"][0]["job"]
        attacker = threading.Thread(target=attack)
        connections = self.connect(B), self.connect(B)  # effective ids are of the whole process
        attacker.start()
        served = 0
        with contextlib.closing(connections[0]), contextlib.closing(connections[1]):
            while attacker.is_alive() or not served:
                for connection, method, target, body in (
                    (connections[0], "GET", f"/jobs?job={job}", None),
                    (connections[1], "POST", "/jobs", json.dumps(submission([{}]))),
                ):
                    connection.request(method, target, body, JSON)
                    response = connection.getresponse()
                    response.read()
                    assert response.status == 200
                served += 1
        attacker.join()
        return served


@pytest.fixture
def contested(common_folder: Path) -> Iterator[Contested]:
    folder = common_folder / f"large-{next(COUNT)}"
    with running_site(folder, LOCAL, f"[cluster.left]\n{SUPERVISE}") as site:
        yield Contested(site)


def test_many_jobs_that_wait_for_the_same_many_delay_nobody(contested: Contested) -> None:
    """100 jobs that wait for 1,000 took over ten minutes of the thread; now 200 are the bound."""
    status, answer = contested.send(A, "POST", "/jobs", submission([{}] * TARGETS))
    assert status == 200
    ids = [row["job"] for row in answer["jobs"]]
    dependency = "afterany:" + ":".join(map(str, ids))
    assert TARGETS * WAITING == MAX_SUBMITTED_TERMS
    one_more = submission([{"dependency": dependency, "held": False}] * (WAITING + 1))
    with contested.costing(0.5):
        status, answer = contested.send(A, "POST", "/jobs", one_more)
    assert (status, answer["error"].partition(";")[0]) == (
        422,
        f"{TARGETS * (WAITING + 1)} jobs to wait for in the request, at most {MAX_SUBMITTED_TERMS}",
    )
    largest = submission([{"dependency": dependency, "held": False}] * WAITING)
    connection = contested.connect(A)

    def attack() -> None:
        connection.request("POST", "/jobs", json.dumps(largest), JSON)
        assert connection.getresponse().status == 200

    with contested.costing(3.0):
        assert contested.served_meanwhile(attack) > 0
    connection.close()
    with contested.costing(3.0):
        status, _ = contested.send(
            A, "POST", "/jobs/cancel?fold=true", {"jobs": list(map(str, ids))}
        )
        assert status == 200
    waiting = contested.send(A, "GET", "/jobs")[1]
    assert not any(row["reason"] == "dependency" for row in waiting)


def test_a_dependency_of_megabytes_is_refused_by_its_length(contested: Contested) -> None:
    """It was split first: 10 s, and 400 MB."""
    before = contested._daemon.memory_info().rss
    job = {"dependency": "afterok" + ":1" * 1_900_000}
    with contested.costing(0.5):
        status, answer = contested.send(A, "POST", "/jobs", submission([job], dry_run=True))
    assert status == 422
    assert answer["error"] == "more than 65536 characters, jobs.0.dependency; send fewer"
    assert contested._daemon.memory_info().rss - before < 100 << 20
    job = {"dependency": "afterok" + ":1" * 15_000}
    with contested.costing(0.5):
        status, answer = contested.send(A, "POST", "/jobs", submission([job], dry_run=True))
    assert status == 422
    assert "more than 1000 jobs to wait for" in answer["error"]


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_a_body_above_the_limit_is_refused_unread(contested: Contested, chunked: bool) -> None:
    """By its length, or once its chunks are longer; none of it is decoded."""
    with contextlib.closing(contested.connect(A)) as connection, contested.costing(0.5):
        connection.putrequest("POST", "/jobs")
        connection.putheader("Content-Type", "application/json")
        if chunked:
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            chunk = b" " * (1 << 20)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(MAX_REQUEST_BYTES // len(chunk) + 1):
                    connection.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        else:
            connection.putheader("Content-Length", str(MAX_REQUEST_BYTES + 1))
            connection.endheaders()
        response = connection.getresponse()
        assert response.status == 413
        assert f"more than {MAX_REQUEST_BYTES} bytes" in json.loads(response.read())["error"]
    assert contested.send(B, "GET", "/jobs")[0] == 200


def test_too_many_jobs_are_refused_before_any_is_looked_at(contested: Contested) -> None:
    with contested.costing(1.0):
        status, answer = contested.send(A, "POST", "/jobs", submission([{}] * 20_001))
    assert (status, answer["error"]) == (422, "more than 20000 entries, jobs; send fewer")
    assert contested.send(A, "GET", "/jobs")[1] == []
