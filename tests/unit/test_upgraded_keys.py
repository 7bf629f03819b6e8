"""A client must not repeat a submission that the daemon of an earlier release may have accepted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from metasched.client.client import RETRY_TIME
from metasched.config.reading import load_settings
from metasched.daemon.policy_activation import activate_scheduled
from metasched.daemon.service import Daemon


@pytest.mark.parametrize(("age", "honoured"), [(None, True), (0.0, False), (RETRY_TIME + 1, True)])
def test_keys_count_once_no_request_of_the_earlier_daemon_is_repeated(
    tmp_path: Path, age: float | None, honoured: bool
) -> None:
    cluster = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 1\n'
    (tmp_path / "metasched.toml").write_text(f'[daemon]\ndatabase = "sqlite:///ms.db"\n{cluster}')
    settings = load_settings(tmp_path / "metasched.toml")
    settings.database.upgraded_at = None if age is None else time.monotonic() - age
    daemon = Daemon(settings, lambda: pytest.fail("the ledger is not needed"), activate_scheduled)
    assert daemon.honours_keys is honoured
