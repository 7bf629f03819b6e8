"""Arrays: duration and memory of calls on many tasks, and whether waiting tasks slow others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from metasched.client.client import Client
from metasched.client.job_answers import SubmittedJob
from tests.bench.conftest import Record
from tests.bench.test_daemon import seconds, submission
from tests.bench.test_recovery import occupy, restart_after_a_kill
from tests.e2e.conftest import Site
from tests.harness.slurm import SlurmSite

TASKS, AT_A_TIME, RUN, ROUNDS = 10_000, 50, 500, 1
OPEN = "queued,held,dispatching,pending,running"
SENT = 1_000  # to two Slurm clusters, as native arrays
ARRAYS, ARRAY_SIZE = 5, 100_000
CALM = 5.0  # seconds for which another client is measured alone
CYCLES = 3  # of release and hold, of which the median counts


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_calls_on_ten_thousand_tasks(running: Site, record: Record) -> None:
    client = Client(running.folder / "ms.sock", timeout=300)
    spent: dict[str, list[float]] = {}

    def submit(name: str, limit: str = "", **fields: Any) -> str:
        rows: list[SubmittedJob] = []
        new = submission(running.folder, array=f"1-{TASKS}{limit}", **fields)
        timed(name, lambda: rows.extend(client.submit(new)))
        return str(rows[0]["job"])

    def timed(name: str, call: Callable[[], object]) -> None:
        spent.setdefault(name, []).append(seconds(call))

    for _ in range(ROUNDS):
        limited = submit("accepted, with a limit", limit=f"%{AT_A_TIME}", held=True)
        paired = submit(
            "accepted, depending task by task on another", dependency=f"aftercorr:{limited}"
        )
        dispatching = submit("accepted and being dispatched")
        timed("listed while tasks are dispatched", lambda: client.jobs([limited]))  # noqa: B023 - called at once
        timed("one task explained", lambda: client.explain(f"{limited}_{TASKS}"))  # noqa: B023
        timed("story of one task", lambda: client.story(f"{limited}_{TASKS}"))  # noqa: B023
        timed("cancelled while being dispatched", lambda: client.change("cancel", [dispatching]))  # noqa: B023
        timed("released", lambda: client.change("release", [limited]))  # noqa: B023
        timed("two waiting arrays cancelled", lambda: client.change("cancel", [limited, paired]))  # noqa: B023
        running.until(lambda: not client.jobs(state=OPEN), 300)
    for name, rounds in spent.items():
        record(name, median(rounds), "s")


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_running_tasks_do_not_feel_the_rest(running: Site, record: Record) -> None:
    """Rate of the first 500 tasks that end, 50 at a time: alone, and beside 9,500 waiting tasks."""
    client = Client(running.folder / "ms.sock", timeout=300)

    def rate(tasks: int) -> float:
        begun = time.perf_counter()
        array = submission(running.folder, array=f"1-{tasks}%{AT_A_TIME}")
        job = str(client.submit(array)[0]["job"])
        running.until(lambda: len(client.jobs([f"{job}_[1-{RUN}]"], state="completed")) == RUN, 300)
        took = time.perf_counter() - begun
        client.change("cancel", [job])
        running.until(lambda: not client.jobs(state=OPEN), 300)
        return RUN / took

    alone, among = [], []
    for _ in range(ROUNDS):
        alone.append(rate(RUN))
        among.append(rate(TASKS))
    record(
        "tasks ended, 50 at a time",
        median(among),
        "/s",
        peers={"in an array of 500": median(alone)},
    )


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_an_array_is_sent_to_two_slurm_clusters(
    site: Site, slurm_site: SlurmSite, record: Record
) -> None:
    """Rate from the call until the managers have accepted all 1,000 tasks."""
    for cluster in slurm_site:
        cluster.empty()
    site.configure(
        "".join(
            slurm_site[name].table("settle = 1.0\npoll_interval = 1.0\n")
            for name in ("alpha", "beta")
        )
    )
    site.start()
    site.until(lambda: all(c["state"] == "up" for c in site.json("clusters")))
    client = Client(site.folder / "ms.sock", timeout=300)
    rates = []
    for _ in range(ROUNDS):
        new = submission(site.folder, array=f"1-{SENT}", time_limit=600.0)
        begun = time.perf_counter()
        job = str(client.submit(new)[0]["job"])
        site.until(lambda: not client.jobs([job], state="queued,dispatching"), 300)  # noqa: B023
        rates.append(SENT / (time.perf_counter() - begun))
        client.change("cancel", [job])
        site.until(lambda: not client.jobs(state=OPEN), 300)
    record(f"tasks of an array of {SENT:,} sent to two Slurm clusters", median(rates), "/s")


def call_in_a_loop(
    socket: str, folder: str, started: Event, stop: Event, longest: Connection
) -> None:
    """Submit, list and explain a held job until `stop`; send the duration of the slowest call."""
    client, slowest = Client(Path(socket), timeout=300), 0.0
    new = submission(Path(folder), held=True)
    while not stop.is_set():
        rows: list[SubmittedJob] = []
        for call in (
            lambda: rows.extend(client.submit(new)),  # noqa: B023 - called at once
            lambda: client.jobs([str(rows[0]["job"])]),  # noqa: B023
            lambda: client.explain(str(rows[0]["job"])),  # noqa: B023
        ):
            slowest = max(slowest, seconds(call))
        started.set()
    longest.send(slowest)


@contextmanager
def other_client(running: Site, worst: dict[str, list[float]], name: str) -> Iterator[None]:
    """Let a process of its own call the daemon; append its slowest call, in seconds, to `worst`."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    started, stop = context.Event(), context.Event()
    arguments = (str(running.folder / "ms.sock"), str(running.folder), started, stop, sender)
    process = context.Process(target=call_in_a_loop, args=arguments)
    process.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        worst.setdefault(name, []).append(receiver.recv())
        process.join()


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_held_arrays_of_a_hundred_thousand(running: Site, record: Record) -> None:
    """Five arrays in one request, accepted, held, released at a limit of one task, cancelled.

    The calls are those of the commands.
    """
    client = Client(running.folder / "ms.sock", timeout=600)
    daemon = psutil.Process(running.pid)

    new = submission(running.folder, ARRAYS, array=f"1-{ARRAY_SIZE}%1", held=True)
    worst: dict[str, list[float]] = {}
    for _ in range(CYCLES):
        with other_client(running, worst, "calm"):
            time.sleep(CALM)
    before = daemon.memory_full_info().pss
    jobs: list[str] = []
    spent: dict[str, list[float]] = {}
    memory = {}

    def measured(name: str, call: Callable[[], object]) -> None:
        with other_client(running, worst, name):
            spent.setdefault(name, []).append(seconds(call))
        memory[name] = daemon.memory_full_info().pss - before

    measured("accepted", lambda: jobs.extend(str(row["job"]) for row in client.submit(new)))
    measured("first page listed", lambda: client._request("GET", "/jobs", {"limit": 100}))
    for _ in range(CYCLES):  # a single slowest call swings by a factor of four
        measured("released", lambda: client.change_folded("release", jobs))
        measured("held", lambda: client.change_folded("hold", jobs))
    measured("cancelled", lambda: client.change_folded("cancel", jobs))

    targets = {"accepted": "at most 2 s", "cancelled": "at most 5 s"}
    memory_targets = {"accepted": "at most 50 MB"}
    for name, took in spent.items():
        title = f"five held arrays of {ARRAY_SIZE:,}: {name}"
        record(title, median(took), "s", target=targets.get(name, ""))
        more, bound = memory[name] / 1e6, memory_targets.get(name, "")
        record(f"{title}, more memory (PSS)", more, "MB", target=bound)
        record(
            f"{title}, slowest call of another client",
            median(worst[name]),
            "s",
            peers={"calm": median(worst["calm"])},
            target="at most 3 x peer",
        )


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_recovery_with_arrays(site: Site, record: Record) -> None:
    """Time from SIGKILL until the daemon serves, with 50,000 tasks of five waiting arrays."""
    site.configure()
    site.start()
    client = Client(site.folder / "ms.sock", timeout=300)
    occupy(site, client)  # the arrays wait
    client.submit(submission(site.folder, ARRAYS, array=f"1-{TASKS}"))
    # the daemon has released what it releases: idle means that the counts rest
    counts: list[int] = []

    def rests() -> bool:
        counts.append(len(client.jobs(state="pending,dispatching")))
        time.sleep(0.5)
        return len(counts) > 6 and len(set(counts[-6:])) == 1 and counts[-1] > 0

    site.until(rests, 600)
    serving = [restart_after_a_kill(site, client)[0] for _ in range(3)]
    record("50,000 tasks as arrays: until the daemon answers", median(serving), "s", target="< 5 s")
