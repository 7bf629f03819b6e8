"""Policies of the calendar: one activation for a run, a few tries, mistakes told at once."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasched.config.reading import load_settings
from metasched.config.settings import ConfigError
from metasched.daemon import reload, scheduled_policies, service
from metasched.daemon.backup_threads import EntryRun
from metasched.daemon.doctor.folder_checks import check_scheduled_policies
from metasched.daemon.late_settings import log_scheduled_mistakes
from metasched.daemon.policy_activation import activate_scheduled
from metasched.daemon.scheduled_policies import (
    MAX_TRIES,
    PolicyNotActivated,
    PolicyRunSkipped,
    ScheduledPolicies,
)
from metasched.db.store import StorageFailed
from metasched.errors import UserError
from metasched.model.policy_version import PolicyVersion

RUN = EntryRun(3, 100.0)
VERSION = cast(PolicyVersion, type("Version", (), {"number": 7}))
LATER = time.time() + 3600.0


class Activations:
    """Stands for the daemon: raises the errors in turn, then puts policies in force."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), list[tuple[str, str, str]]()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def activate(self, *call: str) -> PolicyVersion:
        self.calls.append(cast(Any, call))
        await self.may_end.wait()
        if self.errors:
            raise self.errors.pop(0)
        return VERSION


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(scheduled_policies, "RETRY_PAUSE", 0.001)
    (tmp_path / "night.toml").write_text("pull = false\n")
    return str(tmp_path / "night.toml")


def test_services_that_end_and_start_share_the_activation_that_replaces_them(file: str) -> None:
    async def services() -> None:
        daemon = Activations()
        daemon.may_end.clear()
        policies = ScheduledPolicies(daemon.activate)
        for _ in range(3):
            service = asyncio.create_task(policies.put_in_force(RUN, file, "night", LATER))
            while not daemon.calls:
                await asyncio.sleep(0.001)
            service.cancel()
            await asyncio.gather(service, return_exceptions=True)
        daemon.may_end.set()
        assert await policies.put_in_force(RUN, file, "night", LATER) == "policy version 7"
        assert daemon.calls == [("pull = false\n", file, "calendar entry night")]
        policies.forget(RUN)
        await policies.put_in_force(RUN, file, "night", LATER)
        assert len(daemon.calls) == 2

    asyncio.run(services())


def test_an_obstacle_is_tried_again_a_mistake_is_not(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tries(errors: list[Exception], until: float = LATER) -> int:
        daemon = Activations(*errors)
        run = ScheduledPolicies(daemon.activate).put_in_force(RUN, file, "night", until)
        [result] = await asyncio.gather(run, return_exceptions=True)
        if result == "policy version 7":
            return len(daemon.calls)
        assert isinstance(result, PolicyNotActivated)
        assert str(result) == str(errors[len(daemon.calls) - 1])
        return -len(daemon.calls)

    async def put_in_force(error: Exception) -> str:
        policies = ScheduledPolicies(Activations(error).activate)
        return await policies.put_in_force(RUN, file, "night", LATER)

    busy, away = UserError("another reload"), StorageFailed("the database is away")
    assert asyncio.run(tries([busy, away])) == 3
    assert asyncio.run(tries([busy] * MAX_TRIES)) == -MAX_TRIES
    assert asyncio.run(tries([ConfigError("pull = 3")])) == -1
    with pytest.raises(PolicyNotActivated, match="a defect"):  # the runs of others go on
        asyncio.run(put_in_force(AssertionError("a defect")))
    monkeypatch.setattr(scheduled_policies, "RETRY_PAUSE", 7200.0)
    assert asyncio.run(tries([busy], until=LATER)) == -1


def test_a_policy_whose_time_is_over_is_not_put_in_force(file: str) -> None:
    """The daemon ended in the run, and starts after its grace."""
    daemon = Activations()
    with pytest.raises(PolicyRunSkipped):
        asyncio.run(ScheduledPolicies(daemon.activate).put_in_force(RUN, file, "night", 0.0))
    assert not daemon.calls


@pytest.mark.parametrize("order", ["night first", "day first"])
def test_the_policy_of_the_later_run_stays(file: str, order: str) -> None:
    """The night's has to be tried again, or both had begun when the daemon ended."""
    day = EntryRun(1, 200.0)  # its entry is the earlier one

    async def runs() -> None:
        daemon = Activations()
        policies = ScheduledPolicies(daemon.activate)

        def begin(run: EntryRun, entry: str) -> asyncio.Task[str]:
            return asyncio.create_task(policies.put_in_force(run, file, entry, LATER))

        if order == "night first":
            daemon.may_end.clear()
            daemon.errors.append(UserError("another reload"))
            night = begin(RUN, "night")
            while not daemon.calls:
                await asyncio.sleep(0.001)
            morning = begin(day, "day")
            await asyncio.sleep(0)  # it has begun
            daemon.may_end.set()
        else:
            morning, night = begin(day, "day"), begin(RUN, "night")
        results = await asyncio.gather(morning, night, return_exceptions=True)
        assert results[0] == "policy version 7"
        assert isinstance(results[1], PolicyRunSkipped)
        assert daemon.calls[-1][2] == "calendar entry day"

    asyncio.run(runs())


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_later_run_that_fails_overtakes_none(file: str, forgotten: bool) -> None:
    """Both had begun when the daemon ended. The file of the day has a mistake."""
    day = EntryRun(1, 200.0)

    async def runs() -> None:
        daemon = Activations()
        daemon.may_end.clear()
        policies = ScheduledPolicies(daemon.activate)
        morning = asyncio.create_task(policies.put_in_force(day, file, "day", LATER))
        while not daemon.calls:
            await asyncio.sleep(0.001)
        night = asyncio.create_task(policies.put_in_force(RUN, file, "night", LATER))
        await asyncio.sleep(0.01)
        assert len(daemon.calls) == 1  # it waits
        daemon.errors.append(ConfigError("pull = 3"))
        daemon.may_end.set()
        with pytest.raises(PolicyNotActivated, match="pull = 3"):
            await morning
        if forgotten:
            policies.forget(day)
        assert await night == "policy version 7"
        assert [call[2] for call in daemon.calls] == ["calendar entry day", "calendar entry night"]

    asyncio.run(runs())


def test_a_run_gives_way_to_a_later_one_that_is_forgotten(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled_policies, "RETRY_PAUSE", 0.05)

    async def runs() -> None:
        daemon = Activations(UserError("another reload"))
        policies = ScheduledPolicies(daemon.activate)
        night = asyncio.create_task(policies.put_in_force(RUN, file, "night", LATER))
        while daemon.errors:
            await asyncio.sleep(0.001)
        day = EntryRun(1, 200.0)
        await policies.put_in_force(day, file, "day", LATER)
        policies.forget(day)
        with pytest.raises(PolicyRunSkipped):
            await night

    asyncio.run(runs())


def test_a_mistake_in_a_file_is_a_finding_and_no_obstacle_of_a_start(file: str) -> None:
    folder = Path(file).parent
    config = folder / "metasched.toml"
    config.write_text(
        '[daemon]\ndatabase = "sqlite:///ms.db"\n'
        '[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\n'
        '[[calendar]]\nname = "night"\nat = "20:00"\ndo = "policy"\nfile = "night.toml"\n'
    )
    assert not list(check_scheduled_policies(load_settings(config)))
    Path(file).write_text("pull = 3\n")
    settings = load_settings(config)
    [finding] = check_scheduled_policies(settings)
    assert finding.severity == "error"
    assert "pull" in finding.text
    assert file in finding.text
    with pytest.raises(ConfigError, match='calendar "night"'):  # a reload
        reload._read_settings(settings, frozenset())
    # known already, it bars no other change; another one does
    mistakes = log_scheduled_mistakes(settings)
    assert reload._read_settings(settings, mistakes)[2] == mistakes
    Path(file).write_text("push = 3\n")
    with pytest.raises(ConfigError, match="push"):
        reload._read_settings(settings, mistakes)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    daemon = ScheduledPolicies(cast(Any, None))
    with pytest.raises(PolicyNotActivated, match=r"no file .*gone.toml"):
        asyncio.run(daemon.put_in_force(RUN, str(tmp_path / "gone.toml"), "night", LATER))


@pytest.mark.parametrize("waits", [False, True], ids=["start", "takeover"])
def test_a_daemon_does_not_wait_for_a_file_that_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, waits: bool
) -> None:
    config = tmp_path / "metasched.toml"
    config.write_text(
        '[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\n'
        '[[calendar]]\nname = "night"\nat = "20:00"\ndo = "policy"\nfile = "night.toml"\n'
    )
    os.mkfifo(tmp_path / "night.toml")  # nobody writes to it
    monkeypatch.setattr(service, "CALENDAR_CHECK_TIME", 0.1)
    monkeypatch.setattr(service, "settings_after_wait", lambda settings, _: settings)
    ledger = cast(Any, SimpleNamespace())
    daemon = service.Daemon(load_settings(config), lambda: ledger, activate_scheduled)
    assert daemon.try_open(waits=waits)
    assert daemon.ledger is ledger
    assert daemon.calendar_mistakes == frozenset()
