"""Requests drawn from the OpenAPI document cause no defect; a stranger reaches no job of others.

Three accounts call a daemon in site mode by its unix socket: the owner of jobs, a stranger, and an
operator. Over TCP come the owner and a running job by their tokens. Others come without a valid
credential: with none, with a forged, an expired and a revoked token, with that of a job that has
ended or never was, and with one for metrics. `--hypothesis-profile=explore` draws far more (`make
chaos`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, running_site
from tests.harness.accounts import KEEPER, OPERATOR, A, B
from tests.harness.http_calls import UnixConnection
from tests.harness.ports import free_port

pytestmark = pytest.mark.root

LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
VALID = ("owner's token", "running job")  # roles over TCP
REVOKE = "/tokens/{id}/revoke"
# in a job: leaves its token, as a whole, in the file `token.ID`
KEEP_TOKEN = 'id=$METASCHED_JOB_ID; cp "$METASCHED_JOB_TOKEN_FILE" $id && mv $id token.$id'
SECRET = "swordfish"  # in the name of each job of the owner
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = max(hypothesis.settings().max_examples // 25, 2)  # of each route and role
MODES = st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE])


@dataclass(frozen=True)
class Victim:
    """A site, the schema of its API, and an owner with a held and an ended job."""

    site: MultiUserSite
    jobs: tuple[int, int]
    port: int
    credentials: dict[str, str]  # the value of `Authorization`, by role; "": none

    @cached_property
    def schema(self) -> Any:
        status, _, content = self.send(A, "GET", "/openapi.json", {}, None)
        assert status == 200
        return schemathesis.openapi.from_dict(json.loads(content))

    def send(
        self, account: str, method: str, target: str, headers: dict[str, str], body: Any
    ) -> tuple[int, dict[str, list[str]], bytes]:
        """Send a request as an account, or over TCP in a role of `credentials`.

        Return status, headers and content of the response.
        """
        connection: http.client.HTTPConnection
        if account in self.credentials:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            headers = {name: value for name, value in headers.items() if name != "Authorization"}
            if credential := self.credentials[account]:
                headers["Authorization"] = credential
        else:
            connection = UnixConnection(self.site.state / "ms.sock", timeout=60)
            os.seteuid(pwd.getpwnam(account).pw_uid)  # which the kernel reports to the daemon
            try:
                connection.connect()
            finally:
                os.seteuid(0)
        with contextlib.closing(connection):
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            fields: dict[str, list[str]] = {}
            for name, value in response.getheaders():
                fields.setdefault(name.lower(), []).append(value)
            return response.status, fields, response.read()

    def renew_token(self) -> None:
        """Give the owner another token for calls over TCP."""
        token = self.site.by(A).run("token", "create").stdout.strip()
        self.credentials["owner's token"] = f"Bearer {token}"

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the jobs as the owner sees them."""
        targets = "&".join(f"job={job}" for job in self.jobs)
        status, _, content = self.send(A, "GET", f"/jobs?{targets}", {}, None)
        assert status == 200, content
        rows: list[dict[str, Any]] = json.loads(content)
        return rows


@pytest.fixture(scope="module")
def victim(common_folder: Path) -> Iterator[Victim]:
    port, claims = free_port(), common_folder / "schema-claims"
    claims.mkdir()
    shutil.chown(claims, KEEPER)
    address = f"127.0.0.1:{port}"
    tables = (
        f'[tcp]\nlisten = "{address}"\nurl = "https://{address}"\n{LOCAL}fence_dir = "{claims}"\n'
    )
    with running_site(common_folder / "schema", tables, f"[cluster.left]\n{SUPERVISE}") as site:
        owner = site.by(A)
        common = ("--name", SECRET, "-o", "/dev/null", "--wrap", "true")
        held, ended = owner.submit("--hold", *common), owner.submit(*common)
        owner.until_ended(ended)
        yield Victim(site, (held, ended), port, credentials_of(site))


def credentials_of(site: MultiUserSite) -> dict[str, str]:
    """Return what callers over TCP show; it is valid in the roles `VALID`."""
    owner, operator = site.by(A), site.by(OPERATOR)
    hour = ("-t", "60", "-o", "/dev/null", "--wrap")
    running, ended = (
        owner.submit(*hour, f"{KEEP_TOKEN}; {last}") for last in ("exec sleep 3600", "true")
    )
    owner.until_ended(ended)
    of_jobs = [site.folder / A / f"token.{job}" for job in (running, ended)]
    site.until(of_jobs[0].exists)
    revoked = owner.json("token", "create")
    owner.run("token", "revoke", str(revoked["id"]))
    tokens = {
        "owner's token": owner.run("token", "create").stdout.strip(),
        "running job": of_jobs[0].read_text(),
        "ended job": of_jobs[1].read_text(),
        "forged": "ms_" + "0" * 43,
        "expired": owner.run("token", "create", "--expires", "1").stdout.strip(),
        "revoked": revoked["token"],
        "no job": f"ms-0123456789-1-1.0.{'0' * 32}.{'0' * 64}",  # no job made it
        "metrics": operator.run("token", "create", "--metrics").stdout.strip(),
    }
    time.sleep(1.0)  # the expired one
    return {"anonymous": "", **{role: f"Bearer {token}" for role, token in tokens.items()}}


def aimed(value: Any, job: int) -> Any:
    """Return a drawn value with the owner's job wherever jobs are named."""
    if isinstance(value, list):
        return [aimed(element, job) for element in value]
    if not isinstance(value, dict):
        return value
    names_jobs = isinstance(value.get("jobs"), list) and "scripts" not in value
    return {key: aimed(element, job) for key, element in value.items()} | (
        {"jobs": [str(job)], "user": None, "state": None} if names_jobs else {}
    )


def call_drawn(
    victim: Victim, account: str, data: st.DataObject, operation: Any
) -> tuple[int, bytes]:
    """Send a drawn request, check the response, and return its status and content."""
    case = data.draw(operation.as_strategy(generation_mode=data.draw(MODES)))
    job = data.draw(st.sampled_from(victim.jobs))
    if data.draw(st.booleans()):
        case.body = aimed(case.body, job)
        case.path_parameters = {
            name: str(job) if name in ("job", "id") else value
            for name, value in (case.path_parameters or {}).items()
        }
    if operation.path == "/jobs/wait":
        case.query = {**(case.query or {}), "timeout": 0}
    arguments = case.as_transport_kwargs(base_url="http://localhost")
    parameters = ("method", "url", "headers", "params", "data", "json", "files", "cookies")
    try:
        prepared = requests.Request(
            **{name: value for name, value in arguments.items() if name in parameters}
        ).prepare()
        fields = {name: str(value) for name, value in prepared.headers.items()}
        status, headers, content = victim.send(
            account, str(prepared.method), prepared.path_url, fields, prepared.body
        )
    except (UnicodeError, ValueError, http.client.InvalidURL):  # cannot be written as HTTP
        hypothesis.reject()
    response = schemathesis.Response(
        status, headers, content, request=prepared, elapsed=0.0, verify=False
    )
    case.validate_response(response, checks=CHECKS)
    return status, content


def check_operation(victim: Victim, callers: tuple[str, ...], operation: Any) -> None:
    """Send drawn requests to a route, each as one of the accounts or roles."""

    @hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def answer_as_documented(data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(callers))
        _, content = call_drawn(victim, caller, data, operation)
        if caller == B:
            assert SECRET.encode() not in content
            assert A.encode() not in content

    answer_as_documented()


ROLES = {"owner": (A,), "stranger": (B,), "operator": (OPERATOR,), "token": VALID}


@pytest.mark.slow("boots a site, and draws requests to each route in each role")
@pytest.mark.parametrize("callers", list(ROLES.values()), ids=list(ROLES))
def test_every_drawn_request_is_answered_as_documented(
    victim: Victim, callers: tuple[str, ...]
) -> None:
    before = victim.rows()
    for result in victim.schema.get_all_operations():
        check_operation(victim, callers, result.ok())
        if result.ok().path == REVOKE:  # its own, too: a drawn number may be that of the token
            victim.renew_token()
    if callers == (B,):
        assert victim.rows() == before
    for role in VALID:  # so all were valid; no request has ended that job
        assert victim.send(role, "GET", "/health", {}, None)[0] == 200, role


def test_no_route_answers_without_a_valid_credential(victim: Victim) -> None:
    """Neither without a token, nor with one of another use, nor with one that is over."""
    before = victim.rows()
    roles = sorted(victim.credentials.keys() - {*VALID})

    def refuse(operation: Any) -> None:
        @hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(st.data(), st.sampled_from(roles))
        def refused(data: st.DataObject, role: str) -> None:
            status, content = call_drawn(victim, role, data, operation)
            if role == "metrics" and operation.path == "/metrics":
                return
            assert status in (401, 403), (role, operation.path, content)
            assert SECRET.encode() not in content
            assert A.encode() not in content

        refused()

    for result in victim.schema.get_all_operations():
        refuse(result.ok())
    for role in roles:  # each of them, on routes that read and that change
        for method, target in (("GET", "/jobs"), ("POST", "/jobs/cancel"), ("GET", "/events")):
            status, _, content = victim.send(role, method, target, {}, None)
            assert status in (401, 403), (role, target, content)
    assert victim.rows() == before


def test_a_stranger_reaches_no_route_of_a_job(victim: Victim) -> None:
    """Call each route with the owner's ids, and with bodies that the owner could send."""
    before = victim.rows()
    json_type = {"Content-Type": "application/json"}
    for job in victim.jobs:
        selection = {"jobs": [str(job)], "user": None, "state": None}
        requests_of_jobs = [
            *(("GET", f"/jobs/{job}/{view}", None) for view in ("story", "explain", "output")),
            *(("GET", target, None) for target in (f"/jobs?job={job}", f"/jobs/wait?job={job}")),
            *(
                ("POST", f"/jobs/{action}", selection)
                for action in ("cancel", "hold", "release", "requeue")
            ),
            ("POST", "/jobs/modify", {"choice": selection, "changes": {"name": "mine"}}),
        ]
        for method, target, body in requests_of_jobs:
            content = None if body is None else json.dumps(body)
            status, _, answer = victim.send(B, method, target, json_type, content)
            assert status == 404, (target, answer)
            assert SECRET.encode() not in answer
            assert A.encode() not in answer
    assert victim.rows() == before
