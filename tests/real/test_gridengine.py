"""Assumptions of the Grid Engine adapter, checked on a real cell, and failures of its qmaster."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from metasched.adapters.base import Adapter, Submission
from metasched.adapters.drmaa_cluster import DrmaaOptions
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.cluster import ManagerLicences
from metasched.model.job import State
from tests.contract.conftest import Manager
from tests.harness.gridengine import LIBRARY, MEMORY, Cell, worker_adapter

TIMEOUT = 2.0  # seconds
COMMANDS = Path("/usr/lib/gridengine")
OTHER = "/usr/lib/gridengine/libspoolc.so"  # a library without DRMAA
Profile = Literal["gridengine", "generic"]


@pytest.fixture
def connect(gridengine_cell: Cell, tmp_path: Path) -> Callable[[str], Adapter]:
    def make(instance: str) -> Adapter:
        options = DrmaaOptions(library=str(LIBRARY), settle=1.0, timeout=TIMEOUT, memory=MEMORY)
        return worker_adapter(gridengine_cell, options, instance, tmp_path)

    return make


@pytest.fixture
def manager(
    gridengine_cell: Cell, connect: Callable[[str], Adapter], tmp_path: Path
) -> Iterator[Manager]:
    new_manager = Manager(connect, tmp_path)
    try:
        yield new_manager
    finally:
        new_manager.adapter.close()
        gridengine_cell.empty()


@pytest.mark.parametrize("code", [99, 100])
def test_special_exit_codes_run_once_and_are_reported(manager: Manager, code: int) -> None:
    """Grid Engine alone would rerun the job after 99, despite -r n, and keep it in error at 100."""
    row = manager.wait_end(manager.submit(f"echo ran >> ran; exit {code}"))
    assert (row.state, row.exit_code, row.signal, row.manager_reason) == (
        State.FAILED,
        code,
        None,
        "",
    )
    assert (manager.folder / "ran").read_text() == "ran\n"


def test_lines_that_look_like_directives_are_none(manager: Manager) -> None:
    order = manager.submit("#$ -t 1-3\n#$ -N other\necho ran >> ran")
    assert manager.wait_end(order).state is State.COMPLETED
    assert (manager.folder / "ran").read_text() == "ran\n"


def test_a_job_that_is_killed_leaves_nothing_behind(manager: Manager) -> None:
    order = manager.submit("readlink /proc/$$/fd/9 >script; kill -KILL $PPID")
    row = manager.wait_end(order)
    assert (row.state, row.signal) == (State.FAILED, signal.SIGKILL)
    path, _, deleted = (manager.folder / "script").read_text().strip().partition(" ")
    assert (Path(path).exists(), deleted) == (False, "(deleted)")


@pytest.mark.slow("a hundred jobs are submitted and withdrawn one by one")
def test_a_hundred_withdrawals_around_the_moment_of_the_start(manager: Manager) -> None:
    dice = random.Random(3)
    orders: list[Submission] = []
    for _ in range(25):
        batch = [manager.submit(f"echo {len(orders) + n} >> ran") for n in range(4)]
        orders += batch
        time.sleep(dice.uniform(0, 0.2))
        for order in batch:
            manager.withdraw(order, unstarted=True)
    rows = [manager.wait_end(order) for order in orders]
    started = (manager.folder / "ran").read_text().split()
    assert len(started) == len(set(started))
    for number, row in enumerate(rows):
        began = str(number) in started
        assert row.state is (State.COMPLETED if began else State.CANCELLED), row
        assert (row.started is not None) == began, row


def test_what_was_withdrawn_while_it_waited_is_still_known_to_a_new_adapter(
    manager: Manager,
) -> None:
    [blocker] = manager.fill()
    order = manager.submit("true")
    manager.wait_state(order, State.PENDING)
    manager.withdraw(order, unstarted=True)
    manager.reconnect()
    row = manager.wait_end(order)
    assert (row.state, row.started) == (State.CANCELLED, None)
    manager.withdraw(blocker)
    assert manager.wait_end(blocker).state is State.CANCELLED


def test_a_job_deleted_by_others_before_it_began_has_not_failed(
    manager: Manager, gridengine_cell: Cell
) -> None:
    manager.fill()
    order = manager.submit("true")
    row = manager.wait_state(order, State.PENDING)
    gridengine_cell.run("qdel", row.native_id)
    listing = manager.wait(lambda listing: order.tag not in {row.tag for row in listing.rows})
    assert len(listing.rows) == 1


def test_a_job_that_an_operator_removed_by_force_has_ended(
    manager: Manager, gridengine_cell: Cell
) -> None:
    """What the page on incidents advises for a job without a process. It has not succeeded.

    A short run has no wall-clock seconds either, but other use.
    """
    quick = manager.submit("true")
    assert manager.wait_end(quick).state is State.COMPLETED
    [blocker] = manager.fill()
    [row] = [row for row in manager.adapter.poll().rows if row.tag == blocker.tag]
    gridengine_cell.run("qdel", "-f", row.native_id)
    ended = manager.wait_end(blocker)
    assert (ended.state, ended.exit_code, ended.signal) == (State.CANCELLED, None, None)
    assert ended.manager_reason == "removed by force"
    assert ended.ended is not None


def test_a_job_held_by_others_is_pending_and_no_demand(
    manager: Manager, gridengine_cell: Cell
) -> None:
    [blocker] = manager.fill()
    order = manager.submit("true")
    row = manager.wait_state(order, State.PENDING)
    assert manager.adapter.poll().info.pending_jobs == 1
    gridengine_cell.run("qhold", row.native_id)
    listing = manager.wait(lambda listing: any(row.manager_reason == "hqw" for row in listing.rows))
    assert (listing.info.pending_jobs, listing.info.queue_head) == (0, None)
    manager.withdraw(blocker)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partition": "nosuch"}, 'unknown queue "nosuch"'),
        ({"account": "nosuch"}, 'project "nosuch" does not exist'),
        ({"constraint": "nosuch"}, 'unknown resource "nosuch"'),
        ({"gres": {"nosuch": 1}}, "no consumable 'nosuch'"),
        ({"gres": {"gpu": 99}}, "no suitable queues"),
        ({"nodes": 2, "tasks": 2, "cpus": 2}, "over several nodes"),
        ({"exclusive": True}, "whole hosts"),
    ],
)
def test_refusals_in_the_manager_s_own_words(
    manager: Manager, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused) as refusal:
        manager.submit("touch ran", **fields)
    assert message in refusal.value.reason
    assert manager.adapter.poll().rows == ()


def test_a_stopped_qmaster_is_unreachable_in_time_and_nothing_is_lost(
    manager: Manager, gridengine_cell: Cell
) -> None:
    order = manager.submit("while [ ! -e go ]; do sleep 0.05; done; exit 6")
    manager.wait_state(order, State.RUNNING)
    os.kill(gridengine_cell.qmaster, signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match="no answer within"):
            manager.adapter.poll()
        (manager.folder / "go").touch()
    finally:
        os.kill(gridengine_cell.qmaster, signal.SIGCONT)
    row = manager.wait_end(order)
    assert (row.state, row.exit_code) == (State.FAILED, 6)


@pytest.mark.slow("boots a cell, and starts its qmaster again")
def test_a_killed_qmaster_comes_back_with_its_jobs(tmp_path: Path) -> None:
    """Use a separate cell: execd may delay reports of ended jobs for minutes after the restart."""
    with Cell(tmp_path / "cell") as cell:
        options = DrmaaOptions(library=str(LIBRARY), settle=1.0, timeout=TIMEOUT)
        manager = Manager(lambda name: worker_adapter(cell, options, name, tmp_path), tmp_path)
        running = manager.submit("echo ran >> ran; exec sleep 300", cpus=7)
        manager.wait_state(running, State.RUNNING)
        waiting = manager.submit("echo ran >> ran", cpus=2)
        manager.wait_state(waiting, State.PENDING)
        cell.kill_qmaster()
        with pytest.raises(Unreachable):
            manager.adapter.poll()
        with pytest.raises(Unreachable):
            manager.submit("true")
        cell.start_qmaster()
        manager.reconnect()  # as the daemon does with a worker that hangs
        rows = {row.tag: row.state for row in manager.adapter.poll().rows}
        assert rows == {running.tag: State.RUNNING, waiting.tag: State.PENDING}
        manager.withdraw(waiting, unstarted=True)
        assert manager.wait_end(waiting).started is None
        assert (tmp_path / "ran").read_text() == "ran\n"
        manager.adapter.close()


@pytest.mark.slow("boots a cell and restarts its qmaster")
def test_listings_prove_nothing_before_the_last_start_of_the_qmaster(tmp_path: Path) -> None:
    with Cell(tmp_path / "cell") as cell:
        options = DrmaaOptions(library=str(LIBRARY), settle=1.0, timeout=TIMEOUT)
        manager = Manager(lambda name: worker_adapter(cell, options, name, tmp_path), tmp_path)
        first = manager.adapter.poll()
        assert first.up_since <= first.taken + 1.0  # the qmaster tells whole seconds
        again = manager.adapter.poll()
        assert again.up_since == pytest.approx(first.up_since, abs=0.1)
        cell.kill_qmaster()
        cell.start_qmaster()
        manager.reconnect()
        restarted = manager.adapter.poll()
        assert again.taken < restarted.up_since <= restarted.since
        manager.adapter.close()


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder of the cell's commands, some of which a test replaces."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in ("qstat", "qhost", "qconf", "qdel", "qhold", "qrls", "qrstat", "qping"):
        (folder / program).symlink_to(COMMANDS / program)
    return folder


@pytest.fixture
def over_commands(gridengine_cell: Cell, commands: Path, tmp_path: Path) -> Iterator[Manager]:
    """The cell by these commands; a missing job counts as gone after half a minute."""
    options = DrmaaOptions(library=str(LIBRARY), bin_dir=str(commands), settle=30.0, timeout=4.0)
    manager = Manager(
        lambda name: worker_adapter(gridengine_cell, options, name, tmp_path), tmp_path
    )
    try:
        yield manager
    finally:
        manager.adapter.close()
        gridengine_cell.empty()


def replace(program: Path, script: str) -> None:
    program.unlink()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("qping", ["", "sleep 60", "exit 1", "echo start time: now", "yes"])
def test_listings_prove_nothing_if_qping_does_not_tell_the_start(
    over_commands: Manager, commands: Path, qping: str
) -> None:
    """A qmaster that is restarted within a second, between two listings, would not be noticed."""
    (commands / "qping").unlink() if not qping else replace(commands / "qping", qping)
    for _ in range(2):
        listing = over_commands.adapter.poll()
        assert (listing.up_since, listing.since > listing.taken) == (0.0, True)


EMPTY = "<?xml version='1.0'?><job_info><queue_info/><job_info/></job_info>"


@pytest.mark.parametrize(
    ("qstat", "is_answer"),
    [
        (f'echo "{EMPTY}"', True),
        (f"{COMMANDS}/qstat \"$@\" | sed '/<job_list/,/<.job_list/d'", True),
        (f'{COMMANDS}/qstat "$@" | head -c 200', False),
        ("true", False),
        ("echo critical error: no qmaster", False),
    ],
)
def test_a_single_listing_that_lacks_jobs_ends_none(
    over_commands: Manager, commands: Path, qstat: str, is_answer: bool
) -> None:
    """All with exit code 0. What is cut off, or is a message, is no answer at all."""
    over_commands.fill()
    waiting = over_commands.submit("true")
    over_commands.wait_state(waiting, State.PENDING)
    before = over_commands.adapter.poll().rows
    assert len(before) == 2
    replace(commands / "qstat", qstat)
    if is_answer:
        assert over_commands.adapter.poll().rows == before
    else:
        with pytest.raises(Unreachable):
            over_commands.adapter.poll()
    (commands / "qstat").unlink()
    (commands / "qstat").symlink_to(COMMANDS / "qstat")
    assert over_commands.adapter.poll().rows == before


@pytest.mark.parametrize("profile", ["gridengine", "generic"])
@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("/none/libdrmaa.so", "cannot open"),
        ("/etc/passwd", "invalid ELF"),
        (OTHER, "undefined symbol"),
    ],
)
def test_a_wrong_library_is_an_unreachable_cluster_that_is_certainly_sent_nothing(
    gridengine_cell: Cell, tmp_path: Path, library: str, message: str, profile: Profile
) -> None:
    native = {"time": "-l h_rt={seconds}"}
    options = DrmaaOptions(library=library, profile=profile, cpus=8, native=native)
    manager = Manager(
        lambda name: worker_adapter(gridengine_cell, options, name, tmp_path), tmp_path
    )
    try:
        with pytest.raises(Unreachable, match=f"{library} cannot be loaded: .*{message}"):
            manager.adapter.poll()
        with pytest.raises(Refused, match=message) as refusal:
            manager.submit("true")
        assert refusal.value.retryable
    finally:
        manager.adapter.close()


def test_the_generic_profile_runs_jobs_by_drmaa_alone(
    gridengine_cell: Cell, tmp_path: Path
) -> None:
    native = {
        "always": "-b y -w e -r n",
        "time": "-l h_rt={seconds}",
        "cpus": "-pe smp {cpus}",
        "tag": "-A {tag}",
        "partition": "-q {partition}",
        "licences": "-l {licences}",
    }
    options = DrmaaOptions(
        library=str(LIBRARY),
        profile="generic",
        cpus=8,
        partitions=("all.q",),
        licences={"matlab": 3},
        native=native,
    )
    manager = Manager(
        lambda name: worker_adapter(gridengine_cell, options, name, tmp_path), tmp_path
    )
    try:
        assert manager.wait_end(manager.submit("echo ran >> ran", cpus=2)).exit_code == 0
        assert manager.wait_end(manager.submit("exit 7")).exit_code == 7
        assert (tmp_path / "ran").read_text() == "ran\n"
        holder = manager.submit("exec sleep 300", partition="all.q", licences={"matlab": 2})
        manager.wait_state(holder, State.RUNNING)
        facts = manager.adapter.poll().info
        assert facts.licences == {"matlab": ManagerLicences(3, 2)}
        assert {partition.name for partition in facts.partitions} == {"drmaa", "all.q"}
        output = gridengine_cell.run("qstat", "-xml", "-r")
        assert ">2</hard_request>" in output
        assert "<hard_req_queue>all.q</hard_req_queue>" in output
        manager.withdraw(holder)
        manager.wait_end(holder)
        full = manager.submit("exec sleep 300", cpus=8)
        manager.wait_state(full, State.RUNNING)
        waiting = manager.submit("touch never")
        manager.wait_state(waiting, State.PENDING)
        manager.withdraw(waiting, unstarted=True)
        assert manager.wait_end(waiting).started is None
        manager.withdraw(full)
        row = manager.wait_end(full)
        assert (row.state, row.started is None) == (State.CANCELLED, False)
        ended = manager.adapter.poll().rows
        manager.reconnect()
        assert manager.adapter.poll().rows == ended
        assert not (tmp_path / "never").exists()
        with pytest.raises(Refused, match="template for account"):
            manager.submit("true", account="lab")
    finally:
        manager.adapter.close()
        gridengine_cell.empty()


def test_a_job_that_drmaa_refuses_leaves_the_next_alone(
    gridengine_cell: Cell, tmp_path: Path
) -> None:
    """The message is the manager's. A limit passes, a project that does not exist does not."""
    native = {"always": "-w e", "time": "-l h_rt={seconds}", "account": "-P {account}"}
    options = DrmaaOptions(library=str(LIBRARY), profile="generic", cpus=8, native=native)
    manager = Manager(
        lambda name: worker_adapter(gridengine_cell, options, name, tmp_path), tmp_path
    )
    whole = gridengine_cell.run("qconf", "-sconf")
    try:
        with pytest.raises(Refused, match='"chemistry" does not exist') as refusal:
            manager.submit("echo refused >> ran", account="chemistry")
        assert not refusal.value.retryable
        assert manager.wait_end(manager.submit("echo first >> ran")).state is State.COMPLETED
        limited = re.sub(r"(?m)^max_u_jobs .*", "max_u_jobs 1", whole)
        gridengine_cell.load("-Mconf", limited, name="global")
        running = manager.submit("exec sleep 300")
        with pytest.raises(Refused, match="only 1 jobs are allowed per user") as refusal:
            manager.submit("echo refused >> ran")
        assert refusal.value.retryable
        manager.withdraw(running)
        manager.wait_end(running)
        assert manager.wait_end(manager.submit("echo second >> ran")).state is State.COMPLETED
        assert (tmp_path / "ran").read_text() == "first\nsecond\n"
    finally:
        gridengine_cell.load("-Mconf", whole, name="global")
        manager.adapter.close()
        gridengine_cell.empty()
