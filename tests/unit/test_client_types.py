"""Types of the client: those of the API's answers, and of use in a user's script."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_args, get_origin
from unittest.mock import MagicMock

import pytest
from fastapi.routing import APIRoute
from typing_extensions import is_typeddict

from metasched import api
from metasched.api.app import create_app
from metasched.client import job_answers, site_answers
from metasched.client.client import Client
from metasched.client.connection import BadRequest

# arguments of the methods, by name
VALUES: dict[str, Any] = {
    "submission": {},
    "action": "cancel",
    "jobs": ["1"],
    "job": "1",
    "changes": {},
    "cluster": "alpha",
    "name": "matlab",
    "total": 1,
    "request": {},
    "reservation_id": 1,
    "series_id": 1,
    "lifetime": 60.0,
    "kind": "use",
    "by": ["user"],
    "number": 1,
    "text": "",
    "file": "",
}
WITHOUT_ANSWER = {"lowest_job", "revoke_token"}
SCRIPT = """
from metasched.client.client import Client
from metasched.client.site_answers import ClusterRow

client = Client("ms.sock")
free: dict[str, int] = {row["cluster"]: row["cpus"] - row["used"] for row in client.clusters()}
for task in client.jobs(state="running"):
    print(task["name"].upper(), task["exit_code"] or 0)
    task["nmae"]  # error
    task["native_id"].upper()  # error
[accepted] = client.submit({"jobs": []})
print(accepted["warnings"][0].upper(), client.explain("17")["clusters"][0]["eligible"])
print(client.health()["version"] + client.policy()["values"]["pull"])
print(client.reserve({})["start"], client.free_windows({})[0]["cluster"])
client.clusters()["alpha"]  # error


def is_up(row: ClusterRow) -> bool:
    return row["state"] == "up"


print([row["load"][0] for row in client.clusters() if is_up(row)])
print(client.shares()[0]["places"])  # error
"""


class Requested(Exception):
    """A request that the client would make."""


def request_of(method: str) -> tuple[str, str]:
    """Return verb and path of the first request of a client's method."""

    def record(verb: str, path: str, *_: object) -> None:
        raise Requested(verb, path)

    client = Client("ms.sock")
    client._connection = MagicMock(request=record)
    parameters = inspect.signature(getattr(client, method)).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    with pytest.raises(Requested) as raised:
        getattr(client, method)(*(VALUES[parameter.name] for parameter in needed))
    verb, path = raised.value.args
    return verb, path


def methods() -> Iterator[str]:
    for name, member in vars(Client).items():
        if inspect.isfunction(member) and not name.startswith("_") and name not in WITHOUT_ANSWER:
            yield name


def declared(method: str) -> object:
    """Return the type of an answer, without the cursor of `events`."""
    names = {**vars(job_answers), **vars(site_answers), "Any": Any, "Sequence": Sequence}
    text = inspect.signature(getattr(Client, method)).return_annotation
    hint = eval(text, names)
    return get_args(hint)[0] if get_origin(hint) is tuple else hint


def parts(model: Any) -> Iterator[object]:
    """Yield a route's type, those that it may be instead, and the lists in it."""
    alternatives = get_args(model) if isinstance(model, types.UnionType) else (model,)
    for alternative in alternatives:
        yield alternative
        if is_typeddict(alternative):
            yield from typing.get_type_hints(alternative).values()


@pytest.fixture(scope="module")
def routes() -> Sequence[APIRoute]:
    daemon = MagicMock()
    daemon.settings.requests.max_answers = daemon.settings.requests.max_bytes = 1 << 30
    of_app = create_app(daemon).routes  # the only one is that of the daemon's health
    modules = [import_module(f"{api.__name__}.{m.name}") for m in iter_modules(api.__path__)]
    of_routers = [route for m in modules if hasattr(m, "router") for route in m.router.routes]
    return [route for route in (*of_app, *of_routers) if isinstance(route, APIRoute)]


@pytest.mark.parametrize("method", list(methods()))
def test_a_method_has_the_type_of_its_route(method: str, routes: Sequence[APIRoute]) -> None:
    verb, path = request_of(method)
    [route, *_] = [r for r in routes if verb in (r.methods or ()) and r.path_regex.match(path)]
    answer = declared(method)
    assert answer in list(parts(route.response_model))
    row = get_args(answer)[0] if get_origin(answer) is list else answer
    assert is_typeddict(row)


def test_a_dry_run_makes_no_reservation() -> None:
    """Programs that were written before `free_windows` asked for it so."""
    with pytest.raises(BadRequest, match="free_windows"):
        Client("ms.sock").reserve({"dry_run": True})


def test_a_checker_finds_the_mistakes_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    wrong = {number for number, line in enumerate(SCRIPT.splitlines(), 1) if "# error" in line}
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    error_lines = {
        int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line
    }
    assert error_lines == wrong, checked.stdout + checked.stderr
