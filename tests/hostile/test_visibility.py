"""A stranger against all routes: what another account owns answers as what does not exist."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.e2e.multi_user_site import MultiUserSite, gridengine_tables, running_site
from tests.harness import gridengine
from tests.harness.accounts import KEEPER, A, B
from tests.harness.accounts import make as make_accounts
from tests.harness.http_calls import UnixConnection

pytestmark = pytest.mark.root
SECRET = "swordfish"  # in the names of all that the owner, account a, has
TOKENS = '[tcp]\nlisten = "127.0.0.1:0"\nurl = "https://127.0.0.1:1"\n'
LICENCES = '[[licence]]\nname = "solver"\ntotal = 9\n'
Factory = Callable[["Owned"], str]


class Owned:
    """What account a owns on a site where account b is a stranger."""

    def __init__(self, site: MultiUserSite) -> None:
        self.site, self.owner = site, site.by(A)
        self.count = itertools.count()

    def send(self, account: str, method: str, target: str, body: object = None) -> tuple[int, str]:
        """Return status and text of the answer to an account."""
        connection = UnixConnection(self.site.state / "ms.sock", timeout=60)
        os.seteuid(pwd.getpwnam(account).pw_uid)  # which the kernel reports to the daemon
        try:
            connection.connect()
        finally:
            os.seteuid(0)
        with contextlib.closing(connection):
            content = None if body is None else json.dumps(body)
            connection.request(method, target, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()

    def job(self) -> str:
        return str(self.owner.submit("--hold", "-J", SECRET, "-o", "/dev/null", "--wrap", "true"))

    def reservation(self) -> str:
        start = ("--start", f"+{60 + 10 * next(self.count)}m")  # none overlaps another
        made = self.owner.json("reserve", "--size", "1", "--duration", "5m", *start)
        return str(made["reservation"])

    def series(self) -> str:
        every = ("--every", "03:00", "--until", "+2d")
        return str(self.owner.json("reserve", "--size", "1", "--duration", "5m", *every)["entry"])

    def token(self) -> str:
        return str(json.loads(self.send(A, "POST", "/tokens", {"seconds": 600})[1])["id"])


def of_site(value: str) -> Factory:
    """Return the factory of an object that has no owner."""
    return lambda _: value


# of each path parameter, by path
FACTORIES: dict[tuple[str, str], Factory] = {
    ("/jobs/{job}/story", "job"): Owned.job,
    ("/jobs/{job}/output", "job"): Owned.job,
    ("/jobs/{job}/explain", "job"): Owned.job,
    ("/jobs/{action}", "action"): of_site("cancel"),  # its body names jobs
    ("/reservations/{id}/cancel", "id"): Owned.reservation,
    ("/series/{id}/cancel", "id"): Owned.series,
    ("/tokens/{id}/revoke", "id"): Owned.token,
    ("/clusters/{name}/drain", "name"): of_site("none"),
    ("/clusters/{name}/resume", "name"): of_site("none"),
    ("/licences/{name}/history", "name"): of_site("solver"),
    ("/licences/{name}/total", "name"): of_site("solver"),
    ("/policy/versions/{number}", "number"): of_site("1"),
    ("/reports/{kind}", "kind"): of_site("usage"),
}
OWNED = {factory for factory in FACTORIES.values() if factory.__qualname__.startswith("Owned.")}
# Query parameters that name what has an owner; `user` names an account.
QUERIES: dict[str, Factory] = {"job": Owned.job, "user": of_site(A)}


def submission(**fields: object) -> dict[str, Any]:
    job = {"script": "s", "environment": "e", "directory": "/", "output": "/dev/null", "held": True}
    return {"jobs": [job | fields], "scripts": {"s": "#!/bin/sh\n"}, "environments": {"e": {}}}


# Bodies that name what has an owner, by route. No other route has such a body.
BODIES: dict[str, list[tuple[Factory, Callable[[str], object]]]] = {
    "POST /jobs": [
        (Owned.reservation, lambda id: submission(reservation=int(id), time_limit=60.0)),
        (Owned.reservation, lambda id: submission(reservation=int(id), account="x")),
        (Owned.job, lambda id: submission(dependency=f"afterok:{id}")),
        (Owned.job, lambda id: submission(dependency=f"aftercorr:{id}", array="1-2")),
    ],
    "POST /jobs/modify": [
        (Owned.job, lambda id: {"choice": {"jobs": [id]}, "changes": {"name": "x"}}),
        (of_site(A), lambda name: {"choice": {"user": name}, "changes": {"name": "x"}}),
    ],
    "POST /jobs/{action}": [
        (Owned.job, lambda id: {"jobs": [id]}),
        (Owned.job, lambda id: {"jobs": [f"{id}_0"]}),
        (of_site(A), lambda name: {"user": name}),
    ],
    "POST /licences/release": [(Owned.job, lambda id: {"jobs": [id]})],
    "POST /reservations": [
        (
            of_site(A),
            lambda name: {"least": 1, "most": 1, "shortest": 60, "longest": 60} | {"user": name},
        )
    ],
    "POST /series": [
        (
            of_site(A),
            lambda name: (
                {"every": "03:00", "until": 4e9, "duration": 60, "least": 1, "most": 1}
                | {"user": name}
            ),
        )
    ],
}
WITHOUT_OWNER = {
    *("POST /tokens", "POST /clusters/{name}/drain", "POST /licences/{name}/total"),
    *("POST /policy/shadow", "POST /policy/activate", "POST /policy/undo"),
}
WITHOUT_ANSWER = {"GET /events?job"}  # the owner has no events of such an object, either


@pytest.fixture(scope="module")
def owned(common_folder: Path) -> Iterator[Owned]:
    if (reason := gridengine.missing()) is not None:
        require("gridengine", reason)
    with gridengine.Cell(common_folder / "visibility-cell") as cell:
        make_accounts(KEEPER)
        cell.run("qconf", "-au", KEEPER, "arusers")  # who may make reservations
        clusters, programs = gridengine_tables(cell)
        tables = TOKENS + LICENCES + clusters
        folder = common_folder / "visibility"
        with running_site(folder, tables, programs, inside=cell.inside) as site:
            yield Owned(site)


@dataclass(frozen=True)
class Question:
    """A request of a stranger that names an object."""

    label: str
    factory: Factory  # of the object
    method: str
    target: str  # with {} in the place of the object's id
    body: Callable[[str], object] | None = None

    def ask(self, owned: Owned, account: str, id: str) -> tuple[int, int, str]:
        """Return status, size and text of the answer, with # in the place of the id."""
        body = None if self.body is None else self.body(id)
        status, text = owned.send(account, self.method, self.target.format(id), body)
        return status, len(text), text.replace(id, "#")


def questions(document: dict[str, Any], owned: Owned) -> Iterator[Question]:
    """Yield the questions about all routes.

    An assertion fails for a route of the document that the tables above do not know.
    """
    for path, operations in document["paths"].items():
        target, in_path = path, None
        for name in re.findall(r"{(\w+)}", path):
            assert (path, name) in FACTORIES, f"{path}: no factory of {name}; add one"
            factory = FACTORIES[path, name]
            in_path = factory if factory in OWNED else in_path
            target = target.replace(f"{{{name}}}", "{}" if factory in OWNED else factory(owned))
        for method, operation in operations.items():
            route = f"{method.upper()} {path}"
            if in_path is not None:
                yield Question(route, in_path, method.upper(), target)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "query" and (name := parameter["name"]) in QUERIES:
                    label = f"{route}?{name}"
                    yield Question(label, QUERIES[name], method.upper(), f"{target}?{name}={{}}")
            if "requestBody" in operation:
                assert (route in BODIES) != (route in WITHOUT_OWNER), f"{route}: no body; add some"
                for number, (factory, body) in enumerate(BODIES.get(route, ())):
                    yield Question(f"{route} {number}", factory, method.upper(), target, body)


def absent_like(value: str) -> str:
    """Return an id, or a name of an account, that does not exist and is as long."""
    return "9" * len(value) if value.isdecimal() else "q" * len(value)


@pytest.mark.slow("makes twenty reservations in a cell")
def test_what_another_account_owns_answers_as_what_does_not_exist(owned: Owned) -> None:
    for _ in range(10):  # so that ids have two digits, and 99 is none
        owned.reservation()
        owned.job()
    document = json.loads(owned.send(B, "GET", "/openapi.json")[1])
    differing, asked = [], 0
    for question in questions(document, owned):
        value = question.factory(owned)
        absent = absent_like(value)
        assert absent != value
        answer = question.ask(owned, B, value)
        expected = question.ask(owned, B, absent)
        asked += 1
        if answer != expected:
            differing.append((question.label, answer, expected))
        if question.factory in OWNED and question.label not in WITHOUT_ANSWER:
            # the object exists: its owner gets another answer
            assert question.ask(owned, A, value) != expected, question.label
    assert differing == []
    assert asked >= 20


def test_a_route_without_a_factory_is_found(owned: Owned) -> None:
    new_route: dict[str, Any] = {"paths": {"/secrets/{id}": {"get": {}}}}
    with pytest.raises(AssertionError, match="no factory of id"):
        list(questions(new_route, owned))


def test_no_listing_names_the_owner_or_what_he_has(owned: Owned) -> None:
    for make in (Owned.job, Owned.reservation, Owned.series, Owned.token):
        make(owned)
    document = json.loads(owned.send(B, "GET", "/openapi.json")[1])
    for path in document["paths"]:
        if "get" not in document["paths"][path]:
            continue
        target = path
        for name in re.findall(r"{(\w+)}", path):
            if (factory := FACTORIES[path, name]) in OWNED:
                break
            target = target.replace(f"{{{name}}}", factory(owned))
        else:
            _, text = owned.send(B, "GET", target)
            assert SECRET not in text, target
            assert not re.search(rf"\b{A}\b", text), (target, text[:500])
