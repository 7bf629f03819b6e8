"""What a request costs the daemon: alone, with ten clients, with a long queue, beside a listing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import msgspec
import psutil
import pytest

from metasched.client.client import Client
from tests.bench.conftest import Record
from tests.bench.test_daemon import seconds, submission
from tests.e2e.conftest import Site

ONE_BY_ONE, ROUNDS, CLIENTS = 200, 5, 10
FEW, MANY, BATCH = 1_000, 100_000, 1_000
ASKED_MEMORY = 400.0  # MB
# A process that calls the daemon in a loop once it reads a line, and then writes their number.
LOOP = """
import sys, time
from metasched.client.client import Client
import msgspec
client = Client(sys.argv[1], timeout=300)
body, number = msgspec.json.decode(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(number):
    client.submit(body) if body else client.jobs(all="1")
print("done", flush=True)
"""


def cpu_seconds(daemon: psutil.Process) -> float:
    """Return the processor time of the daemon without its workers."""
    return sum(daemon.cpu_times()[:2])


def looping(stack: ExitStack, site: Site, body: object, number: int) -> subprocess.Popen[str]:
    """Start a process that is ready to submit `body`, or to list if it is None, in a loop."""
    socket, text = str(site.folder / "ms.sock"), msgspec.json.encode(body).decode()
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, socket, text, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_processor_time_of_submissions(running: Site, record: Record) -> None:
    client, daemon = Client(running.folder / "ms.sock"), psutil.Process(running.pid)
    held = submission(running.folder, held=True)
    alone = []
    for _ in range(ROUNDS):
        before = cpu_seconds(daemon)
        for _ in range(ONE_BY_ONE):
            client.submit(held)
        alone.append((cpu_seconds(daemon) - before) / ONE_BY_ONE * 1e3)
    record("a single submission", median(alone), "ms of CPU", target="at most 2.8 ms")
    rates, shared = [], []
    for _ in range(ROUNDS):
        with ExitStack() as stack:
            clients = [looping(stack, running, held, ONE_BY_ONE) for _ in range(CLIENTS)]
            before, begun = cpu_seconds(daemon), time.perf_counter()
            for process in clients:
                start(process)
            for process in clients:
                assert process.stdout is not None
                assert process.stdout.readline() == "done\n"
            number = ONE_BY_ONE * CLIENTS
            rates.append(number / (time.perf_counter() - begun))
            shared.append((cpu_seconds(daemon) - before) / number * 1e3)
    record("the same with ten clients", median(shared), "ms of CPU")
    record(
        "submissions of ten clients",
        median(rates),
        "/s",
        peers={"a second over the CPU of one": 1e3 / median(alone)},
        target="at least 0.8 x peer",
    )


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_a_queue_of_100_000_jobs(running: Site, record: Record) -> None:
    """Jobs that wait for a closed cluster, each a job of its own."""
    client, daemon = Client(running.folder / "ms.sock", timeout=300), psutil.Process(running.pid)
    for cluster in ("left", "right"):
        client.drain(cluster)
    single, batch = submission(running.folder), submission(running.folder, BATCH)

    def measured(call: Callable[[], object]) -> float:
        """Return milliseconds of processor time of the daemon, the median of rounds."""
        rounds = []
        for _ in range(ROUNDS):
            before = cpu_seconds(daemon)
            for _ in range(ONE_BY_ONE // 4):
                call()
            rounds.append((cpu_seconds(daemon) - before) / (ONE_BY_ONE // 4) * 1e3)
        return median(rounds)

    figures = []
    for added in (FEW, MANY - FEW):
        for _ in range(added // BATCH):
            client.submit(batch)
        figures.append(
            (measured(lambda: client.submit(single)), measured(lambda: client.explain("1")))
        )
    memory = daemon.memory_full_info().pss / 1e6
    few, many = figures
    record("daemon (PSS), 100,000 queued jobs", memory, "MB", target="at most 400 MB")
    for index, name in enumerate(("submit", "explain")):
        record(
            f"`{name}` beside 100,000 queued jobs",
            many[index],
            "ms of CPU",
            peers={"beside 1,000": few[index]},
            target="as fast",
        )
    assert memory < ASKED_MEMORY


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_submissions_beside_a_client_that_lists_in_a_loop(running: Site, record: Record) -> None:
    client = Client(running.folder / "ms.sock", timeout=300)
    for _ in range(MANY // 10 // BATCH):
        client.submit(submission(running.folder, BATCH, held=True))
    held = submission(running.folder, held=True)
    ratios = []
    for _ in range(ROUNDS):
        calm = seconds(lambda: [client.submit(held) for _ in range(ONE_BY_ONE)])
        with ExitStack() as stack:
            start(looping(stack, running, None, 1_000_000))
            beside = seconds(lambda: [client.submit(held) for _ in range(ONE_BY_ONE)])
        ratios.append(calm / beside)
    record(
        "submissions beside a client that lists 10,000 jobs in a loop",
        median(ratios),
        "of calm",
        target="at least 0.8",
    )
