"""Defects planted into a real daemon: each affects only its row, cluster or request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import TWO_LOCAL, Site

PLANTED = """
import sys
from collections.abc import Generator
from metasched.core.events import JobSubmitted
from metasched.core.gates import SchedulingGates
from metasched.core.reconciler import Reconciler
from metasched.core.scheduler import Core
from metasched.core.task_state_machine import TaskStateMachine
from metasched.core.transitions import TaskEvent

def plant(owner, name, fails):
    original = getattr(owner, name)
    def changed(self, *arguments):
        result = original(self, *arguments)
        if not fails(*arguments):
            return result
        if isinstance(result, Generator):
            return fail_after(result)
        raise ZeroDivisionError("planted")
    setattr(owner, name, changed)

def fail_after(changes):
    yield from changes  # the state is half-applied
    raise ZeroDivisionError("planted")

{plant}
sys.argv = sys.argv[1:]
from metasched.cli import main
sys.exit(main())
"""
ROW = 'plant(TaskStateMachine, "apply_status", lambda task, row: task.job.name == "poison")'
CONSEQUENCE_OF_ROW = """
def is_poison(change, *_):
    reported = change.event in (TaskEvent.START, TaskEvent.COMPLETE)
    return reported and change.task.job.name == "poison"
plant(SchedulingGates, "update_gates", is_poison)
"""
CLUSTER = 'plant(Reconciler, "apply_listing", lambda view, event: view.name == "right")'
REQUEST = """
def is_poison(event):
    return isinstance(event, JobSubmitted) and event.job.name == "poison"
plant(Core, "step", is_poison)
"""


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Callable[[str], Site]]:
    sites = []

    def start(plant: str) -> Site:
        site = Site(tmp_path)
        sites.append(site)
        script = tmp_path / "planted.py"
        script.write_text(PLANTED.format(plant=plant))
        site.before = (sys.executable, str(script))
        site.configure(TWO_LOCAL)
        site.launch()
        site.until(lambda: site.cluster_rows()[0]["state"] == "up")
        return site

    yield start
    for site in sites:
        site.log.write_text("")  # the tracebacks of planted defects are expected
        site.close()


def completes(site: Site, cluster: str) -> None:
    """A new job on a cluster completes."""

    def submit() -> int:
        return site.submit("-o", "/dev/null", "--cluster", cluster, "--wrap", "true")

    # a daemon that restarts its service refuses requests for seconds
    [row] = site.until_ended(site.until(submit))
    assert (row["state"], row["cluster"]) == ("completed", cluster)


@pytest.mark.slow("the service is rebuilt after each failure of the core")
@pytest.mark.parametrize("plant", [ROW, CONSEQUENCE_OF_ROW], ids=["row", "consequence"])
def test_a_row_on_which_the_core_fails_is_set_aside(
    planted: Callable[[str], Site], plant: str
) -> None:
    site = planted(plant)
    poison = site.submit(
        "-o", "/dev/null", "--name", "poison", "--cluster", "left", "--wrap", "sleep 1"
    )
    site.until(lambda: site.row(poison)["state"] == "unknown")
    for cluster in ("left", "right"):
        completes(site, cluster)
    assert {row["state"] for row in site.cluster_rows()} == {"up"}
    entries = site._client.health()["quarantine"]
    assert {entry["source"] for entry in entries} == {"cluster left"}
    assert f"-{poison}-" in entries[0]["tag"]
    assert "is set aside: the core failed on it" in site.run("doctor", code=1).stdout
    # as pending, running and ended at most: no loop
    assert 1 <= site.log.read_text().count("made the core fail") <= 3
    assert site.row(poison)["state"] == "unknown"
    # without the defect the row is applied again
    site.log.write_text("")
    site.stop()
    site.replayed()
    site.before = ()
    site.start()
    assert site.until_ended(poison)[0]["state"] == "completed"


def test_a_cluster_on_which_the_core_fails_is_down_alone(planted: Callable[[str], Site]) -> None:
    site = planted(CLUSTER)
    for _ in range(2):
        completes(site, "left")
    failed, healthy = site.cluster_rows()
    assert failed["state"] == "up"
    assert healthy["state"].startswith("down: error ")
    assert "ZeroDivisionError: planted" in healthy["state"]
    assert "planted" in site.run("doctor", code=1).stdout
    assert site.log.read_text().count("a defect of metasched with cluster right") <= 3


@pytest.mark.slow("the service is rebuilt after each failure of the core")
def test_a_request_on_which_the_core_fails_changes_nothing(
    planted: Callable[[str], Site],
) -> None:
    site = planted(REQUEST)
    completes(site, "left")
    before = {row["job"] for row in site.rows()}
    arguments = ("submit", "-o", "/dev/null", "--name", "poison", "--wrap", "true")
    refusal = site.error(*arguments, code=1)
    assert "error " in refusal
    assert "in its log" in refusal
    assert refusal.partition("error ")[2].split()[0] in site.log.read_text()
    site.until(lambda: {row["state"] for row in site.cluster_rows()} == {"up"})
    assert {row["job"] for row in site.rows()} == before
    assert "requests of" in site.error(*arguments, code=4)  # its sender pauses, other users go on
    for cluster in ("left", "right"):
        completes(site, cluster)
    site.log.write_text("")
    site.stop()
    site.replayed()


GARBAGE = """
import itertools, os, sys
from metasched.processes.frames import read_frames, write_frame
messages = read_frames(sys.stdin.buffer)
next(messages)  # the boot
rows = '{{"delta":{{"taken":1.0,"since":0.0,"until":1.0,"rows":[{}],"full":true}}}}'
row = '{{"tag":{},"task":{},"native_id":"1","state":"running","started":{},"exit_code":{}}}'
lines = [
    b"\\xff\\xfe\\x00", b"", b"{}", b"null", b"[]", b"[" * 100_000, b'{"delta":{}}',
    b'{"delta":{"taken":1e999,"since":0,"until":0,"full":true}}',
    rows.format(row.format('"ms-x-1-1"', 0, "1e308", 0)).encode(),
    rows.format(row.format('"ms-x-' + "9" * 24 + '-1"', "9" * 24, 0, 0)).encode(),
    rows.format(row.format('"\\\\u0000\\\\ud800"', -1, -1, "9" * 18)).encode(),
    rows.format('{"tag":7}').encode(),
    b'{"error":"defect","reason":"' + b"x" * 1_000_000 + b'"}',
    b'{"error":"unreachable","reason":"\\\\u0000\\\\u2028"}',
    os.urandom(10_000),
]
replies = [(write_frame, line) for line in lines]
replies += [(lambda pipe, line: pipe.write(line + b"\\n") and pipe.flush(), line) for line in lines]
first = os.getpid() % len(replies)  # each process of the worker begins with another
replies = replies[first:] + replies[:first]
for (reply, line), _ in zip(itertools.cycle(replies), messages):
    reply(sys.stdout.buffer, line)
"""


def test_a_worker_that_writes_garbage_is_down_alone(tmp_path: Path) -> None:
    worker = tmp_path / "garbage.py"
    worker.write_text(GARBAGE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{worker}"\n')
    python.chmod(0o755)
    site = Site(tmp_path)
    site.configure(TWO_LOCAL + f'python = "{python}"\n')
    try:
        site.launch()
        site.until(lambda: site.cluster_rows()[0]["state"] == "up")
        for _ in range(3):
            completes(site, "left")
        failed, healthy = site.cluster_rows()
        assert failed["state"] == "up"
        assert healthy["state"].startswith("down")
        assert "a defect of metasched with" not in site.log.read_text()
    finally:
        site.close()
