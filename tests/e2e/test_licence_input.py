"""Licence mistakes of users, admins and servers: each gives one line and changes nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TWO_LOCAL, Site

# The daemon queries the server once; the commands of the tests query it again.
SERVER = """
[[licence_server]]
name = "main"
kind = "command"
command = ["/bin/cat", "{answer}"]
interval = "1h"
[[licence]]
name = "remote"
server = "main"
stale_after = "2h"
[[licence]]
name = "matlab"
total = 4
[[licence]]
name = "ansys"
total = 2
clusters = ["left"]
"""
GOOD = {"name": "remote", "total": 2, "used": 0}


def says(site: Site, text: str) -> Path:
    answer = site.folder / "answer"
    new = answer.with_suffix(".new")
    new.write_text(text)
    return new.rename(answer)


@pytest.fixture(scope="module")
def licensed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    new_site = Site(tmp_path_factory.mktemp("licences"))
    answer = says(new_site, json.dumps({"licences": [GOOD]}))
    new_site.configure(TWO_LOCAL, SERVER.format(answer=answer))
    try:
        new_site.start()
        new_site.until(lambda: standing(new_site)["remote"]["free"] == 2)
        yield new_site
    finally:
        new_site.close()


def standing(site: Site) -> dict[str, dict[str, Any]]:
    return {row["licence"]: row for row in site.json("licences")}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-L", "matlb"], 3, "no licence 'matlb' is known; did you mean matlab?"),
        (["-L", "MATLAB:2,gauss"], 3, "no licence 'MATLAB' is known"),
        (["-L", "matlab,ansys:3"], 3, "3 of licence ansys, there are 2; ask for at most 2"),
        (["-L", "matlab:2147483647"], 3, "2147483647 of licence matlab, the maximum is"),
        (["-L", "remote:3"], 3, "3 of licence remote, there are 2"),
        (["-L", "ansys", "--cluster", "right"], 3, "licence ansys cannot be used there"),
        (["-L", "matlab:0"], 2, '"0" is no number from 1'),
        (["-L", "matlab:-1"], 2, '"-1" is no number from 1'),
        (["-L", "matlab:1.5"], 2, '"1.5" is no number from 1'),
        (["-L", "matlab:٢"], 2, "is no number from 1"),
        (["-L", "matlab:"], 2, "write NAME or NAME:N"),
        (["-L", "matlab:99999999999"], 2, "99999999999"),
        (["-L", "matlab,ansys,matlab:2"], 2, 'licence "matlab" is there twice'),
        (["-L", "matlab,,ansys"], 2, "write NAME or NAME:N"),
        (["-L", ""], 2, "an empty word, --licence"),
        (["-L", "matlab; rm -rf /"], 3, "no licence 'matlab; rm -rf /' is known"),
        (["--licenze", "matlab"], 2, "did you mean --licen"),
    ],
)
def test_what_no_job_can_ask_for(
    licensed: Site, arguments: list[str], code: int, message: str
) -> None:
    assert message in licensed.error("submit", *arguments, "--wrap", "true", code=code)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["set", "matlb", "3"], 5, "did you mean matlab?"),
        (["set", "matlab", "--", "-3"], 2, "-3"),
        (["set", "matlab", "1e3"], 2, "or `configured`"),
        (["set", "matlab", "99999999999"], 2, "99999999999"),
        (["set", "matlab", ""], 2, "or `configured`"),
        (["set", "matlab"], 2, "TOTAL"),
        (["sett", "matlab", "3"], 2, "sett"),
        (["release"], 2, "JOB"),
        (["release", "all"], 2, "all"),
        (["release", "7"], 5, "no job 7"),
        (["probe", "mian"], 2, 'no licence_server "mian"'),
        (["probe", "--from", "absent"], 1, "absent"),
    ],
)
def test_what_no_operator_can_mean(
    licensed: Site, arguments: list[str], code: int, message: str
) -> None:
    assert message in licensed.error("licence", *arguments, code=code)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("4 Lizenzen, davon 2 in Benutzung", "cannot be read"),
        ("\x00\x1b[2J" * 9, "cannot be read"),
        ("9" * 2**23 + " ", "MiB"),
        ('{"licences": [{"name": "remote", "total": -2, "used": 0}]}', ">= 0"),
        ('{"licences": [{"name": "remote", "total": 2, "used": 1e99}]}', "cannot be read"),
        ('{"licences": [{"name": "remote", "total": 2, "used": 0, "frei": 2}]}', "frei"),
        ("", "cannot be read"),
    ],
)
def test_an_answer_that_is_none(licensed: Site, answer: str, message: str) -> None:
    says(licensed, answer)
    out = licensed.run("licence", "probe", "main", code=1).stdout
    assert out.startswith("main: ")
    assert out.count("\n") == 1
    assert out.rstrip("\n").isprintable()
    assert message in out


def test_and_nothing_has_changed(licensed: Site) -> None:
    """Runs after all tests above."""
    assert licensed.json("status", "--all") == []
    rows = standing(licensed)
    assert {name: (row["total"], row["free"], row["ours"]) for name, row in rows.items()} == {
        "ansys": (2, 2, 0),
        "matlab": (4, 4, 0),
        "remote": (2, 2, 0),
    }


def test_an_answer_from_the_future_frees_nothing(licensed: Site) -> None:
    """A restarted daemon queries its servers again."""
    says(licensed, json.dumps({"observed": time.time() + 9999, "licences": [GOOD]}))
    licensed.stop()
    licensed.start()
    row = licensed.until(lambda: refused(licensed))
    assert "future" in row["breaker"]["words"]
    assert standing(licensed)["remote"]["free"] is None
    assert standing(licensed)["remote"]["state"].startswith("unknown: ")


def refused(site: Site) -> Any:
    [row] = site._client.licence_servers()
    return row if row["breaker"]["failures"] else None
