"""The parts of a reload: what a running daemon can take over, and what happens if it cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from metasched.config.reading import load_settings, reload_settings
from metasched.config.restart_keys import RESTART_KEYS, describe_changes, keep_restart_keys
from metasched.config.settings import ConfigError, Settings
from metasched.config.tables import ConfigFile, DaemonTable
from metasched.daemon import service
from metasched.daemon.policy_activation import activate_scheduled
from metasched.daemon.service import Daemon, ReloadRefused, ServiceReplaced
from metasched.db.store import StorageFailed

CLUSTER = '[[cluster]]\nname = "here"\nadapter = "local"\ncpus = 4\n'


def file_of(**tables: Any) -> ConfigFile:
    return ConfigFile.model_validate(tables)


def test_what_changed_is_named_by_table_and_key() -> None:
    left = {"name": "left", "adapter": "local", "cpus": 4}
    before = file_of(cluster=[left, {**left, "name": "old"}], limits={"queued": 3})
    after = file_of(
        cluster=[{**left, "cpus": 5, "benchmark": 2.0}, {**left, "name": "new"}],
        limits={"queued": 3, "running": 1},
        daemon={"keep": 5},
        tcp={"listen": "127.0.0.1:1"},
    )
    assert describe_changes(before, after) == [
        "[daemon] keep",
        "[tcp] added",
        'cluster "left" benchmark',
        'cluster "left" cpus',
        'cluster "new" added',
        'cluster "old" removed',
        "[limits] running",
    ]
    assert describe_changes(before, before) == []
    swapped = file_of(cluster=[{**left, "name": "old"}, left], limits={"queued": 3})
    assert describe_changes(before, swapped) == ["order of cluster tables"]


def test_every_other_key_of_the_daemon_is_read_from_its_settings_each_time() -> None:
    assert set(DaemonTable.model_fields) - set(RESTART_KEYS) == {
        "keep",
        "max_array_tasks",
        "keep_events",
        "mail_program",
        "zone",
    }


def test_keys_that_need_a_restart_keep_their_values() -> None:
    before = file_of(daemon={"socket": "a", "keep": 3}, site={"launcher": "l", "operators": ["x"]})
    after = file_of(daemon={"socket": "b", "keep": 4}, site={"launcher": "m", "operators": ["y"]})
    tables, keys = keep_restart_keys(before, after)
    assert keys == ["[daemon] socket", "[site] launcher"]
    assert (tables.daemon.socket, tables.daemon.keep) == ("a", 4)
    assert tables.site is not None
    assert (tables.site.launcher, tables.site.operators) == ("l", ("y",))
    tables, keys = keep_restart_keys(before, file_of())
    assert (keys[-1], tables.site) == ("[site]", before.site)


def test_a_change_that_is_valid_only_with_a_restart_says_so(tmp_path: Path) -> None:
    path = tmp_path / "metasched.toml"
    path.write_text(f'[daemon]\ndatabase = "sqlite:///a.db"\n{CLUSTER}')
    running = load_settings(path)
    path.write_text(
        '[daemon]\ndatabase = "sqlite:///a.db"\nfirst_id = 1000\n'
        f'{CLUSTER}[cluster.job]\njob_id = "metasched"\n'
    )
    load_settings(path)
    with pytest.raises(ConfigError, match=r"; or restart the daemon, for \[daemon\] first_id"):
        reload_settings(running)


class FakeService:
    """A service that cannot run with more than 4 processors, or once while the database is away."""

    made: list[tuple[int, str, tuple[str, ...]]] = []  # noqa: RUF012 - shared on purpose
    away = False

    def __init__(
        self,
        settings: Settings,
        *_: object,
        reloaded_by: str = "",
        config_changes: tuple[str, ...] = (),
    ) -> None:
        cpus = settings.clusters[0].options["cpus"]
        self.made.append((cpus, reloaded_by, config_changes))
        if FakeService.away:
            FakeService.away = False
            raise StorageFailed("disk full")
        if cpus > 4:
            raise ZeroDivisionError("a defect")
        self.settings, self.state_changed = settings, asyncio.Event()
        self.failure: BaseException | None = None
        self._ended = asyncio.Event()

    def fail(self, error: BaseException) -> None:
        self.failure = error
        self._ended.set()

    async def run(self) -> None:
        await self._ended.wait()
        assert self.failure is not None
        raise self.failure


@pytest.mark.parametrize(
    ("cpus", "away", "refusal"),
    [
        (3, False, ""),
        (5, False, "the daemon cannot run with it (ZeroDivisionError: a defect); see its log"),
        (3, True, "the database is away or takes no write (disk full); try again"),
    ],
)
def test_a_service_that_cannot_run_leaves_the_former_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, away: bool, refusal: str
) -> None:
    def settings_with(count: int) -> Settings:
        path = tmp_path / f"{count}.toml"
        path.write_text(CLUSTER.replace("4", str(count)))
        return load_settings(path)

    class Ledger:
        def acquire_lock(self) -> None:
            pass

        def policy_in_force(self) -> None:
            pass

        def reservations_open_since(self, time: float) -> tuple[()]:
            return ()

    monkeypatch.setattr(service, "SchedulerService", FakeService)
    monkeypatch.setattr(service, "RESTART_DELAY", 0.01)
    FakeService.made = []

    async def play() -> tuple[int, str]:
        before = settings_with(4)
        daemon = Daemon(before, cast(Any, Ledger), activate_scheduled)
        running = asyncio.create_task(daemon.run())
        await daemon.service_runs.wait()
        former: Any = daemon.service
        FakeService.away = away
        message = ""
        try:
            await daemon.replace_service(settings_with(cpus), "ada", ("x",))
        except ReloadRefused as error:
            message = str(error)
        await daemon.service_runs.wait()
        assert not daemon.is_replacing_service
        assert isinstance(former.failure, ServiceReplaced)
        assert former.state_changed.is_set()
        assert daemon.service is not former
        current: Any = daemon.service
        assert current.settings is daemon.settings
        running.cancel()
        return daemon.settings.clusters[0].options["cpus"], message

    assert asyncio.run(play()) == (4 if refusal else cpus, refusal)
    taken_back = [(4, "ada", ("taken back: x",))] if refusal else []
    assert FakeService.made == [(4, "", ()), (cpus, "ada", ("x",)), *taken_back]
