"""Guarantees of `local` alone: jobs outlive the adapter, run once, and no process escapes."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from metasched.adapters import supervisor
from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.local import scheduler
from metasched.adapters.local.adapter import Local, LocalOptions
from metasched.adapters.local.host import ForkServer, read_record
from metasched.adapters.local.policy_host import PolicyHost
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload, State
from metasched.model.listing import JobStatus, PolicyExclusions
from metasched.model.tags import tag_of
from metasched.policies.local import registry
from tests.harness import processes
from tests.harness.plug_in_packages import install

INSTANCE = "abc123"
PATIENCE = 120.0
PYTHON = f"{sys.executable} -IS"


class Site:
    """A local cluster in a folder, with its current adapter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cluster"
        self.folder.mkdir()
        self.work = folder / "work"
        self.work.mkdir()
        self.options = LocalOptions(cpus=4, kill_wait=0.5)
        self.adapter = self.new()
        self._jobs = 0

    def new(self) -> Local:
        return Local(Cluster(name="here", adapter="local"), self.options, INSTANCE, self.folder)

    def reopen(self, **options: Any) -> None:
        self.adapter.close()
        self.options = replace(self.options, **options)
        self.adapter = self.new()

    def order(
        self, commands: str, *, indices: tuple[int, ...] = (0,), priority: int = 1, **fields: Any
    ) -> Submission:
        self._jobs += 1
        of_payload = {key: fields.pop(key) for key in Payload.__annotations__ if key in fields}
        payload = Payload(
            script=f"#!/bin/sh\n{commands}\n",
            environment={"PATH": "/usr/bin:/bin"},
            directory=str(self.work),
            output=str(self.work / f"output-{self._jobs}"),
        )
        fields.setdefault("submitted", time.time())
        fields.setdefault("estimated", fields.get("time_limit", 60.0))
        return Submission(
            tag=tag_of(INSTANCE, self._jobs, 1),
            indices=indices,
            priority=priority,
            job=Job(id=self._jobs, **fields),
            payload=replace(payload, **of_payload),
        )

    def submit(self, commands: str, **fields: Any) -> Submission:
        order = self.order(commands, **fields)
        self.adapter.submit(order)
        return order

    def cancel(self, order: Submission) -> None:
        self.adapter.withdraw(Withdrawal(tag=order.tag, native_ids=dict.fromkeys(order.indices)))

    def rows(self) -> dict[str, JobStatus]:
        return {row.tag: row for row in self.adapter.poll().rows}

    def row(self, order: Submission) -> JobStatus:
        return self.rows()[order.tag]

    def wait(self, condition: Callable[[], object], patience: float = PATIENCE) -> None:
        until = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < until, self.adapter.poll()
            time.sleep(0.01)

    def wait_end(self, order: Submission) -> JobStatus:
        self.wait(lambda: self.row(order).ended is not None)
        return self.row(order)

    def wait_file(self, name: str) -> str:
        path = self.work / name
        self.wait(lambda: path.exists() and path.read_text().endswith("\n"))
        return path.read_text()

    def claim(self, order: Submission) -> dict[str, str]:
        record = read_record(self.job_folder(order), "claim")
        assert record is not None
        return record

    def job_folder(self, order: Submission) -> Path:
        return self.folder / "jobs" / self.row(order).native_id

    def clear(self) -> None:
        self.adapter.close()
        self.adapter = self.new()
        for row in self.adapter.poll().rows:
            self.adapter.withdraw(Withdrawal(tag=row.tag, native_ids={row.task: None}))
        self.wait(lambda: all(row.ended for row in self.adapter.poll().rows))
        self.adapter.close()
        assert list((self.folder / "jobs").iterdir()) == []
        assert processes.of_cluster(self.folder) == []
        log = self.folder / "supervisor.log"
        assert not log.exists() or log.read_text() == ""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    new_site = Site(tmp_path)
    try:
        yield new_site
        new_site.clear()
    finally:
        new_site.adapter.close()
        processes.kill(processes.of_cluster(new_site.folder))


def gone(pid: int) -> bool:
    try:
        supervisor.start_time(pid)
    except ProcessLookupError:
        return True
    return False


# A process tree that is hard to end: a child in its own session whose parent exits at once.
ESCAPEE = "(setsid sh -c 'trap \"\" TERM; echo $$ > escaped; while :; do sleep 0.1; done' &) & wait"


# Options and jobs that are refused.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cpus": 0}, "cpus is 0"),
        ({"cpus": 1, "memory": 0}, "memory is 0"),
        ({"cpus": 1, "gres": {"gpu": -1}}, "gpu is -1"),
        ({"cpus": 1, "policy": "magic"}, "available are fcfs, first-fit"),
        ({"cpus": 1, "policy": "edf-p"}, 'edf-p suspends running jobs.*; write "edf"'),
        ({"cpus": 1, "kill_wait": -1.0}, "kill_wait"),
        ({"cpus": 1, "keep": float("nan")}, "keep"),
        ({"cpus": 1, "max_time": 0.0}, "max_time"),
        ({"cpus": 1, "default_time": float("inf")}, "default_time"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LocalOptions(**options)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cpus": 5}, "5 cpus requested; the cluster has 4"),
        ({"memory": 101}, "101 MiB of memory requested; the cluster has 100"),
        ({"memory_per_cpu": 26, "cpus": 4}, "104 MiB of memory"),
        ({"gres": {"gpu": 3}}, "3 gpu requested; the cluster has 2"),
        ({"gres": {"cpus": 1}, "cpus": 5}, "5 cpus"),
        ({"gres": {"fpga": 1}}, "the cluster has 0"),
        ({"nodes": 2, "tasks": 2, "cpus": 2}, "2 nodes"),
        ({"time_limit": 1000.0}, "the cluster's limit is 500 s"),
        ({"directory": "/no/such/folder"}, "'/no/such/folder' does not exist"),
        ({"script": "echo hello\n"}, "does not start with"),
        ({"script": "#!\n"}, "interpreter ''"),
        ({"script": "#!/no/such/shell -x\n"}, "'/no/such/shell' does not exist"),
        ({"script": "#!/bin/sh\r\n"}, r"'/bin/sh\\r' does not exist"),
        ({"script": "#!/etc\n"}, "'/etc' does not exist"),
        ({"environment": {"A=B": "1"}}, "'A=B' cannot be exported"),
        ({"arguments": ("a\0b",)}, "NUL"),
    ],
)
def test_what_can_never_run_is_refused(site: Site, fields: dict[str, Any], text: str) -> None:
    site.reopen(memory=100, gres={"gpu": 2}, max_time=500.0)
    with pytest.raises(Refused, match=text) as refusal:
        site.submit("touch ran", **fields)
    assert not refusal.value.retryable
    assert site.adapter.poll().rows == ()


def test_native_options_are_refused(site: Site) -> None:
    with pytest.raises(Refused, match="'--qos=high'"):
        site.adapter.submit(structs.replace(site.order("true"), options=("--qos=high",)))


def test_what_cannot_be_started_fails_with_a_word(site: Site) -> None:
    missing = site.wait_end(site.submit("true", output="/no/such/folder/out"))
    assert (missing.state, missing.exit_code) == (State.FAILED, 127)
    assert missing.manager_reason == "/no/such/folder/out: No such file or directory"
    denied = site.wait_end(site.submit("true", error=str(site.work)))
    assert (denied.state, denied.exit_code) == (State.FAILED, 126)
    assert denied.manager_reason == f"{site.work}: Is a directory"


# The environment of a job.


def test_the_environment_is_exactly_the_given_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAK", "1")
    site.reopen(gres={"fpga": 1, "gpu:a100": 2, "gpu:v100": 3})
    order = site.submit(
        "tr '\\0' '\\n' < /proc/$$/environ",
        indices=(7,),
        cpus=3,
        gres={"gpu:v100": 2, "fpga": 1},
        environment={"PATH": "/bin", "METASCHED_TAG": "mine", "X": "ż"},
    )
    site.wait_end(order)
    assert set(Path(order.payload.output).read_text().splitlines()) == {
        "PATH=/bin",
        "X=ż",
        f"METASCHED_JOB_ID={order.job.id}",
        "METASCHED_TASK=7",
        f"METASCHED_TAG={order.tag}",
        f"METASCHED_NATIVE_ID={site.row(order).native_id}",
        "METASCHED_CLUSTER=here",
        "METASCHED_CPUS=3",
        "CUDA_VISIBLE_DEVICES=2,3",
    }


def test_gpus_in_use_are_given_to_no_other_job(site: Site) -> None:
    site.reopen(gres={"gpu": 3})
    show = "echo $CUDA_VISIBLE_DEVICES > gpus-$METASCHED_JOB_ID; exec sleep 60"
    orders = [site.submit(show, gres={"gpu": count}) for count in (1, 2)]
    gpus = [site.wait_file(f"gpus-{order.job.id}") for order in orders]
    assert gpus == ["0\n", "1,2\n"]
    site.reopen()
    site.cancel(orders[0])
    site.wait_end(orders[0])
    again = site.submit(show, gres={"gpu": 1})
    assert site.wait_file(f"gpus-{again.job.id}") == "0\n"


def test_usage_is_reported(site: Site) -> None:
    script = f"#!{PYTHON}\nb = bytearray(80 << 20)\nfor i in range(10**6): b[i] = 1\n"
    row = site.wait_end(site.submit("", script=script))
    assert row.exit_code == 0
    assert row.cpu_seconds is not None
    assert 0.01 < row.cpu_seconds < 10
    assert row.max_memory is not None
    assert 80 <= row.max_memory < 160


def test_signals_and_input_are_as_in_a_fresh_process(site: Site) -> None:
    order = site.submit("grep -E '^Sig(Blk|Ign)' /proc/self/status; readlink /proc/self/fd/*")
    site.wait_end(order)
    lines = Path(order.payload.output).read_text().split("\n")
    blocked, ignored = (int(line.split()[1], 16) for line in lines[:2])
    libc_own = 1 << 31 | 1 << 32  # signals 32 and 33: the parent of the tests may ignore them
    assert (blocked, ignored & ~libc_own) == (0, 0)
    output = order.payload.output
    assert lines[2:5] == ["/dev/null", output, output]


# The order of starts.


def test_easy_backfills_and_fcfs_does_not(site: Site) -> None:
    site.reopen(policy="easy")
    site.submit("exec sleep 60", cpus=3, time_limit=100.0)
    head = site.submit("true", cpus=4)
    site.submit("exec sleep 60", time_limit=500.0)
    short = site.submit("exit 9", time_limit=50.0)
    assert site.wait_end(short).exit_code == 9
    listing = site.adapter.poll()
    assert (listing.info.queue_head, listing.info.in_order) == ((4, 3600.0), False)
    assert [row.manager_reason for row in listing.rows] == ["", "Resources", "Priority", ""]
    assert site.row(head).state is State.PENDING
    site.reopen(policy="fcfs")
    shorter = site.submit("true", time_limit=10.0)
    time.sleep(0.3)
    assert site.row(shorter).state is State.PENDING
    assert site.adapter.poll().info.in_order


@pytest.mark.parametrize("policy", ["eg-edf", "tabu", "rcbo", "conservative"])
def test_a_planned_start_is_listed_until_the_start(site: Site, policy: str) -> None:
    site.reopen(cpus=1, policy=policy)
    first = site.submit("while ! test -e end; do sleep .1; done", time_limit=200.0)
    site.wait(lambda: site.row(first).started)
    second, third = (site.submit("true", time_limit=100.0) for _ in range(2))
    site.wait(lambda: site.row(third).expected)
    rows = site.rows()
    assert rows[first.tag].expected is None
    begun = rows[first.tag].started or 0.0
    assert rows[second.tag].expected == pytest.approx(begun + 200, abs=30)
    assert rows[third.tag].expected == pytest.approx((rows[second.tag].expected or 0) + 100)
    (site.work / "end").touch()
    assert [site.wait_end(order).exit_code for order in (first, second, third)] == [0, 0, 0]
    assert site.row(third).expected is None


def test_the_queue_is_ordered_by_aged_submission(site: Site) -> None:
    site.reopen(cpus=1, age=100.0)
    now = time.time()
    blocker = site.submit("exec sleep 60")
    site.wait(lambda: site.row(blocker).state is State.RUNNING)
    mark = "echo $METASCHED_JOB_ID >> order"
    orders = [
        site.submit(mark, submitted=now),
        site.submit(mark, submitted=now - 50),
        site.submit(mark, submitted=now + 40, priority=2),
        site.submit(mark, submitted=now, priority=3),
        site.submit(mark, submitted=now),
    ]
    site.cancel(blocker)
    for order in orders:
        site.wait_end(order)
    started = [int(number) for number in (site.work / "order").read_text().split()]
    assert started == [orders[i].job.id for i in (3, 2, 1, 0, 4)]


def test_a_start_follows_an_end_without_a_poll(site: Site) -> None:
    site.reopen(cpus=1)
    for _ in range(20):
        site.submit("echo ended >> order")
    order = site.work / "order"
    site.wait(lambda: order.exists() and order.read_text() == "ended\n" * 20)
    rows = sorted(site.rows().values(), key=lambda row: row.started or 0)
    for row, later in pairwise(rows):
        assert (row.ended or 0) <= (later.started or 0)


def test_memory_is_counted(site: Site) -> None:
    site.reopen(memory=100)
    first = site.submit("exec sleep 60", memory=60)
    second = site.submit("exec sleep 60", memory=60)
    site.wait(lambda: site.row(first).state is State.RUNNING)
    time.sleep(0.2)
    assert site.row(second).state is State.PENDING
    partition = site.adapter.poll().info.partition("local")
    assert partition is not None
    assert partition.nodes[0].free_memory == 40


def test_an_exclusive_job_has_the_cluster_for_itself(site: Site) -> None:
    order = site.submit("exec sleep 60", exclusive=True)
    site.wait(lambda: site.row(order).state is State.RUNNING)
    assert site.adapter.poll().info.used_cpus == 4


# The end of a job.


def test_at_the_time_limit_a_job_may_end_itself(site: Site) -> None:
    site.reopen(kill_wait=PATIENCE)
    order = site.submit(
        "trap 'echo TERM > told; exit 3' TERM; while :; do sleep 0.05; done", time_limit=5.0
    )
    row = site.wait_end(order)
    assert (row.state, row.exit_code, row.signal) == (State.TIMEOUT, 3, None)
    assert row.manager_reason == "over its time limit"
    assert site.wait_file("told") == "TERM\n"


def test_what_ignores_its_end_is_killed_after_a_while(site: Site) -> None:
    row = site.wait_end(site.submit("trap '' TERM; while :; do sleep 0.05; done", time_limit=5.0))
    assert (row.state, row.exit_code, row.signal) == (State.TIMEOUT, None, signal.SIGKILL)
    assert row.started is not None
    assert row.ended is not None
    assert row.ended - row.started >= 5.0 + 0.45


def test_all_processes_have_the_time_that_a_cancelled_job_has(site: Site) -> None:
    """The main process exits at once; its child needs a moment to save its work."""
    site.reopen(kill_wait=5.0)
    child = (
        "trap 'sleep 0.3; echo saved > saved; exit' TERM; echo > up; while :; do sleep 0.05; done"
    )
    order = site.submit(f'sh -c "{child}" & wait')
    site.wait_file("up")
    site.cancel(order)
    row = site.wait_end(order)
    assert (row.state, row.signal) == (State.CANCELLED, signal.SIGTERM)
    assert (site.work / "saved").exists()


@pytest.mark.parametrize("end", ["cancel", "limit", "exit"])
def test_no_process_escapes(site: Site, end: str) -> None:
    limit = {"time_limit": 3.0} if end == "limit" else {}
    wait = "sleep 0.5" if end == "exit" else "sleep 60"
    order = site.submit(f"{ESCAPEE}\n{wait}".replace("& wait", "&"), **limit)
    pid = int(site.wait_file("escaped"))
    if end == "cancel":
        site.cancel(order)
    row = site.wait_end(order)
    assert row.state.value == {"cancel": "cancelled", "limit": "timeout", "exit": "completed"}[end]
    assert gone(pid)


def test_a_job_over_its_memory_is_ended(site: Site) -> None:
    script = f"#!{PYTHON}\nimport time\nb = b'x' * (120 << 20)\ntime.sleep(60)\n"
    row = site.wait_end(site.submit("", script=script, memory=60))
    assert (row.state, row.signal) == (State.OUT_OF_MEMORY, signal.SIGKILL)
    assert row.manager_reason.endswith("MiB in use")
    assert row.max_memory is not None
    assert row.max_memory > 60


def test_limits_hold_and_ends_are_known_without_an_adapter(site: Site) -> None:
    late = site.submit("exec sleep 60", time_limit=1.0)
    code = site.submit("while [ ! -e go ]; do sleep 0.02; done; exit 5")
    site.wait(lambda: all(row.started is not None for row in site.rows().values()))
    site.adapter.close()
    (site.work / "go").touch()
    site.wait(lambda: processes.of_cluster(site.folder) == [])
    all_gone = time.time()
    site.adapter = site.new()
    assert site.wait_end(late).state is State.TIMEOUT
    row = site.wait_end(code)
    assert (row.state, row.exit_code) == (State.FAILED, 5)
    assert row.started is not None
    assert row.ended is not None
    assert row.started <= row.ended <= all_gone


def test_a_reported_end_is_reported_by_the_next_start_from_its_first_listing_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasched.adapters.local.scheduler.SAVE_DELAY", 600.0)
    order = site.submit("exit 5")
    ended_row = site.wait_end(order)
    killed = site.folder.with_name("as-a-kill-leaves-it")
    shutil.copytree(site.folder, killed)
    site.folder, first = killed, site.adapter
    site.adapter = site.new()
    assert site.row(order) == ended_row
    first.close()


# Supervisors that are killed.


@pytest.mark.parametrize("watched", [True, False])
def test_a_job_without_its_supervisor_is_ended_and_reported(site: Site, watched: bool) -> None:
    order = site.submit(f"echo $$ > main; {ESCAPEE}; sleep 60")
    pids = [int(site.wait_file("main")), int(site.wait_file("escaped"))]
    claim = site.claim(order)
    if not watched:
        site.adapter.close()
    os.kill(int(claim["pid"]), signal.SIGKILL)
    if not watched:
        until = time.monotonic() + PATIENCE
        while not gone(pids[0]):  # the main process dies with its supervisor in any case
            assert time.monotonic() < until
            time.sleep(0.01)
        site.adapter = site.new()
    row = site.wait_end(order)
    assert (row.state, row.manager_reason) == (State.NODE_FAIL, "its supervisor was killed")
    assert row.started is not None
    site.wait(lambda: all(gone(pid) for pid in pids))


def test_a_job_that_signals_its_whole_group_ends_itself_only(site: Site) -> None:
    row = site.wait_end(site.submit("kill -TERM 0; sleep 60"))
    assert (row.state, row.signal, row.manager_reason) == (State.FAILED, signal.SIGTERM, "")


def test_a_supervisor_that_is_stopped_ends_its_job(site: Site) -> None:
    order = site.submit("exec sleep 60")
    site.wait(lambda: site.row(order).state is State.RUNNING)
    os.kill(int(site.claim(order)["pid"]), signal.SIGTERM)
    row = site.wait_end(order)
    assert (row.state, row.manager_reason) == (State.NODE_FAIL, "its supervisor got SIGTERM")


def test_another_process_of_that_pid_is_no_supervisor(site: Site) -> None:
    """The claim names the pid of a live process that was started at another time."""
    order = site.submit("exec sleep 60")
    site.wait(lambda: site.row(order).state is State.RUNNING)
    claim, folder = site.claim(order), site.job_folder(order)
    site.adapter.close()
    os.kill(int(claim["pid"]), signal.SIGKILL)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        lines = {**claim, "pid": str(stranger.pid)}
        (folder / "claim").write_text("".join(f"{key}={lines[key]}\n" for key in lines))
        site.adapter = site.new()
        site.cancel(order)
        row = site.wait_end(order)
        alive = stranger.poll() is None
        stranger.kill()
    assert alive
    assert row.state is State.NODE_FAIL


def test_after_a_restart_of_the_host_nothing_runs_and_nothing_is_repeated(site: Site) -> None:
    site.reopen(cpus=1)
    begun = site.submit("echo begun >> ran; exec sleep 60")
    waiting = site.submit("echo waiting >> ran")
    site.wait_file("ran")
    claim, folder = site.claim(begun), site.job_folder(begun)
    unclaimed = site.folder / "jobs" / site.row(waiting).native_id
    site.adapter.close()
    os.kill(int(claim["pid"]), signal.SIGKILL)
    lines = {**claim, "boot": "another", "pid": "1", "start": str(supervisor.start_time(1))}
    (folder / "claim").write_text("".join(f"{key}={lines[key]}\n" for key in lines))
    (folder / "spec").write_bytes(b"")  # unsynced data may be lost
    unclaimed.mkdir()
    (unclaimed / "spec").write_bytes(b"")
    with sqlite3.connect(site.folder / "queue.db") as database:
        database.execute("UPDATE opened SET boot_id = 'another'")
    database.close()
    site.adapter = site.new()
    row = site.wait_end(begun)
    assert (row.state, row.manager_reason) == (State.NODE_FAIL, "the host was restarted")
    assert site.wait_end(waiting).state is State.COMPLETED
    assert (site.work / "ran").read_text() == "begun\nwaiting\n"


def test_supervisors_that_never_come_to_their_claim_are_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[Path] = []

    def stillborn(fork_server: ForkServer, folders: Sequence[Path]) -> list[tuple[int, int]]:
        forked.extend(folders)
        return [(os.getpid(), 0) for _ in folders]

    monkeypatch.setattr(ForkServer, "fork", stillborn)
    order = site.submit("true")
    row = site.wait_end(order)
    assert len(forked) == 3
    assert (row.state, row.started) == (State.NODE_FAIL, None)
    assert row.manager_reason.startswith("no supervisor can be started: see ")
    monkeypatch.undo()
    assert site.wait_end(site.submit("exit 2")).exit_code == 2


def test_two_supervisors_of_one_folder_run_it_once(site: Site, tmp_path: Path) -> None:
    site.reopen(cpus=1)
    blocker = site.submit("exec sleep 60")
    site.wait(lambda: site.row(blocker).state is State.RUNNING)
    order = site.submit("echo ran >> ran; sleep 0.5")
    site.adapter.close()
    fork_server = ForkServer(tmp_path / "errors")
    adopted = site.new()
    site.adapter = adopted
    site.cancel(blocker)
    site.wait(lambda: (site.job_folder(order) / "spec").exists())
    fork_server.fork([site.job_folder(order)] * 20)
    site.wait_end(order)
    fork_server.close()
    assert (site.work / "ran").read_text() == "ran\n"


def test_a_killed_fork_server_is_replaced(site: Site) -> None:
    site.wait_end(site.submit("true"))
    (fork_server,) = processes.of_cluster(site.folder)
    os.kill(fork_server, signal.SIGKILL)
    assert site.wait_end(site.submit("exit 8")).exit_code == 8


# An adapter that is killed, and a second adapter.


def test_a_tag_is_queued_once(site: Site) -> None:
    order = site.order("echo $METASCHED_TASK >> ran", indices=(4, 5))
    natives = site.adapter.submit(order)
    assert site.adapter.submit(order) == natives
    site.wait(lambda: all(row.ended for row in site.adapter.poll().rows))
    assert site.adapter.submit(order) == natives
    site.reopen()
    assert site.adapter.submit(order) == natives
    assert len(site.adapter.poll().rows) == 2
    assert sorted((site.work / "ran").read_text().split()) == ["4", "5"]
    with pytest.raises(Refused, match="other tasks"):
        site.adapter.submit(structs.replace(order, indices=(5, 6)))


def test_one_process_at_a_time_holds_the_folder(site: Site) -> None:
    order = site.submit("exec sleep 60")
    second = site.new()
    for call in (
        second.poll,
        lambda: second.submit(order),
        lambda: second.withdraw(Withdrawal(tag=order.tag)),
    ):
        with pytest.raises(Unreachable, match=f"in use by process {os.getpid()}"):
            call()
    site.adapter.close()
    assert [row.tag for row in second.poll().rows] == [order.tag]
    site.adapter = second


DYING = """
import sys
from pathlib import Path
import msgspec
from metasched.adapters.base import Submission
from metasched.adapters.local.adapter import Local, LocalOptions
from metasched.model.cluster import Cluster
submissions = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Submission])
options = LocalOptions(cpus=4, kill_wait=0.5)
adapter = Local(Cluster(name="here", adapter="local"), options, sys.argv[1], Path(sys.argv[2]))
for submission in submissions:
    adapter.submit(submission)
    print(submission.tag, flush=True)
import threading
import time
time.sleep(60)
"""


def test_whenever_the_adapter_is_killed_each_job_runs_once(site: Site) -> None:
    """Kill the adapter repeatedly while it submits and starts jobs; then submit all again."""
    orders = [site.order(f"echo {n} >> ran; sleep 0.02; exit {n}") for n in range(60)]
    recorded: list[str] = []
    for after in (1, 7, 20, 35, 36, 60):
        with subprocess.Popen(
            [sys.executable, "-c", DYING, INSTANCE, str(site.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as adapter:
            assert adapter.stdin is not None
            assert adapter.stdout is not None
            adapter.stdin.write(msgspec.json.encode(orders))
            adapter.stdin.close()
            recorded = [adapter.stdout.readline().decode().strip() for _ in range(after)]
            adapter.kill()
    assert recorded == [order.tag for order in orders]
    rows = [site.wait_end(order) for order in orders]
    assert [row.exit_code for row in rows] == list(range(60))
    assert sorted(map(int, (site.work / "ran").read_text().split())) == list(range(60))


def test_ended_jobs_are_forgotten_in_time(site: Site) -> None:
    site.reopen(keep=0.5)
    site.submit("echo ended > ended")
    site.wait_file("ended")
    listing = site.adapter.poll()
    assert listing.since >= listing.taken - 0.5
    site.wait(lambda: site.adapter.poll().rows == ())
    later = site.submit("exec sleep 60")
    site.wait(lambda: later.tag in site.rows())
    assert site.row(later).native_id != "1"


@pytest.mark.slow("SQLite waits for the lock until its time limit")
def test_a_disk_that_fails_makes_it_unreachable_and_loses_nothing(site: Site) -> None:
    order = site.submit("sleep 0.5; exit 3")
    site.wait(lambda: site.row(order).state is State.RUNNING)
    blocking = sqlite3.connect(site.folder / "queue.db", isolation_level=None)
    blocking.execute("BEGIN IMMEDIATE")
    second = site.order("echo ran >> ran")
    with pytest.raises(Unreachable, match="database is locked"):
        site.adapter.submit(second)
    blocking.close()
    scheduler = site.adapter._scheduler
    assert scheduler is not None
    site.wait(lambda: not scheduler.reload_needed)
    assert second.tag not in site.rows()
    site.adapter.submit(second)
    assert site.wait_end(order).exit_code == 3
    assert site.wait_end(second).exit_code == 0
    assert (site.work / "ran").read_text() == "ran\n"


# Use of memory and CPU.


def test_a_supervisor_is_small(site: Site) -> None:
    """Measure PSS without the fork server: no pages are shared, which is the worst case."""
    order = site.submit("exec sleep 60")
    site.wait(lambda: site.row(order).state is State.RUNNING)
    pid = site.claim(order)["pid"]
    site.adapter.close()
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (pss,) = (int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert pss < 10_000, f"{pss} kB"


def test_it_sleeps_when_nothing_happens(site: Site) -> None:
    order = site.submit("exec sleep 60")
    site.wait(lambda: site.row(order).state is State.RUNNING)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    time.sleep(2.0)
    wake_ups = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    assert wake_ups < 20  # a loop that looks every tenth of a second makes more


class Failing:
    """A policy of another package: it fails, or starts what it must not."""

    in_order = False

    def __init__(self, starts: Callable[[Any], Any]) -> None:
        self._starts = starts
        self.calls = 0

    def choose_starts(self, _now: float, queue: Any, _running: Any, _free: Any) -> Any:
        self.calls += 1
        return self._starts(queue)


@pytest.mark.parametrize(
    "starts",
    [
        lambda queue: 1 / 0,
        lambda queue: [(999, 0)],
        lambda queue: [(queue[0].id, 0), (queue[0].id, 0)],
        lambda queue: [(job.id, 0) for job in queue],  # more than there are processors
        lambda queue: None,
    ],
)
def test_a_policy_that_fails_stops_no_cluster(
    site: Site, monkeypatch: pytest.MonkeyPatch, starts: Callable[[Any], Any]
) -> None:
    policy = Failing(starts)
    monkeypatch.setitem(registry.POLICIES, "failing", lambda: policy)
    site.reopen(policy="failing")
    orders = [site.submit("exec sleep 0.1", cpus=3) for _ in range(3)]
    for order in orders:
        assert site.wait_end(order).state is State.COMPLETED
    assert policy.calls
    exclusions = site.adapter.exclusions
    assert exclusions is not None
    assert 1 <= exclusions.passes <= policy.calls  # with room for all that wait it is right
    assert exclusions.reason


AddPolicy = Callable[[str, str, str], None]  # name, its class, source of the module


@pytest.fixture
def add_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddPolicy:
    """Return a function that installs a policy of another package, for its process, too."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)

    def add(name: str, class_name: str, source: str) -> None:
        groups = {registry.POLICY_GROUP: {name: class_name}}
        install(tmp_path, f"{class_name.lower()}_policy", source, groups)

    return add


HOLDING_THE_LOCK = """\
class Holding:
    def choose_starts(self, now, queue, running, free):
        return sum(range(10**15))
"""


def test_a_policy_that_holds_the_lock_stops_no_cluster(
    site: Site, add_policy: AddPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_policy("holding", "Holding", HOLDING_THE_LOCK)
    monkeypatch.setattr(scheduler, "PolicyHost", partial(PolicyHost, pass_seconds=0.1))
    site.reopen(policy="holding")
    orders = [site.submit("true", cpus=3) for _ in range(3)]
    for order in orders:
        assert site.wait_end(order).state is State.COMPLETED
    exclusions = site.adapter.exclusions
    assert exclusions is not None
    assert exclusions.reason.startswith("no answer within 0.1 s")


HANGING_ONCE = """\
import os, time
from metasched.policies.local.orders import FirstFit

class HangingOnce(FirstFit):
    def choose_starts(self, now, queue, running, free):
        if len(queue) == 2 and not os.path.exists({mark!r}):
            os.mkdir({mark!r})
            time.sleep(600)
        return super().choose_starts(now, queue, running, free)
"""


def test_a_suspended_policy_is_asked_again_without_an_event(
    site: Site, add_policy: AddPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FCFS starts nothing behind the second job, and nothing else happens."""
    mark = tmp_path / "has hung"
    add_policy("hanging-once", "HangingOnce", HANGING_ONCE.format(mark=str(mark)))
    host = partial(PolicyHost, pass_seconds=1.0, first_suspension=0.5)
    monkeypatch.setattr(scheduler, "PolicyHost", host)
    site.reopen(policy="hanging-once")
    first = site.submit("exec sleep 600", cpus=3)
    site.wait(lambda: site.row(first).state is State.RUNNING)
    site.submit("true", cpus=4)
    small = site.submit("true", cpus=1)
    assert site.wait_end(small).state is State.COMPLETED
    assert mark.exists()


def test_calls_do_not_wait_for_the_import_of_a_policy(
    site: Site, add_policy: AddPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_policy("holding", "Holding", HOLDING_THE_LOCK)
    begun, may_end = threading.Event(), threading.Event()

    def prepare(host: PolicyHost) -> None:
        if not may_end.is_set():
            begun.set()
            may_end.wait()
            host._suspend("it has hung")

    monkeypatch.setattr(PolicyHost, "prepare", prepare)
    site.reopen(policy="holding")
    with ThreadPoolExecutor(1) as calls:
        try:
            order = calls.submit(site.submit, "true", cpus=1).result(60.0)
            assert begun.wait(60.0)
            state = calls.submit(lambda: site.row(order).state).result(60.0)
        finally:
            may_end.set()
    assert state is State.PENDING
    assert site.wait_end(order).state is State.COMPLETED


def test_no_task_but_a_start_waits_for_the_import_of_a_policy(
    site: Site, add_policy: AddPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_policy("hanging", "Hanging", "import time\ntime.sleep(600)\n")
    running = site.submit(f"until [ -e {tmp_path}/end ]; do sleep 0.1; done", cpus=1)
    site.wait(lambda: site.row(running).state is State.RUNNING)
    monkeypatch.setattr(scheduler, "PolicyHost", partial(PolicyHost, load_seconds=600.0))
    site.reopen(policy="hanging")
    waiting = site.submit("true", cpus=1)
    (tmp_path / "end").touch()
    assert site.wait_end(running).state is State.COMPLETED
    assert site.row(waiting).state is State.PENDING
    monkeypatch.undo()
    site.reopen()
    assert site.wait_end(waiting).state is State.COMPLETED


REVERSING = """\
from metasched.policies.local.orders import FirstFit

class Reversing(FirstFit):
    in_order = False

    def sort_queue(self, queue):
        return list(reversed(queue))
"""


def test_a_policy_is_asked_about_the_head_of_a_long_queue(
    site: Site, add_policy: AddPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_policy("reversing", "Reversing", REVERSING)
    monkeypatch.setattr(scheduler, "MAX_ASKED", 3)
    site.reopen(policy="reversing")
    first = site.submit("exec sleep 600", cpus=4)
    site.wait(lambda: site.row(first).state is State.RUNNING)
    orders = [site.submit("sleep 0.2", cpus=4) for _ in range(4)]
    site.cancel(first)
    for order in orders:
        assert site.wait_end(order).state is State.COMPLETED
    starts = [(site.row(order).started or 0.0, number) for number, order in enumerate(orders)]
    # the last of three waiting goes first, each time
    assert [number for _, number in sorted(starts)] == [2, 3, 1, 0]
    assert site.adapter.exclusions == PolicyExclusions(0, False, "")


def test_a_policy_that_cannot_be_made_leaves_fcfs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.POLICIES, "failing", lambda: 1 / 0)
    site.reopen(policy="failing")
    assert site.wait_end(site.submit("true")).state is State.COMPLETED
