"""The process of the plug-ins: whatever a plug-in does, others answer and the daemon goes on.

The times of the host are so long here that only a plug-in that never answers exceeds them; the
host is given a short one where it has to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from metasched.model.job import Job
from metasched.plug_ins import host as host_module
from metasched.plug_ins.host import PlugInHost
from metasched.plug_ins.messages import Question
from metasched.policies.heuristic import ClusterTraits
from metasched.policies.plug_in_ratings import PlugIn, PlugInKind, Rating
from tests.harness.plug_in_packages import install

MODULE = """\
import os
import signal
import subprocess
import sys
import time

from metasched.policies.heuristic import Heuristic, PlacementHeuristic


class Five(Heuristic):
    def contribution(self, job):
        print("5" * 100)
        sys.stderr.write("5" * 100)
        os.write(1, b"{}\\n")
        return 5


class Small(PlacementHeuristic):
    def rating(self, job, cluster):
        return 1 / cluster.cpus


class Hostile(Heuristic):
    def contribution(self, job):
        return getattr(self, job.name)() if job.name else 3

    def hang(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        while True:
            time.sleep(60)

    def stop(self):
        signal.raise_signal(signal.SIGSTOP)

    def die(self):
        os._exit(0)

    def allocate(self):
        kept = []
        while True:
            kept.append(bytearray(2**24))

    def exit(self):
        sys.exit(1)

    def fork(self):
        while True:
            os.fork()

    def command(self):
        return subprocess.run(["sleep", "60"]).returncode

    def kill_parent(self):
        os.kill(os.getppid(), signal.SIGKILL)

    def write(self):
        return os.write(os.open("/tmp", os.O_TMPFILE | os.O_WRONLY), b"x")

    def flood(self):
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b"[" * 2**23)
            except OSError:
                pass
        return 3

    def nest(self):
        from metasched.processes.frames import framed

        for descriptor in range(3, 20):
            try:
                os.write(descriptor, framed(b'{"x":' + b"[" * 50_000))
            except OSError:
                pass
        os._exit(0)

    def forge(self):
        from metasched.processes.frames import framed

        for descriptor in range(3, 20):
            try:
                os.write(descriptor, framed(b'{"id":"","ratings":[{"value":9}]}') * 3)
            except OSError:
                pass
        os._exit(0)

    def environment(self):
        return 4 if "METASCHED_SECRET" not in os.environ else 9


class Stuck(Heuristic):
    def __init__(self):
        time.sleep(3600)

    def contribution(self, job):
        return 1


class Fatal(Five):
    def __init__(self):
        os._exit(0)
"""
GROUPS = {
    "metasched.heuristics": {
        "five": "Five",
        "hostile": "Hostile",
        "stuck": "Stuck",
        "fatal": "Fatal",
        "fatal2": "Fatal",
    },
    "metasched.placement": {"small": "Small"},
}
CLUSTERS = [ClusterTraits("left", "local", 1.0, 8), ClusterTraits("right", "local", 1.0, 4)]
FIVE = PlugIn(PlugInKind.PRIORITY, "five", 10)
HOSTILE = PlugIn(PlugInKind.PRIORITY, "hostile", 10)
SMALL = PlugIn(PlugInKind.PLACEMENT, "small", 10)
STUCK = PlugIn(PlugInKind.PRIORITY, "stuck", 10)
ABSENT = PlugIn(PlugInKind.PRIORITY, "absent", 10)
FATAL = [PlugIn(PlugInKind.PRIORITY, name, 10) for name in ("fatal", "fatal2")]
LONG = 300.0  # seconds


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "host_heuristics", MODULE, GROUPS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("METASCHED_SECRET", "x")


@asynccontextmanager
async def running(*plug_ins: PlugIn, **times: float) -> AsyncIterator[PlugInHost]:
    values: dict[str, Any] = {
        "call_seconds": LONG,
        "ask_seconds": LONG,
        "load_seconds": LONG,
        **times,
    }
    earlier = set(children())  # of earlier tests of this process
    host = PlugInHost(plug_ins, **values)
    task = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if host_module.KILL_SECONDS >= 1.0:
            assert not left_since(earlier), "a process is left behind"


def children() -> list[psutil.Process]:
    """Return the processes below this one; a database of other tests starts and ends its own."""
    below = psutil.Process().children(recursive=True)
    names = {}
    for process in below:
        with suppress(psutil.NoSuchProcess):
            names[process] = process.name()
    return [process for process, name in names.items() if name != "postgres"]


def left_since(earlier: set[psutil.Process]) -> list[psutil.Process]:
    """Return the new processes that no earlier process has started, as managers do at any time."""
    left = []
    for process in set(children()) - earlier:
        with suppress(psutil.NoSuchProcess):
            if earlier.isdisjoint(process.parents()):
                left.append(process)
    return left


def job(name: str = "", id: int = 0) -> Job:
    return Job(id=id, submitted=0, estimated=100.0, name=name)


async def rate(host: PlugInHost, *names: str, user: str = "ada") -> list[dict[str, Rating]]:
    answers = await host.ask([job(name) for name in names], CLUSTERS, user)
    return [{plug_in.name: rating for plug_in, rating in row.items()} for row in answers]


def check(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(2 * LONG):
            await test()

    asyncio.run(limited())


def test_values_of_all_kinds_arrive_whatever_is_printed() -> None:
    async def test() -> None:
        async with running(FIVE, SMALL, HOSTILE, ABSENT) as host:
            rows = await rate(host, *[""] * 150)
            assert len(rows) == 150
            assert all((row["five"], row["hostile"]) == (Rating(5.0), Rating(3.0)) for row in rows)
            assert rows[0]["small"] == Rating(by_cluster={"left": 0.125, "right": 0.25})
            assert rows[0]["absent"].error.startswith("no entry point absent")
            assert [state.problem != "" for state in host.states()] == [False] * 3 + [True]
            assert host.states()[3].excluded == 150
            [secret] = await rate(host, "environment")
            assert secret["hostile"] == Rating(4.0)

    check(test)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("fork", "PermissionError: os.fork is not allowed in a plug-in"),
        ("command", "PermissionError: subprocess.Popen is not allowed in a plug-in"),
        ("kill_parent", "PermissionError: os.kill is not allowed in a plug-in"),
        ("write", "OSError: [Errno 27] File too large"),
        ("allocate", "MemoryError: "),
        ("exit", "SystemExit: 1"),
    ],
)
def test_an_act_that_fails_excludes_the_plug_in_for_the_job_alone(act: str, reason: str) -> None:
    async def test() -> None:
        async with running(HOSTILE, FIVE) as host:
            failed, well = await rate(host, act, "")
            assert failed["hostile"] == Rating(error=reason)
            assert failed["five"] == well["five"] == Rating(5.0)
            assert well["hostile"] == Rating(3.0)
            assert host.states()[0].problem == ""

    check(test)


@pytest.mark.parametrize(
    ("act", "reason", "seconds"),
    [
        ("hang", "no answer within 1 s", 1.0),
        ("stop", "no answer within 1 s", 1.0),
        ("die", "the process of the plug-ins ended", LONG),
        ("flood", "an answer of more than 16 MiB", LONG),
        ("nest", "an answer that is no message", LONG),
    ],
)
def test_a_plug_in_that_ends_the_process_is_suspended_for_its_user(
    act: str, reason: str, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        times = {"call_seconds": seconds, "first_suspension": LONG}
        async with running(FIVE, HOSTILE, SMALL, **times) as host:
            assert (await rate(host, ""))[0]["hostile"] == Rating(3.0)
            [failed] = await rate(host, act)
            assert failed["hostile"].error == f"{reason}; it is asked again after 300 s"
            assert failed["five"] == Rating(5.0)  # it was asked before
            assert "another plug-in failed" in failed["small"].error
            host.call_seconds = LONG
            [next_row] = await rate(host, "")
            assert next_row["hostile"].error == failed["hostile"].error
            assert next_row["five"] == Rating(5.0)
            assert next_row["small"].by_cluster is not None
            [other] = await rate(host, "", user="ben")  # nothing of that concerns him
            assert other["hostile"] == Rating(3.0)
            assert host.states()[1].problem == ""

    with caplog.at_level(logging.WARNING):
        check(test)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "heuristics.hostile" in line]) == 1
    assert all("\n" not in line for line in lines)


def test_a_value_that_was_written_before_the_question_is_none() -> None:
    async def test() -> None:
        async with running(HOSTILE, FIVE, first_suspension=0.01) as host:
            await rate(host, "forge", user="eve")
            while (row := (await rate(host, "", user="ada"))[0])["five"] != Rating(5.0):
                assert row["five"].error
                assert row["hostile"].error or row["hostile"] == Rating(3.0)

    check(test)


def test_a_plug_in_that_fails_for_a_second_user_is_suspended_for_all() -> None:
    async def test() -> None:
        async with running(FIVE, HOSTILE, first_suspension=LONG) as host:
            await rate(host, "die", user="ada")
            await rate(host, "die", user="ben")
            [row] = await rate(host, "", user="cid")
            assert "ended" in row["hostile"].error
            assert row["five"] == Rating(5.0)
            assert "ended" in host.states()[1].problem

    check(test)


def test_a_suspended_plug_in_is_asked_again() -> None:
    async def test() -> None:
        async with running(HOSTILE, first_suspension=0.01) as host:
            for user in ("ada", "ben"):
                await rate(host, "die", user=user)
            while (await rate(host, "", user="cid"))[0]["hostile"] != Rating(3.0):
                await asyncio.sleep(0.01)

    check(test)


def test_a_plug_in_that_hangs_while_it_is_created_keeps_no_other_waiting_for_ever() -> None:
    async def test() -> None:
        async with running(FIVE, STUCK, load_seconds=5.0, first_suspension=LONG) as host:
            [row] = await rate(host, "")
            assert row["five"] == Rating(5.0)
            assert row["stuck"].error.startswith("no answer within 5 s")

    check(test)


def test_what_cannot_be_loaded_is_tried_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[int]()
    start = host_module._Process.start

    async def count(plug_ins: Sequence[PlugIn]) -> Any:
        started.append(len(plug_ins))
        return await start(plug_ins)

    async def test() -> None:
        # a suspension is over before the next load has failed
        async with running(*FATAL, FIVE, first_suspension=0.0) as host:
            await host._ready.wait()
            assert started[:3] == [3, 2, 1]
            [row] = await rate(host, "")
            assert row["five"] == Rating(5.0)

    monkeypatch.setattr(host_module._Process, "start", count)
    check(test)


def test_whoever_waits_while_a_plug_in_fails_waits_for_the_next_process() -> None:
    async def test() -> None:
        async with running(FIVE, HOSTILE, first_suspension=LONG) as host:
            await rate(host, "")
            asked = [("die", "eve"), ("", "ada"), ("", "ben")]
            rows = await asyncio.gather(*(rate(host, act, user=user) for act, user in asked))
            assert rows[0][0]["hostile"].error
            assert all((r["five"], r["hostile"]) == (Rating(5.0), Rating(3.0)) for [r] in rows[1:])

    check(test)


def test_a_plug_in_that_answers_and_fails_by_turns_is_suspended_longer_each_time() -> None:
    async def test() -> None:
        async with running(HOSTILE, first_suspension=0.01) as host:
            for failures in range(1, 4):
                await rate(host, "die", user="eve")
                assert host._suspended[HOSTILE, "eve"].delay == 0.01 * 2 ** (failures - 1)
                while (await rate(host, "", user="eve"))[0]["hostile"] != Rating(3.0):
                    await asyncio.sleep(0.01)

    check(test)


def test_a_killed_process_that_does_not_end_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a read of a file system that hangs."""

    async def never_ends(process: asyncio.subprocess.Process) -> int:
        await asyncio.Event().wait()
        return 0

    async def test() -> None:
        async with running(FIVE, HOSTILE, call_seconds=1.0, first_suspension=LONG) as host:
            [failed] = await rate(host, "hang", user="eve")
            assert failed["hostile"].error
            host.call_seconds = LONG
            [row] = await rate(host, "")
            assert row["hostile"] == Rating(3.0)
        while left_since(earlier):  # they are killed all the same
            await asyncio.sleep(0.01)

    earlier = set(children())  # a database of earlier tests may be one
    monkeypatch.setattr(host_module, "KILL_SECONDS", 0.01)
    monkeypatch.setattr(asyncio.subprocess.Process, "wait", never_ends)
    check(test)


def test_a_changed_package_is_loaded_at_a_reload(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(FIVE) as host:
            assert (await rate(host, ""))[0]["five"] == Rating(5.0)
            changed = MODULE.replace("return 5", "return 6")
            (tmp_path / "host_heuristics.py").write_text(changed)
            host.renew()
            while (await rate(host, ""))[0]["five"] != Rating(6.0):
                await asyncio.sleep(0.01)

    check(test)


def test_a_question_has_fewer_jobs_the_more_calls_each_needs() -> None:
    async def test() -> None:
        async with running(FIVE, SMALL) as host:
            await rate(host, "")
            assert host._process is not None
            sizes, ask = list[int](), host._process.ask

            async def count(question: Question, seconds: float) -> Any:
                sizes.append(len(question.jobs))
                return await ask(question, seconds)

            host._process.ask = count  # type: ignore[method-assign]
            rows = await rate(host, *[""] * 50)
            assert sizes == [21, 21, 8]  # 3 calls for a job, 64 at a time
            assert len(rows) == 50

    check(test)


def test_a_question_waits_for_its_turn_only_so_long() -> None:
    async def test() -> None:
        async with running(FIVE) as host:
            await rate(host, "")
            host.ask_seconds = 0.01
            for turn in (host._turn, host._user_turns["ada"]):
                async with turn:
                    [row] = await rate(host, "")
                assert "other jobs were being rated" in row["five"].error
            host.ask_seconds = LONG
            assert (await rate(host, ""))[0]["five"] == Rating(5.0)

    check(test)


def test_a_cancelled_question_leaves_no_answer_for_the_next() -> None:
    async def test() -> None:
        async with running(FIVE, HOSTILE) as host:
            asked = asyncio.create_task(rate(host, "hang"))
            while not host._turn.locked():
                await asyncio.sleep(0.01)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            [row] = await rate(host, "")
            assert (row["five"], row["hostile"]) == (Rating(5.0), Rating(3.0))

    check(test)
