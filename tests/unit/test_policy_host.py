"""Local policies of other packages in a process beside the worker of their cluster."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from metasched.adapters.local import policy_host
from metasched.adapters.local.adapter import Local
from metasched.adapters.local.options import LocalOptions
from metasched.adapters.local.policy_host import PolicyExcluded, PolicyHost, traits_of
from metasched.adapters.local.policy_process import PolicyTraits
from metasched.policies.local import registry
from metasched.policies.local.queueing import (
    EMPTY,
    FreeResources,
    JobStart,
    ReservedWindow,
    RunningJob,
    WaitingJob,
)
from metasched.processes.confinement import MAX_SUSPENSION, confined_command, confined_environment
from metasched.processes.frames import receive_frame
from tests.harness.looks import looks
from tests.harness.plug_in_packages import install

MODULE = """\
import math, os, subprocess, time
from metasched.policies.local.orders import FCFS, FirstFit

class Last(FirstFit):
    in_order = keeps_windows = False

    def sort_queue(self, queue):
        print("its output is lost")
        return list(reversed(queue))

class Planning(FCFS):
    def planned_starts(self):
        return {1: 5, 2: math.inf}

class Confused(FCFS):
    def planned_starts(self):
        return {1: "soon"}

def by_name(queue):
    return ACTS[queue[0].user]()

def swallowing():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def hungry():
    taken = []
    while True:
        taken.append(bytearray(2**24))

def write(garbage):
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, garbage)
        except OSError:
            pass
    os._exit(0)

def endless():
    while True:
        yield 1, 0

ACTS = {
    "raise": lambda: 1 / 0,
    "leave": lambda: exit("gone"),
    "read": input,
    "fork": os.fork,
    "run": lambda: subprocess.run(["true"]),
    "take memory": hungry,
    "names": lambda: [("one", 0)],
    "few": lambda: [()],
    "nothing": lambda: None,
    "hang": swallowing,
    "hold the lock": lambda: sum(range(10**15)),
    "end": lambda: os._exit(3),
    "write garbage": lambda: write(b"[" * 99),
    "write half": lambda: write(bytes((0, 0, 0, 99))),
    "endless": endless,
    "first": lambda: [(1, 0)],
}

class Acting(FCFS):
    def choose_starts(self, now, queue, running, free):
        return by_name(queue)

class Unmade(FCFS):
    def __init__(self):
        raise SystemExit("not today")

class Hanging(FCFS):
    def __init__(self):
        time.sleep(600)
"""
NAMES = ("Last", "Planning", "Confused", "Acting", "Unmade", "Hanging")
FREE = FreeResources(2, {"gpu": 1})


@pytest.fixture(autouse=True, scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install policies; no test may import them in this process."""
    folder = tmp_path_factory.mktemp("packages")
    install(
        folder,
        "their_local_policies",
        MODULE,
        {registry.POLICY_GROUP: {name.lower(): name for name in NAMES}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.syspath_prepend(folder)
        registry._entry_points.cache_clear()
        yield
    registry._entry_points.cache_clear()


@contextmanager
def hosting(
    name: str, seconds: float = 60.0, first_suspension: float = 600.0
) -> Iterator[PolicyHost]:
    with closing(PolicyHost(name, seconds, first_suspension=first_suspension)) as host:
        yield host


def ask(
    host: PolicyHost,
    queue: list[WaitingJob],
    running: list[RunningJob],
    free: FreeResources,
) -> list[JobStart]:
    """Wait until its process has started or is suspended; return what the policy chooses."""
    for _ in looks(60.0):
        host.prepare()
        if host._starting is None:
            break
    return host.choose_starts(0.0, queue, running, free)


def job(act: str = "") -> WaitingJob:
    return WaitingJob(1, 2, 10.0, {"gpu": 1}, user=act)


def test_a_policy_decides_in_a_process_and_is_not_imported_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is imported")

    monkeypatch.setattr(registry, "_load_factory", refuse)
    options = LocalOptions(cpus=2, policy="last")
    assert not Local.capabilities_for(options).reservations
    assert traits_of("last") == PolicyTraits(False, False, False)
    queue = [job(), WaitingJob(2, 2, float("inf"), EMPTY)]
    running = [RunningJob(3, 1, 50.0)]
    with hosting("last") as host:
        assert ask(host, queue, running, FREE) == [JobStart(2)]
        pid = host.pid
        assert pid is not None
        assert not hasattr(host, "planned_starts")
        windows = (ReservedWindow(5.0, 6.0, 1),)
        with pytest.raises(PolicyExcluded, match="it keeps no reserved windows"):
            ask(host, queue, running, FREE._replace(windows=windows))
        assert ask(host, queue, running, FREE) == [JobStart(2)]
        assert host.pid == pid
    assert not os.path.exists(f"/proc/{pid}")


def test_what_a_policy_raises_excludes_it_from_that_pass_alone() -> None:
    reasons = {
        "raise": "ZeroDivisionError",
        "read": "EOFError",  # before "leave", which closes the input
        "leave": "SystemExit: gone",
        "fork": "PermissionError: os.fork is not",
        "run": "PermissionError: subprocess.Popen is not",
        "take memory": "MemoryError",
        "names": "TypeError: 'str' object",
        "few": "TypeError: .*'id'",
        "nothing": "TypeError",
    }
    with hosting("acting") as host:
        pids = set()
        for act, reason in reasons.items():
            with pytest.raises(PolicyExcluded, match=reason):
                ask(host, [job(act)], [], FREE)
            pids.add(host.pid)
        assert ask(host, [job("first")], [], FREE) == [JobStart(1)]
        # more than wait are never read
        assert ask(host, [job("endless")], [], FREE) == [JobStart(1)] * 2
        assert pids == {host.pid}


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("hang", "no answer within 0.2 s"),
        ("hold the lock", "no answer within 0.2 s"),
        ("end", "its process ended"),
        ("write garbage", "an answer of more than 16 MiB"),
        ("write half", "its process ended"),
    ],
)
def test_a_process_that_fails_is_killed_and_its_policy_suspended(act: str, reason: str) -> None:
    with hosting("acting", seconds=60.0, first_suspension=0.0) as host:
        assert ask(host, [job("first")], [], FREE) == [JobStart(1)]
        pid = host.pid
        host._pass_seconds = 0.2 if "no answer" in reason else 60.0
        with pytest.raises(PolicyExcluded, match=reason):
            ask(host, [job(act)], [], FREE)
        assert host.pid is None
        assert not os.path.exists(f"/proc/{pid}")
        host._pass_seconds, host._delay = 60.0, 600.0
        # a suspension of no time is over: another process answers
        assert ask(host, [job("first")], [], FREE) == [JobStart(1)]
        host._pass_seconds = 0.2 if "no answer" in reason else 60.0
        with pytest.raises(PolicyExcluded, match=reason):
            ask(host, [job(act)], [], FREE)
        for _ in range(2):
            with pytest.raises(PolicyExcluded, match=f"{reason}; it is asked again in 600 s"):
                ask(host, [job("first")], [], FREE)
        assert host._delay == MAX_SUSPENSION


def test_a_process_whose_worker_has_died_before_its_start_imports_no_policy() -> None:
    """Nobody would end an import that hangs."""
    worker, theirs = socket.socketpair()
    worker.close()
    with theirs:
        command = confined_command("metasched.adapters.local.policy_process", "hanging")
        environment = confined_environment()
        ended = subprocess.run(command, stdin=theirs.fileno(), env=environment, timeout=60.0)
    assert ended.returncode == 1


def test_a_policy_that_cannot_be_created_leaves_the_traits_of_fcfs() -> None:
    assert Local.capabilities_for(LocalOptions(cpus=2, policy="unmade")).reservations
    with hosting("unmade") as host:
        with pytest.raises(PolicyExcluded, match="SystemExit: not today"):
            ask(host, [job()], [], FREE)
        with pytest.raises(PolicyExcluded, match="asked again in"):
            ask(host, [job()], [], FREE)


def test_after_a_failure_no_pass_waits_for_an_import() -> None:
    """Tasks wait for the first start alone, so that the policy decides from the beginning."""
    with closing(PolicyHost("hanging", 60.0, load_seconds=0.5, first_suspension=0.0)) as host:
        assert host.in_order  # of FCFS, since nothing is known yet
        assert host.prepare() is not None
        assert host.is_first_start
        with pytest.raises(PolicyExcluded, match="its process starts again, after: no answer"):
            ask(host, [job()], [], FREE)
        assert not host.is_first_start
        host._load_seconds = 600.0
        descriptor = host.prepare()
        assert descriptor is not None
        assert host.due is not None
        assert host.due > time.monotonic() + 500.0
        assert host.prepare() is None
        with pytest.raises(PolicyExcluded, match="its process starts again, after: no answer"):
            host.choose_starts(0.0, [job()], [], FREE)
        assert host._starting is not None
        pid = host._starting.pid
        assert os.path.exists(f"/proc/{pid}")
    assert not os.path.exists(f"/proc/{pid}")
    with closing(PolicyHost("last", 60.0, first_suspension=0.0)) as host:
        host._suspend("tried before")
        descriptor = host.prepare()
        assert descriptor is not None
        readable = select.poll()
        readable.register(descriptor, select.POLLIN)
        assert readable.poll(60_000)
        assert host.prepare() is None
        assert host.pid is not None
        assert not host.in_order


def test_planned_starts_are_checked() -> None:
    """A listing of the cluster would end with them."""
    with hosting("planning") as host:
        ask(host, [job()], [], FREE)
        assert host.planned_starts() == {1: 5.0}
    with hosting("confused") as host, pytest.raises(PolicyExcluded, match="ValueError"):
        ask(host, [job()], [], FREE)


@pytest.mark.parametrize(
    "answer",
    [
        b"\xc1",
        b"\x93\x01\x02\x03",
        b"\x81\xa6starts\x91\x01",
        pytest.param(b"\x81\xa1x" + b"\x91" * 10**5, id="deep"),
    ],
)
def test_an_answer_that_is_none_suspends(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosting("acting") as host:
        ask(host, [job("first")], [], FREE)
        monkeypatch.setattr(
            policy_host, "receive_frame", lambda *given: receive_frame(*given) and answer
        )
        with pytest.raises(PolicyExcluded, match="an answer that is none"):
            ask(host, [job("first")], [], FREE)
        assert host.pid is None
