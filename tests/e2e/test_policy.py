"""`metasched policy`: who puts a policy in force, how long it stays, and which one decided."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMAND, ONE_LOCAL, Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness.accounts import OPERATOR, A

FIRST, SECOND = "age = 100\n", "[weights]\nuser = 9\n"


@pytest.fixture
def tried(site: Site) -> Site:
    """A running site with a policy file, and another one beside it."""
    (site.folder / "policy.toml").write_text(FIRST)
    (site.folder / "other.toml").write_text(SECOND)
    site.configure(ONE_LOCAL, extra='[policy]\nfile = "policy.toml"\n')
    site.start()
    return site


def in_force(site: Site) -> tuple[int, float, float]:
    """Return the version in force, with its age and weight of the user."""
    shown = site.json("policy", "show")
    values = shown["values"]
    return shown["version"], values["age"], values["weights.user"]


@pytest.mark.slow("some twenty commands, and two starts of the daemon")
def test_an_activated_policy_stays_over_restarts_until_the_file_changes(tried: Site) -> None:
    assert in_force(tried) == (1, 100, 1)
    assert tried.run("policy", "diff", "live", "policy.toml").stdout == ""
    assert "weights.user" in tried.run("policy", "diff", "live", "other.toml", code=1).stdout
    job = tried.submit("--wrap", "true")
    output = tried.run("policy", "activate", "other.toml", "--reason", "users first").stdout
    assert output == f"Policy version 2 is in force: {tried.folder}/other.toml.\n"
    assert in_force(tried) == (2, 4 * 3600, 9)
    assert tried.json("policy", "activate", "other.toml")["version"] == 2  # the same again
    later = tried.submit("--wrap", "true")
    tried.until_ended(job, later)
    for id, version in ((job, 1), (later, 2)):
        decided = {"priority": version, "placement": version, "load": None}
        assert tried.json("explain", str(id))["policy"] == decided
    assert {event["policy"] for event in tried.json("story", str(later))} == {2}
    assert "Policy version 2 decided" in tried.run("explain", str(later)).stdout
    assert tried.run("policy", "diff", "2", "live").stdout == ""

    assert tried.stop() == 0
    tried.start()
    assert in_force(tried) == (2, 4 * 3600, 9)
    assert "in place of" in tried.run("policy", "show").stdout
    assert "policy version 2 is in force (activated: users first" in tried.log.read_text()
    assert tried.json("reload")["changes"] == []
    (tried.folder / "policy.toml").write_text("age = 300\n")
    assert tried.json("reload")["changes"] == ["policy"]
    assert in_force(tried) == (3, 300, 1)
    for expected in ((4, 4 * 3600, 9), (5, 100, 1)):  # undone twice, past the file
        tried.run("policy", "undo", "--reason", "no")
        assert in_force(tried) == expected
    assert "no policy before version 5" in tried.error("policy", "undo", code=1)
    rows = tried.json("policy", "history")
    assert [(row["version"], row["change"], row["copy_of"]) for row in rows] == [
        *((5, "undone", 1), (4, "undone", 2), (3, "file", None)),
        *((2, "activated", None), (1, "file", None)),
    ]
    acts = tried.json("events", "--kind", "policy_changed")
    assert [act["details"]["version"] for act in acts] == [1, 2, 3, 4, 5]
    assert "activated: users first" in acts[1]["cause"]
    assert tried.stop() == 0
    assert {row["ok"] for row in tried.json("db", "check")} == {True}


def test_a_file_that_says_the_same_in_other_words_is_replaced_too(tried: Site) -> None:
    (tried.folder / "policy.toml").write_text(f"# a remark\n{FIRST}")
    assert tried.json("reload")["changes"] == []
    tried.run("policy", "activate", "other.toml")
    assert tried.stop() == 0
    tried.start()
    assert in_force(tried) == (2, 4 * 3600, 9)


def test_a_standby_takes_over_the_policy_in_force(tried: Site) -> None:
    """The file that it read when it started is older than the policy."""
    standby = subprocess.Popen([COMMAND, "serve", "--standby"], env=tried.environment)
    caught = re.compile(r"^SigCgt:\s+[0-9a-f]*[13579bdf]$", re.MULTILINE)  # it has read the file
    try:
        tried.until(lambda: caught.search(Path(f"/proc/{standby.pid}/status").read_text()))
        (tried.folder / "policy.toml").write_text("age = 300\n")
        assert tried.json("reload")["changes"] == ["policy"]
        tried.run("policy", "activate", "other.toml")
        assert tried.stop() == 0
        tried.until(lambda: in_force(tried))
        assert in_force(tried) == (3, 4 * 3600, 9)
    finally:
        standby.kill()
        standby.wait()


def test_a_policy_with_a_mistake_or_of_the_past_changes_nothing(tried: Site) -> None:
    wrong = tried.folder / "wrong.toml"
    wrong.write_text("pul = 3\n")
    error = tried.error("policy", "activate", wrong, code=2)
    assert error == f'unknown key "pul", {wrong}; write "pull"'
    wrong.write_text("[classes]\nregular = 1\n")
    tried.config.write_text(
        tried.config.read_text() + '[[user_class]]\nname = "gold"\nusers = ["x"]\n'
    )
    tried.run("reload")
    error = tried.error("policy", "activate", wrong, code=1)
    assert error.startswith(f'user class "gold" in {tried.config} has no base value')
    tried.run("policy", "activate", "other.toml", "--expect", "1")
    error = tried.error("policy", "activate", "policy.toml", "--expect", "1", code=1)
    assert error.startswith("policy version 2 is in force, not 1 (activated, by ")
    assert "policy version 2" in tried.error("policy", "undo", "--expect", "1", code=1)
    assert "no policy version 9" in tried.error("policy", "show", "9", code=5)
    assert in_force(tried)[0] == 2


def test_two_who_activate_at_once_are_served_in_turn(tried: Site) -> None:
    names = [f"policy-{number}.toml" for number in range(4)]
    for number, name in enumerate(names):
        (tried.folder / name).write_text(f"age = {1000 + number}\n")
    commands = [
        subprocess.Popen(
            [COMMAND, "policy", "activate", name, "--expect", "1"],
            env=tried.environment,
            cwd=tried.folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    results = [(command.communicate()[1], command.returncode) for command in commands]
    [winner] = [number for number, (_, code) in enumerate(results) if code == 0]
    assert in_force(tried)[:2] == (2, 1000 + winner)
    for error, code in results:
        assert code in (0, 1)
        assert not error or "policy version 2 is in force, not 1" in error


def test_a_daemon_that_is_killed_amid_an_activation_has_one_of_the_policies(tried: Site) -> None:
    with subprocess.Popen(
        [COMMAND, "policy", "activate", "other.toml"],
        env=tried.environment,
        cwd=tried.folder,
        stderr=subprocess.DEVNULL,
    ) as activating:
        tried.until(lambda: "version 2" in tried.log.read_text() or activating.poll() is not None)
        tried.stop(signal.SIGKILL)
    tried.start()
    assert in_force(tried) in ((1, 100, 1), (2, 4 * 3600, 9))
    tried.run("policy", "activate", "other.toml")
    assert in_force(tried) == (2, 4 * 3600, 9)
    assert tried.stop() == 0
    assert {row["ok"] for row in tried.json("db", "check")} == {True}


@pytest.mark.root
def test_only_operators_change_the_policy_and_see_its_authors(common_folder: Path) -> None:
    site = MultiUserSite(common_folder / "policy")
    site.set_up(ONE_LOCAL, f"[cluster.here]\n{SUPERVISE}")
    try:
        site.start()
        a, operator = site.by(A), site.by(OPERATOR)
        for user in (a, operator):
            home = site.folder / user.caller["cwd"].name
            (home / "mine.toml").write_text(SECOND)
            (home / "mine.toml").chmod(0o644)
        for command in (("activate", "mine.toml"), ("undo",), ("history",), ("show", "1")):
            refusal = a.error("policy", *command, code=3)
            assert refusal.startswith("only operators may ")
            assert f"and you are {A}" in refusal
        assert in_force(a)[0] == 1
        operator.run("policy", "activate", "mine.toml", "--reason", "secret")
        assert in_force(a) == (2, 4 * 3600, 9)
        seen = a.json("policy", "show")
        assert (seen["by"], seen["reason"], seen["file"]) == (None, None, None)
        assert operator.json("policy", "show")["by"] == OPERATOR
        assert operator.json("policy", "history")[0]["reason"] == "secret"
        job = a.submit("--wrap", "true")
        a.until_ended(job)
        assert a.json("explain", str(job))["policy"] == {
            "priority": 2,
            "placement": 2,
            "load": None,
        }
        assert a.json("events", "--kind", "policy_changed") == []
        [act] = operator.json("events", "--kind", "policy_changed")[1:]
        assert act["actor"] == OPERATOR
        assert site.stop() == 0
    finally:
        site.close()
