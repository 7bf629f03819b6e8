"""The environment of a login shell: what remains of the submission, and the script's wrapper."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from metasched.adapters.base import Submission
from metasched.adapters.login_environment import with_login_environment
from metasched.client.environment import exported_environment
from metasched.model.job import Job, Payload
from metasched.paths import NAMED_VARIABLES, drop_in_folder

SCRIPT = """#!/usr/bin/env python3
import os, sys
print(os.environ.get("GIVEN"), os.environ.get("OTHER"), os.environ.get("PROFILE"), sys.argv[1:])
"""


def submission(environment: dict[str, str], login: bool = True, **fields: bool) -> Submission:
    payload = Payload(script=SCRIPT, environment=environment)
    job = Job(id=7, submitted=0.0, estimated=60.0)
    made = Submission(tag="t", job=job, payload=payload, login=login)
    return structs.replace(made, **fields)


def run(changed: Submission, home: Path) -> str:
    script = home / "script"
    script.write_text(changed.payload.script)
    script.chmod(0o700)
    return subprocess.run(
        [script, "a b", "c"],
        env=changed.environment(0, "alpha") | {"HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_named_variables_outlive_the_profile(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("export PROFILE=read GIVEN=profile\n")
    value = 'it\'s "$HOME"\nsecond line'
    environ = {"HOME": "/h", "OTHER": "x", "LOADEDMODULES": "gcc", "PATH": "/usr/bin"}
    environment = exported_environment(["ALL", f"GIVEN={value}"], environ, [])
    assert environment[NAMED_VARIABLES] == "GIVEN"
    changed = with_login_environment(submission(environment))
    assert changed.payload.environment == {"HOME": "/h", "GIVEN": value}
    assert run(changed, tmp_path) == f"{value} None read ['a b', 'c']\n"


def test_a_job_submitted_by_sudo_is_not_under_sudo() -> None:
    environ = {"SUDO_UID": "0", "SUDO_USER": "root", "DOAS_USER": "root", "HOME": "/h"}
    assert exported_environment(["ALL"], environ, []) == {"SUDO_USER": "root", "HOME": "/h"}


def test_scripts_do_not_see_the_list_of_names() -> None:
    environment = exported_environment(["ALL", "OTHER"], {"OTHER": "x", "HOME": "/h"}, [])
    assert environment == {"OTHER": "x", "HOME": "/h", NAMED_VARIABLES: "OTHER"}
    for login in (False, True):
        changed = with_login_environment(submission(environment, login=login))
        variables = changed.environment(0, "alpha")
        assert NAMED_VARIABLES not in variables
        assert (variables["OTHER"], variables["HOME"]) == ("x", "/h")


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        (["ALL"], None),
        (["NONE"], None),
        (["A", "B=2", "A=3"], "A,B"),
        (["MISSING"], None),
        (["A=x\udcff"], None),  # not exported
    ],
)
def test_only_exported_names_are_listed(entries: list[str], names: str | None) -> None:
    assert exported_environment(entries, {"A": "1"}, []).get(NAMED_VARIABLES) == names


@pytest.mark.parametrize("name", ["BASH_FUNC_x%%", "a-b", "1a", "a b", "x;touch f", "é"])
def test_names_that_no_shell_can_set_stay_out_of_the_script(name: str) -> None:
    changed = with_login_environment(submission({name: "value", NAMED_VARIABLES: name}))
    assert changed.payload.environment == {name: "value"}
    assert name not in changed.payload.script.replace(SCRIPT, "")


def test_names_of_a_forged_list_are_those_of_variables() -> None:
    forged = submission({"A": "1", NAMED_VARIABLES: "A,,B,METASCHED_EXPORTED"})
    assert with_login_environment(forged).payload.environment == {
        "A": "1",
        NAMED_VARIABLES: "A,,B,METASCHED_EXPORTED",
    }
    assert NAMED_VARIABLES not in with_login_environment(forged).environment(0, "alpha")


@pytest.mark.parametrize(
    ("path", "fields", "in_front"),
    [
        ("/usr/bin", {}, False),
        (f"{drop_in_folder()}:/usr/bin", {}, True),
        ("/usr/bin", {"exports_job_id": True}, True),
        ("/usr/bin", {"exports_job_id": True, "has_drop_ins": False}, False),
    ],
)
def test_drop_ins_come_first_again_after_the_profiles(
    path: str, fields: dict[str, bool], in_front: bool
) -> None:
    script = with_login_environment(submission({"PATH": path}, **fields)).payload.script
    assert (f"PATH={drop_in_folder()}:$PATH" in script) == in_front
