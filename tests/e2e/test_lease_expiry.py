"""Licences and array slot of a task that its manager has forgotten, with a short grace period."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime

import pytest

from tests.e2e.conftest import ENDED, FOLDER, ONE_LOCAL, Site

GRACE = 1.0  # seconds
LIMIT = 8.0  # seconds
ROUNDING = 1.0  # seconds, of times in a story
# Runs the command of its arguments with this grace period.
PREFIX = (
    sys.executable,
    "-c",
    "import sys; from metasched.core import lease_expiry; from metasched.cli import main; "
    f"lease_expiry.GRACE = {GRACE}; del sys.argv[0]; sys.exit(main())",
)
LICENCE = """
[[licence]]
name = "matlab"
total = 1
"""


@pytest.mark.slow("a lease ends nine seconds after its task is forgotten; three starts")
def test_what_a_forgotten_task_holds_is_returned_after_its_time_limit(site: Site) -> None:
    site.before = PREFIX
    site.configure(ONE_LOCAL + LICENCE)
    site.start()
    ran, end = site.folder / "ran", site.folder / "end"
    script = f'echo $METASCHED_TASK >> "{ran}"; until [ -e "{end}" ]; do sleep 0.1; done'
    options = ("-t", f"0:{LIMIT:02.0f}", "-L", "matlab", "-o", "/dev/null")
    array = site.submit(*options, "--array", "1-3%1", "--wrap", script)

    def state(index: int) -> str:
        [row] = site.rows(f"{array}_{index}")
        state: str = row["state"]
        return state

    site.until(lambda: state(1) == "running")
    site.stop()
    shutil.rmtree(site.folder / FOLDER / "here")  # the manager forgets its tasks
    site.start()
    # without the slot and the licence of task 1 it could not start
    site.until(lambda: ran.read_text() == "1\n2\n")
    assert state(1) == "unknown"
    story = site.json("story", f"{array}_1")
    times = {line["cause"]: datetime.fromisoformat(line["time"]) for line in story}
    [expired] = [cause for cause in times if cause.startswith("its manager has forgotten it")]
    [missing] = [cause for cause in times if cause.startswith("the manager no longer lists it")]
    assert (times[expired] - times[missing]).total_seconds() >= LIMIT + GRACE - ROUNDING

    # a restart with the usual grace period does not take the slot again
    site.stop()
    site.before = ()
    end.touch()
    site.start()
    site.until(lambda: ran.read_text() == "1\n2\n3\n")
    site.until(lambda: {state(2), state(3)} <= ENDED)
    assert state(1) == "unknown"
    assert site.stop() == 0
