"""The HTTP API: its reference page and repeated submissions."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from metasched.api.connections import Refusal
from metasched.paths import NEXT_CURSOR_HEADER
from tests.e2e.conftest import COMMAND, TWO_LOCAL, Site
from tests.harness.http_calls import Response, call
from tests.harness.ports import free_port
from tests.harness.postgresql import Server

PASSIVE_ELEMENTS = {
    *("html", "head", "meta", "title", "body", "h1", "h2", "p", "details", "summary", "pre"),
}


class _Elements(HTMLParser):
    """Collect the element names, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= set(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_reference_names_every_route_and_loads_nothing(shared: Site) -> None:
    socket = shared.folder / "ms.sock"
    document = call(socket, "GET", "/openapi.json").json
    page = call(socket, "GET", "/docs")
    assert page.status == 200
    assert page.headers["content-security-policy"].startswith("default-src 'none';")
    elements = _Elements(page.content.decode())
    assert elements.names <= PASSIVE_ELEMENTS
    assert elements.attributes == {("lang", "en"), ("charset", "utf-8")}
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"{method.upper()} {path}" in elements.text
    assert "/jobs" in document["paths"]
    assert call(socket, "GET", "/redoc").status == 404


def test_answers_about_jobs_are_described(shared: Site) -> None:
    document = call(shared.folder / "ms.sock", "GET", "/openapi.json").json

    def answer(method: str, path: str) -> Any:
        response = document["paths"][path][method]["responses"]["200"]
        return response["content"]["application/json"]["schema"]

    for path in ("/jobs", "/jobs/wait"):
        schema = answer("get", path)
        assert (schema["type"], schema["items"]["$ref"]) == ("array", "#/components/schemas/JobRow")
    for path in ("/jobs/{action}", "/jobs/modify"):
        names = [option["$ref"].rpartition("/")[2] for option in answer("post", path)["anyOf"]]
        assert names == ["ChangedTasks", "FoldedChanges"]


def test_a_mistyped_cluster_selects_nothing_and_says_so(running: Site) -> None:
    job = running.submit("--hold", "-o", "/dev/null", "--wrap", "true")
    for action in ("cancel", "hold", "release", "requeue"):
        message = running.error(action, "--cluster", "lefd", code=5)
        assert message == "no cluster 'lefd'; use left, right"
    assert "no cluster" in running.error("resolve", "lost", "--cluster", "lefd", code=5)
    assert running.row(job)["state"] == "held"
    assert running.run("cancel", "--cluster", "left").stdout.count("\n") == 1  # the heading
    row = running.row(job)
    assert row["state"] == "held"
    document = call(running.folder / "ms.sock", "GET", "/openapi.json").json
    assert set(document["components"]["schemas"]["JobRow"]["properties"]) == set(row)


def test_health_counts_connections_and_descriptors(shared: Site) -> None:
    health = call(shared.folder / "ms.sock", "GET", "/health").json
    [listener] = health["connections"]
    assert (listener["limit"], listener["waiting_limit"]) == (1024, 512)
    assert 1 <= listener["open"] < 1024
    assert set(listener["refused"]) == set(Refusal)
    assert 0 < health["descriptors"]["open"] < health["descriptors"]["limit"]
    refused = call(shared.folder / "ms.sock", "POST", "/jobs/cancel", [[]] * 2000)
    assert refused.status == 400
    [after] = call(shared.folder / "ms.sock", "GET", "/health").json["connections"]
    assert after["refused"] == listener["refused"] | {"size": listener["refused"]["size"] + 1}


def test_jobs_are_listed_in_pages(running: Site) -> None:
    socket = running.folder / "ms.sock"
    for _ in range(2):
        running.run("submit", "--hold", "-o", "/dev/null", "--array", "1-3", "--wrap", "true")
    whole = call(socket, "GET", "/jobs")
    assert NEXT_CURSOR_HEADER.lower() not in whole.headers
    for filters in ("", "&state=held", "&job=1&job=4_[1-3]"):
        rows: list[dict[str, Any]] = []
        cursor, sizes = "", []
        while True:
            page = call(socket, "GET", f"/jobs?limit=4{filters}{cursor}")
            rows += page.json
            sizes.append(len(page.json))
            if (following := page.headers.get(NEXT_CURSOR_HEADER.lower())) is None:
                break
            cursor = f"&cursor={following}"
        assert rows == whole.json
        assert sizes == [4, 2]


@pytest.mark.parametrize(
    "cursor",
    [
        *("", "x", "1", "1.2", "1.2.3.4", "-1.2.3", "1.-1.3", "1.2.-2", "1e3.2.3"),
        *("1.2.9223372036854775808", "1.2.%D9%A3"),
    ],
)
def test_a_cursor_of_no_page_is_refused(shared: Site, cursor: str) -> None:
    refused = call(shared.folder / "ms.sock", "GET", f"/jobs?cursor={cursor}")
    assert refused.status == 422
    assert refused.json["error"].endswith("is no cursor of this listing; send that of a page")
    assert refused.json["error"].count("\n") == 0


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "all"])
def test_a_page_has_a_largest_size(shared: Site, limit: str) -> None:
    refused = call(shared.folder / "ms.sock", "GET", f"/jobs?limit={limit}")
    assert refused.status == 422
    assert "limit" in refused.json["error"]


def test_the_largest_cursor_is_after_all_jobs(shared: Site) -> None:
    cursor = ".".join([str(2**63 - 1)] * 3)
    for filters in ("", "&all=true", "&user=root&all=true", "&state=failed"):
        page = call(shared.folder / "ms.sock", "GET", f"/jobs?cursor={cursor}{filters}")
        assert (page.status, page.json) == (200, [])


def submission(command: str, **options: object) -> dict[str, Any]:
    job = {"script": "s", "environment": "e", "directory": "/", "output": "/dev/null"}
    texts = {"scripts": {"s": f"#!/bin/sh\n{command}\n"}, "environments": {"e": {}}}
    return {"jobs": [job], **texts, **options}


def submit(site: Site, key: str, command: str = "true", **options: object) -> Response:
    header = {"Idempotency-Key": key}
    return call(site.folder / "ms.sock", "POST", "/jobs", submission(command, **options), header)


def test_a_repeated_submission_is_accepted_once(running: Site) -> None:
    first = submit(running, "k-1.a:B_")
    assert first.status == 200
    [job] = running.until_ended(first.json["jobs"][0]["job"])
    # the first answer is repeated, although the job has ended
    repeated = submit(running, "k-1.a:B_")
    assert (repeated.status, repeated.json) == (200, first.json)
    # also after a restart of the daemon
    running.stop()
    running.start()
    assert submit(running, "k-1.a:B_").json == first.json
    for other in (submit(running, "k-1.a:B_", "false"), submit(running, "k-1.a:B_", dry_run=True)):
        assert other.status == 409
        assert "has used key k-1.a:B_" in other.json["error"]
        assert "\n" not in other.json["error"]
    assert [row["job"] for row in running.rows()] == [job["job"]]
    # a dry run stores no job and uses no key
    assert submit(running, "k-2", dry_run=True).status == 200
    assert submit(running, "k-2", "exit 1; exit 2").status == 200
    # without a key each submission creates a job
    bare = [call(running.folder / "ms.sock", "POST", "/jobs", submission("true")) for _ in range(2)]
    assert len({response.json["jobs"][0]["job"] for response in bare}) == 2


@pytest.mark.parametrize("key", ["", "k" * 129, "two words", "n\xe4me", "semi;colon", '"quoted"'])
def test_a_key_is_short_and_plain(shared: Site, key: str) -> None:
    refused = submit(shared, key)
    assert refused.status == 400
    assert "header Idempotency-Key" in refused.json["error"]
    assert shared.rows() == []


# The first group is committed when it has three submissions. Then the daemon dies.
DIES_AFTER_COMMIT = """
import os, pathlib, signal, sys
from metasched.daemon.commit_group import CommitGroup
from metasched.db.ledger import Ledger
add, close, marker = Ledger.add_to_group, CommitGroup.close, pathlib.Path({marker!r})
submissions = 0

def add_and_close(self, steps, new_jobs=(), *more):
    global submissions
    add(self, steps, new_jobs, *more)
    submissions += bool(new_jobs)

def close_and_die(self):
    if marker.exists() or not submissions:
        close(self)
    elif submissions == 3:
        close(self)
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def join(self, *arguments):
    joined = original_join(self, *arguments)
    self.close()
    return joined

original_join, CommitGroup.add = CommitGroup.add, join
Ledger.add_to_group, CommitGroup.close = add_and_close, close_and_die
sys.argv = sys.argv[1:]
from metasched.cli import main
sys.exit(main())
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A site over SQLite or PostgreSQL; its daemon is not running yet."""
    site = Site(tmp_path)
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("postgresql_server")
        site.url = server.create()
    site.configure()
    try:
        yield site
    finally:
        site.close()


def test_a_daemon_dies_between_commit_and_answers(either: Site) -> None:
    """Three clients repeat their requests; the next daemon returns the jobs that were stored."""
    site, script, run_log = either, either.folder / "dies.py", either.folder / "ran"
    script.write_text(DIES_AFTER_COMMIT.format(marker=str(either.folder / "died")))
    site.before = (sys.executable, str(script))
    site.start()
    dying = site._daemon
    assert dying is not None
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                subprocess.Popen(
                    [
                        *(COMMAND, "submit", "--parsable", "-o", "/dev/null"),
                        *("--wrap", f"echo {name} >> '{run_log}'"),
                    ],
                    env=site.environment,
                    cwd=site.folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for name in "abc"
        ]
        assert dying.wait(60) == -9
        site.start()
        answers = [client.communicate(timeout=60) for client in clients]
    assert [
        (client.returncode, errors) for client, (_, errors) in zip(clients, answers, strict=True)
    ] == [(0, "")] * 3
    rows = site.until_ended()
    assert sorted(row["job"] for row in rows) == sorted(int(output) for output, _ in answers)
    assert [row["state"] for row in rows] == ["completed"] * 3
    assert sorted(run_log.read_text().split()) == ["a", "b", "c"]
    site.stop()
    site.replayed()


def test_documented_paths_have_a_version(shared: Site) -> None:
    socket = shared.folder / "ms.sock"
    for path in ("/jobs", "/clusters/native", "/openapi.json", "/licences?limit=1"):
        plain, versioned = call(socket, "GET", path), call(socket, "GET", f"/v1{path}")
        assert (plain.status, plain.content) == (versioned.status, versioned.content)
    assert call(socket, "GET", "/v1/ready").status == 200
    for path in ("/v2/jobs", "/v10/jobs", "/v1", "/v2"):
        refused = call(socket, "GET", path)
        assert (refused.status, refused.json) == (
            404,
            {"error": f"no such version of the API, {path}; use /v1/"},
        )
    for path in ("/v1/v1/jobs", "/v1//jobs", "/v/jobs", "/v1x/jobs", "/v1/../v1/jobs"):
        assert call(socket, "GET", path).status == 404, path


def test_a_daemon_takes_every_example_of_its_reference(site: Site) -> None:
    tcp = f'[tcp]\nlisten = "127.0.0.1:{free_port()}"\n'
    site.configure(extra=tcp, clusters=f'{TWO_LOCAL}[[licence]]\nname = "left"\ntotal = 30\n')
    site.start()
    socket = site.folder / "ms.sock"
    document = call(socket, "GET", "/v1/openapi.json").json
    taken = set[str]()
    for path, operations in document["paths"].items():
        body = operations.get("post", {}).get("requestBody")
        if body is None:
            continue
        example = json.dumps(body["content"]["application/json"]["example"])
        example = example.replace("100000017", "1")  # the first job, of the first example
        content = json.loads(example)
        if "until" in content:  # a time that would be over one day
            content["until"] = time.time() + 7 * 86400.0
        if "expected" in content:  # the version of the policy that is in force
            content["expected"] = call(socket, "GET", "/v1/policy").json["version"]
        target = path.format(name="left", action="hold")
        answer = call(socket, "POST", f"/v1{target}", content)
        assert answer.status == 200, (path, answer.content)
        taken.add(path)
    assert {"/jobs", "/jobs/modify", "/reservations", "/series", "/tokens"} <= taken
    site.stop()
