"""What a request costs the daemon: alone, with ten clients, with a long queue, beside a listing."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec
import psutil
import pytest

from metasched.client.client import Client
from tests.bench.conftest import Record
from tests.bench.test_daemon import submission
from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, running_site
from tests.harness.accounts import A, B, as_
from tests.harness.postgresql import Server, missing

ONE_BY_ONE, ROUNDS, CLIENTS = 200, 5, 10
FEW, MANY, BATCH = 1_000, 100_000, 1_000
ASKED_MEMORY = 400.0  # MB
# A process that reads a submission or a path, and calls the daemon in a loop once it reads another
# line: until it is killed, or so many times, or for so many seconds. Then it writes how many a
# second.
LOOP = """
import sys, time
from metasched.client.client import Client
import msgspec
client = Client(sys.argv[1], timeout=300)
body, most, longest = msgspec.json.decode(sys.stdin.readline()), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
calls, begun = 0, time.monotonic()
while calls < most and time.monotonic() < begun + longest:
    if isinstance(body, str):
        client._connection.request("GET", body)
    else:
        client.submit(body) if body else client.jobs(all="1")
    calls += 1
print(calls / (time.monotonic() - begun), flush=True)
"""


def cpu_seconds(daemon: psutil.Process) -> float:
    """Return the processor time of the daemon without its workers."""
    return sum(daemon.cpu_times()[:2])


def looping(
    stack: ExitStack,
    socket: Path,
    body: object,
    *,
    number: int = 1_000_000,
    seconds: int = 1_000,
    account: str | None = None,
) -> subprocess.Popen[str]:
    """Start a process that is ready to call in a loop.

    It submits `body`, requests it if it is a path, or lists all jobs if it is None.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(socket), str(number), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **(as_(account) if account else {}),
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(body).decode() + "\n")
    process.stdin.flush()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def calls_per_second(process: subprocess.Popen[str]) -> float:
    """Wait until the process has made its calls."""
    assert process.stdout is not None
    return float(process.stdout.readline())


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
    record("a single submission", median(alone), "ms of CPU", target="at most 2.25 ms")
    rates, shared = [], []
    for _ in range(ROUNDS):
        with ExitStack() as stack:
            clients = [
                looping(stack, running.folder / "ms.sock", held, number=ONE_BY_ONE)
                for _ in range(CLIENTS)
            ]
            before, begun = cpu_seconds(daemon), time.perf_counter()
            for process in clients:
                start(process)
            for process in clients:
                calls_per_second(process)
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


@pytest.fixture
def two_users(common_folder: Path) -> Iterator[MultiUserSite]:
    """A running site over a local cluster."""
    cluster = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\n'
    folder = common_folder / f"site-{len(list(common_folder.iterdir()))}"  # each test has its own
    with running_site(folder, cluster, f"[cluster.left]\n{SUPERVISE}") as site:
        yield site


@pytest.mark.root
@pytest.mark.bench
@pytest.mark.timeout(900)
def test_submissions_beside_a_client_that_lists_in_a_loop(
    two_users: MultiUserSite, record: Record
) -> None:
    """The client that lists has another account than the one that submits."""
    socket = two_users.state / "ms.sock"

    with ExitStack() as stack:
        batch = submission(Path("/"), BATCH, held=True)
        many = looping(stack, socket, batch, number=MANY // 10 // BATCH, account=A)
        start(many)
        calls_per_second(many)
    record(
        "submissions beside another user's client that lists 10,000 jobs in a loop",
        share_of_calm(socket, None),
        "of calm",
        target="at least 0.8",
    )


def share_of_calm(socket: Path, body: object) -> float:
    """Return the rate of submissions of B beside a client of A in a loop, over that without."""
    held = submission(Path("/"), held=True)

    def rate(seconds: int) -> float:
        with ExitStack() as stack:
            client = looping(stack, socket, held, seconds=seconds, account=B)
            start(client)
            return calls_per_second(client)

    ratios = []
    for _ in range(3):
        calm = rate(5)
        with ExitStack() as stack:
            start(looping(stack, socket, body, account=A))
            ratios.append(rate(20) / calm)  # longer than the readings before the first count
    return median(ratios)


@pytest.mark.root
@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_submissions_beside_a_client_that_reads_in_a_loop(
    two_users: MultiUserSite, record: Record
) -> None:
    """The answers are short, so the time of the event loop counts."""
    job = two_users.by(A).submit("--hold", "-o", "/dev/null", "--wrap", "true")
    paths = (f"/jobs?job={job}", f"/jobs/{job}/explain", "/clusters", "/partitions", "/limits")
    for path in (*paths, "/shares", "/health"):
        record(
            f"submissions beside a client of `GET {path}` in a loop",
            share_of_calm(two_users.state / "ms.sock", path),
            "of calm",
            target="at least 0.8",
        )


# A daemon in which each request has a commit of its own.
UNGROUPED = """
import sys
from metasched.daemon import commit_group
from metasched.cli import main
commit_group.MAX_MEMBERS = 1
sys.argv = sys.argv[1:]
sys.exit(main())
"""


def disk_waits(site: Site) -> Callable[[Callable[[], None]], float]:
    """Return a function that counts the fsyncs of the daemon while it calls another."""

    def count(work: Callable[[], None]) -> float:
        report = site.folder / "fsyncs"
        calls = ("-e", "trace=fsync,fdatasync", "-o", str(report), "-p", str(site.pid))
        with subprocess.Popen(
            ["strace", "-f", "-qq", *calls], stderr=subprocess.PIPE, text=True
        ) as tracer:
            site.until(lambda: _is_traced(site.pid))
            work()
            tracer.send_signal(signal.SIGINT)
        # a call that another thread interrupts has a second line, which begins otherwise
        return sum(bool(re.search(r"\bf(data)?sync\(", line)) for line in report.open())

    return count


def _is_traced(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks)


def commits(server: Server) -> Callable[[Callable[[], None]], float]:
    """Return a function that counts the transactions of the database while it calls another."""

    def stored() -> int:
        time.sleep(12)  # a backend without work reports its statistics after ten seconds
        query = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'ms1'"
        return int(server.sql(query))

    def count(work: Callable[[], None]) -> float:
        before = stored()
        work()
        return stored() - before

    return count


def waits_per_submission(
    site: Site, count: Callable[[Callable[[], None]], float], clients: int
) -> float:
    """Return what `count` counts for a submission, while so many clients submit at a time."""
    held = submission(site.folder, held=True)

    def work() -> None:
        for process in processes:
            start(process)
        for process in processes:
            calls_per_second(process)

    with ExitStack() as stack:
        number = ONE_BY_ONE // 2
        processes = [
            looping(stack, site.folder / "ms.sock", held, number=number) for _ in range(clients)
        ]
        return count(work) / (number * clients)


@pytest.mark.bench
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["SQLite", "PostgreSQL"])
def test_commits_of_submissions(kind: str, site: Site, common_folder: Path, record: Record) -> None:
    """Requests that arrive during a commit share the next one."""
    ungrouped = site.folder / "ungrouped.py"
    ungrouped.write_text(UNGROUPED)
    figures: list[list[float]] = []
    with ExitStack() as stack:
        if kind == "PostgreSQL":
            if (reason := missing()) is not None:
                require("postgresql", reason)
            server = stack.enter_context(Server(common_folder / "pg-group", settings=()))
            site.url = server.create()
            count, unit = commits(server), "transactions"
        elif shutil.which("strace") is None:
            require("strace", "strace not found; apt-get install strace")
        else:
            count, unit = disk_waits(site), "fsyncs"
        site.configure(ONE_LOCAL)
        for before in ((), (sys.executable, str(ungrouped))):
            site.before = before
            site.start()
            figures.append([waits_per_submission(site, count, n) for n in (1, CLIENTS)])
            site.stop()
    for position, clients in enumerate((1, CLIENTS)):
        record(
            f"{unit} of a submission, {clients} clients, {kind}",
            figures[0][position],
            "each",
            peers={"a commit for each request": figures[1][position]},
        )
