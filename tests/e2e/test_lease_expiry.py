"""Licences and array slot of a task that its manager has forgotten, with a short grace period."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime

from tests.e2e.conftest import FOLDER, Site

GRACE = 1.0  # seconds
LIMIT = 3.0  # seconds
# Runs the command of its arguments with this grace period.
PREFIX = (
    sys.executable,
    "-c",
    "import sys; from metasched.core import lease_expiry; from metasched.cli import main; "
    f"lease_expiry.GRACE = {GRACE}; del sys.argv[0]; sys.exit(main())",
)
LOCAL = """
[[cluster]]
name = "here"
adapter = "local"
cpus = 4
poll_interval = 0.2

[[licence]]
name = "matlab"
total = 1
"""


def test_what_a_forgotten_task_holds_is_returned_after_its_time_limit(site: Site) -> None:
    site.before = PREFIX
    site.configure(LOCAL)
    site.start()
    ran, end = site.folder / "ran", site.folder / "end"
    script = f'echo $METASCHED_TASK >> "{ran}"; until [ -e "{end}" ]; do sleep 0.1; done'
    words = ("-t", "0:03", "-L", "matlab", "-o", "/dev/null")
    array = site.submit(*words, "--array", "1-2%1", "--wrap", script)
    site.until(lambda: ran.exists() and ran.read_text() == "1\n")
    site.until(lambda: site.rows(f"{array}_1")[0]["state"] == "running")
    site.stop()
    shutil.rmtree(site.folder / FOLDER / "here")  # the manager forgets its tasks
    site.start()

    site.until(lambda: site.rows(f"{array}_1")[0]["state"] == "unknown")
    end.touch()
    # without the slot and the licence it could not start
    site.until(lambda: site.rows(f"{array}_2")[0]["state"] == "completed")
    assert site.rows(f"{array}_1")[0]["state"] == "unknown"
    story = site.json("story", f"{array}_1")
    times = {line["cause"]: datetime.fromisoformat(line["time"]) for line in story}
    [expired] = [cause for cause in times if cause.startswith("its manager has forgotten it")]
    [missing] = [cause for cause in times if cause.startswith("the manager no longer lists it")]
    assert (times[expired] - times[missing]).total_seconds() >= LIMIT + GRACE
    assert site.stop() == 0
