"""A short load in site mode loses and duplicates no task, though the daemon is killed.

`python -m tests.load` is the large form (`make load`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import require
from tests.load.run import DAEMON_KILLED, run
from tests.load.site import SMALL, missing


@pytest.mark.root
@pytest.mark.timeout(900)
def test_no_task_is_lost_or_starved(common_folder: Path) -> None:
    if (lacking := missing()) is not None:
        require(*lacking)
    folder = common_folder / "load"
    folder.mkdir(mode=0o711)
    result = run(folder, SMALL, [DAEMON_KILLED], seed="test")
    assert result.violations == []
    assert result.accepted >= SMALL.tasks
    assert result.started + result.cancelled >= result.accepted
    assert [name for name, _ in result.recoveries] == [DAEMON_KILLED.name]
