"""Which policy is in force: the last act counts, and nothing is replaced without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from metasched.config.reading import load_settings
from metasched.config.settings import ConfigError, Settings
from metasched.daemon.policy_versions import policy_cause, settle_policy, with_policy_in_force
from metasched.db.policy_versions import PolicyHistory
from metasched.model.policy_version import PolicyChange, PolicyVersion

CONFIG = '[[cluster]]\nname = "here"\nadapter = "local"\ncpus = 4\n'
NAMED = f'[policy]\nfile = "policy.toml"\n{CONFIG}'


class Site:
    """A configuration with a policy file."""

    def __init__(self, folder: Path) -> None:
        self.config, self.policy = folder / "metasched.toml", folder / "policy.toml"
        self.config.write_text(NAMED)
        self.policy.write_text("age = 100\n")

    def settings(self) -> Settings:
        return load_settings(self.config)

    def start(self, newest: PolicyVersion | None) -> tuple[PolicyVersion, float]:
        """Return the version in force after a start, and its `age`."""
        settings = settle_policy(self.settings(), newest)
        assert settings.policy_version is not None
        return settings.policy_version, settings.policy.age


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def activated(before: PolicyVersion, text: str) -> PolicyVersion:
    return replace(
        before,
        number=before.number + 1,
        change=PolicyChange.ACTIVATED,
        by="ada",
        reason="urgent",
        file="/home/ada/x.toml",
        text=text,
        previous=before.number,
    )


def test_the_file_is_the_first_version_and_a_restart_changes_nothing(site: Site) -> None:
    first, age = site.start(None)
    assert (first.number, first.change, age) == (1, PolicyChange.FILE, 100)
    assert first.text == "age = 100\n"
    assert first.previous is None
    assert policy_cause(first) == ""
    assert site.start(first) == (first, 100)


def test_an_activated_policy_stays_until_the_file_changes(site: Site) -> None:
    first, _ = site.start(None)
    second = activated(first, "age = 200\n")
    assert site.start(second) == (second, 200)
    assert policy_cause(second) == "activated: urgent"
    site.policy.touch()  # the same contents
    assert site.start(second) == (second, 200)
    site.policy.write_text("age = 300\n")
    third, age = site.start(second)
    assert (third.number, third.previous, third.change, age) == (3, 2, PolicyChange.FILE, 300)


def test_naming_a_file_or_no_file_any_more_is_a_change(site: Site) -> None:
    second = activated(site.start(None)[0], "age = 200\n")
    site.config.write_text(CONFIG)
    third, age = site.start(second)
    assert (third.number, third.file, third.digest, age) == (3, "", "", 4 * 3600)
    assert site.start(third) == (third, 4 * 3600)
    site.config.write_text(NAMED)
    assert site.start(third)[1] == 100


def test_a_version_without_what_the_configuration_needs_is_refused_or_replaced(site: Site) -> None:
    second = activated(site.start(None)[0], "[classes]\nregular = 1\n")
    site.config.write_text(f'{NAMED}[[user_class]]\nname = "gold"\nusers = ["ada"]\n')
    with pytest.raises(ConfigError, match=r"policy version 2 is in force: activated: urgent, by"):
        with_policy_in_force(site.settings(), second)
    third, age = site.start(second)  # no policy prevents a start
    assert (third.number, third.change, age) == (3, PolicyChange.FILE, 100)
    assert 'user class "gold"' in third.reason
    assert "version 2 cannot be used" in policy_cause(third)


def test_a_version_that_this_release_cannot_read_gives_way_to_the_file(site: Site) -> None:
    second = activated(site.start(None)[0], "key_of_a_later_release = 1\n")
    third, age = site.start(second)
    assert (third.number, age) == (3, 100)
    assert "unknown key" in third.reason
    assert "\n" not in third.reason


def test_a_policy_decides_quotas_and_limits_too(site: Site) -> None:
    site.config.write_text(f"{NAMED}[limits.classes.silver]\nrunning = 3\n")
    second = activated(site.start(None)[0], "[classes]\nregular = 1\ngold = 3\n")
    assert 'no user class "silver"' in site.start(second)[0].reason


def test_the_version_at_an_event() -> None:
    history = PolicyHistory([(10, 4), (20, 5), (21, 6)])
    assert [history.version_at(event) for event in (9, 10, 19, 20, 21, 99)] == [None, 4, 4, 5, 6, 6]
    assert PolicyHistory([]).version_at(1) is None
