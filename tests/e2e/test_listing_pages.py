"""Pages of shares, limits, licences, reservations and tokens, over HTTP and by the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metasched.paths import NEXT_CURSOR_HEADER
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, running_site
from tests.harness.accounts import OPERATOR, A, B, as_
from tests.harness.http_calls import Response, call

USERS = [f"user{number}" for number in range(7)]
TABLES = f"""
[fair_share]
users = {{ {", ".join(f"{user} = {weight}" for weight, user in enumerate(USERS, 1))} }}
[fair_share.shares.theory]
parent = "physics"
users = {{ user0 = 2, user3 = 1 }}
[fair_share.shares.physics]
users = {{ user0 = 1 }}
[limits]
open_tasks = 100
running = 10
[limits.each_user]
open_tasks = 30
processors = 20
{"".join(f"[limits.users.{user}]{chr(10)}open_tasks = 5{chr(10)}" for user in USERS)}
{"".join(f"[[licence]]{chr(10)}name = {name!r}{chr(10)}total = 2{chr(10)}" for name in "dbaec")}
"""
LISTINGS = ("shares", "limits", "licences", "reservations", "tokens")
BY_KEY = {"shares": 3, "limits": 3, "licences": 1}


def key_cursor(*texts: object) -> str:
    return urlsafe_b64encode(json.dumps(texts).encode()).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("listed"))
    site.configure(extra="", clusters=f"{TWO_LOCAL}{TABLES}")
    try:
        site.start()
        site.run("submit", "--hold", "-L", "a", "-o", "/dev/null", "--wrap", "true")
        yield site
    finally:
        site.close()


def get(site: Site, target: str) -> Response:
    return call(site.folder / "ms.sock", "GET", target)


def pages(site: Site, listing: str, limit: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each page."""
    target = f"/{listing}?limit={limit}"
    while True:
        page = get(site, target)
        assert page.status == 200, page.content
        yield page.json
        if (cursor := page.headers.get(NEXT_CURSOR_HEADER.lower())) is None:
            return
        target = f"/{listing}?limit={limit}&cursor={cursor}"


@pytest.mark.parametrize("listing", sorted(BY_KEY))
@pytest.mark.parametrize("limit", [1, 4, 10_000])
def test_pages_have_each_row_once(listed: Site, listing: str, limit: int) -> None:
    whole = get(listed, f"/{listing}")
    assert NEXT_CURSOR_HEADER.lower() not in whole.headers
    assert len(whole.json) >= 5
    portions = list(pages(listed, listing, limit))
    assert {len(portion) for portion in portions[:-1]} <= {limit}
    assert 0 < len(portions[-1]) <= limit
    rows = [row for portion in portions for row in portion]
    if listing == "shares":
        names = [(row["account"] or "", row["user"]) for row in rows if row["user"] is not None]
        assert names == sorted(names)
        rows.sort(key=lambda row: row["place"] or 0)
    assert rows == whole.json


@pytest.mark.parametrize("listing", sorted(BY_KEY))
def test_commands_follow_the_cursor(
    listed: Site, listing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metasched.client import client

    monkeypatch.setattr(client, "PAGE_SIZE", 2)
    rows = getattr(client.Client(listed.folder / "ms.sock"), listing)()
    assert rows == get(listed, f"/{listing}").json == listed.json(listing)


def test_an_account_that_appears_between_two_pages_moves_no_row(listed: Site) -> None:
    """Keys are positions that stay: the limit of a new user goes to its place."""
    first = get(listed, "/limits?limit=10")
    cursor = first.headers[NEXT_CURSOR_HEADER.lower()]
    following = get(listed, f"/limits?limit=1&cursor={cursor}").json
    assert following == [get(listed, "/limits").json[10]]
    # the row of the cursor need not exist any more
    between = key_cursor("user", "user2", "open_tasks.")
    [row] = get(listed, f"/limits?limit=1&cursor={between}").json
    assert (row["name"], row["limit"]) == ("user2", "processors")


HOSTILE = [
    *("", "x", "-1", "1.2.3.4", "%00", "%D9%A3", "%F0%9F%98%80", "=", "A" * 60_000),
    key_cursor(*"abcd"),
    urlsafe_b64encode(b'["a","b"').decode(),
    urlsafe_b64encode(b'{"a":"b"}').decode(),
    urlsafe_b64encode(b"[1,2,3]").decode(),
    urlsafe_b64encode(b"[" * 20_000).decode(),
    urlsafe_b64encode(b'["\\ud800","",""]').decode(),
    urlsafe_b64encode(b'["\xff","",""]').decode(),
]


@pytest.mark.parametrize("listing", LISTINGS)
def test_hostile_cursors_and_limits_are_refused(listed: Site, listing: str) -> None:
    cursors = [*HOSTILE, key_cursor(*"ab"), key_cursor(), key_cursor(None)]
    for cursor in cursors:
        refused = get(listed, f"/{listing}?cursor={cursor}")
        assert 400 <= refused.status < 500, (cursor, refused.content)
        assert "\n" not in refused.json["error"]
        assert len(refused.json["error"]) < 500
    for limit in ("0", "-1", "10001", "all", "1e3", "", "9" * 5000):
        refused = get(listed, f"/{listing}?limit={limit}")
        assert refused.status == 422, (limit, refused.content)
    assert get(listed, "/health").status == 200


@pytest.mark.parametrize("listing", sorted(BY_KEY))
def test_a_forged_cursor_only_moves_the_page(listed: Site, listing: str) -> None:
    length = BY_KEY[listing]
    last = key_cursor(*["\U0010ffff"] * length)
    assert get(listed, f"/{listing}?cursor={last}").json == []
    for text in ("", "\0", "'; DROP TABLE task; --"):
        page = get(listed, f"/{listing}?cursor={key_cursor(*[text] * length)}")
        assert len(page.json) == len(get(listed, f"/{listing}").json)


# Two accounts


LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
OWN = f"""
[fair_share]
users = {{ {A} = 2, {B} = 1 }}
[limits.each_user]
open_tasks = 3
running = 1
"""
# a process of an account asks for a page; prints status, rows and cursor
ASK = """
import json, sys
from pathlib import Path
from tests.harness.http_calls import call
answer = call(Path(sys.argv[1]), "GET", sys.argv[2])
cursor = answer.headers.get("metasched-next-cursor")
print(json.dumps([answer.status, answer.json, cursor]))
"""


@pytest.mark.root
def test_a_cursor_of_another_account_shows_nothing_of_it(common_folder: Path) -> None:
    def ask(account: str, target: str) -> tuple[int, Any, str | None]:
        caller: dict[str, Any] = as_(account) | {"cwd": Path(__file__).parents[2]}
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(site.state / "ms.sock"), target],
            capture_output=True,
            text=True,
            check=True,
            **caller,
        )
        status, answer, cursor = json.loads(done.stdout)
        return status, answer, cursor

    site: MultiUserSite
    with running_site(common_folder / "pages", LOCAL + OWN, f"[cluster.left]\n{SUPERVISE}") as site:
        for account in (A, B):
            site.by(account).submit("--hold", "-o", "/dev/null", "--wrap", "true")
        before_all = key_cursor("", "", "")
        for listing, column in (("shares", "user"), ("limits", "name")):
            # the operator's first page ends before the rows of b
            rows: list[dict[str, Any]] = []
            target: str | None = f"/{listing}?limit=1"
            cursors = [before_all]
            while target is not None:
                status, page, cursor = ask(OPERATOR, target)
                assert (status, len(page)) == (200, 1)
                rows += page
                target = f"/{listing}?limit=1&cursor={cursor}" if cursor else None
                cursors += [cursor] if cursor else []
            assert {A, B} <= {row[column] for row in rows}
            for cursor in cursors:
                for account, other in ((A, B), (B, A)):
                    status, page, _ = ask(account, f"/{listing}?cursor={cursor}&limit=50")
                    assert status == 200
                    assert {row[column] for row in page} <= {account}
                    status, refusal, _ = ask(
                        account, f"/{listing}?cursor={cursor}&limit=50&user={other}"
                    )
                    assert status == 403, refusal
            for account in (A, B):
                own = site.by(account).json(listing)
                assert {row[column] for row in own} == {account}
