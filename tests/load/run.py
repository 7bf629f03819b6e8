"""A load: users act in processes of their own, faults strike, and an audit follows."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import msgspec
import psutil

from metasched.client.client import Client
from metasched.client.connection import ClientError
from metasched.model.arrays import parse_array
from tests.chaos import faults
from tests.chaos.audit import audit
from tests.chaos.stream import Promise, Stream, named, words
from tests.harness import accounts
from tests.harness.databases import database_from_url
from tests.load.monitor import Monitor, Sample
from tests.load.site import LoadedSite, Size, loaded_site, made_accounts
from tests.load.user import SUBMITTED, Plan, Report

ROOT = str(Path(__file__).resolve().parents[2])
PATIENCE = 1800.0  # seconds without any end of a task, after which the run is given up
QUIET = 5.0  # seconds for which a task must have been unknown before it is resolved
OPEN = "queued,held,dispatching,pending,running,suspended"
MAX_GROWTH = 1.3  # of memory, from the first third after the last submission to the last third
SPARE_MEMORY = 48.0  # MiB that may be added: memory of ended tasks, of a few portions of work
SPARE_FILES = 32  # that may be added, by connections at the moment of a sample
LEAST_SAMPLES = 10  # in a third of those after the last submission; else growth is not judged
MAX_WAL = 512.0  # MiB
MIN_SHARE = 0.75  # of an equal share of the starts, for a user whose tasks still wait


@dataclass(frozen=True)
class Fault:
    """An outage: `strike` breaks the site and returns the repair."""

    name: str
    strike: Callable[[LoadedSite], faults.Mend]
    seconds: float = 3.0  # until the repair


def _daemon_killed(loaded: LoadedSite) -> faults.Mend:
    loaded.site.stop(signal.SIGKILL)
    return loaded.site.launch


def _worker_killed(loaded: LoadedSite) -> faults.Mend:
    for worker in loaded.site.workers[:1]:
        with contextlib.suppress(psutil.Error):
            worker.kill()
    return lambda: None


def _controller_killed(loaded: LoadedSite) -> faults.Mend:
    loaded.alpha.kill_controller()
    return lambda: loaded.alpha.start_controller(wait=False)


DAEMON_KILLED = Fault("daemon killed", _daemon_killed, 0.0)
FAULTS = (
    Fault("worker killed", _worker_killed),
    Fault("slurmctld killed", _controller_killed, 10.0),
    DAEMON_KILLED,
    Fault("launcher killed", faults.launcher_killed),
    Fault("database locked", faults.database_locked, 10.0),
    Fault("disk full", faults.disk_full, 5.0),
    DAEMON_KILLED,
)


@dataclass
class UserStarts:
    """The starts of a user until what had not started was cancelled."""

    label: str
    single: bool  # whether he submits single jobs, few of them open
    started: int
    accepted: int = 0  # tasks
    waiting: int = 0  # tasks that had not started
    # starts since all tasks were accepted: by then each user had tasks waiting; None: not counted
    competing: int | None = None


@dataclass
class Result:
    """What a load has shown; the verdict is `violations`."""

    size: Size
    seed: str
    seconds: float = 0.0  # of the load, without boot and audit
    accepted: int = 0  # tasks
    started: int = 0
    cancelled: int = 0  # tasks that never began
    resolved: int = 0  # unknown tasks that an operator had to resolve
    ended_by_fault: int = 0  # recorded so
    restarted: int = 0  # tasks whose job a killed slurmctld started again
    outages: int = 0  # calls without an answer, or refused since daemon or database was away
    submitted_after: float = 0.0  # seconds until all tasks were accepted
    recoveries: list[tuple[str, float]] = field(default_factory=list)  # fault, s until served
    latencies: dict[str, list[list[float]]] = field(default_factory=dict)  # by call, by user
    users: list[UserStarts] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def run(folder: Path, size: Size, struck: Sequence[Fault], seed: str) -> Result:
    """Boot a site in `folder`, load it, strike, and audit."""
    result = Result(size, seed)
    with (
        made_accounts(size.accounts + 1) as names,
        loaded_site(folder, size, names) as loaded,
        _users(loaded, size, seed) as users,
    ):
        monitor = Monitor(loaded)
        with monitor.sampling(size.sample_interval):
            before = _load(result, monitor, users, struck)
        result.samples, result.seconds = monitor.samples, round(monitor.seconds, 1)
        result.users = _starts(users, loaded, before)
        for user in users:
            user.end()
        _settle(result, loaded)
        loaded.site.stop()
        _judge(result, users, loaded)
    return result


@dataclass
class _User:
    """A process of tests/load/user."""

    account: str
    label: str
    process: subprocess.Popen[bytes]
    output: Path
    report: Report = field(default_factory=Report)

    @property
    def has_submitted(self) -> bool:
        return SUBMITTED in self.output.read_text()

    def end(self) -> None:
        """Let the user cancel what has not started; read his report."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def read(self) -> None:
        code = self.process.wait(PATIENCE)
        assert code == 0, f"user {self.label}: exit code {code}"
        self.report = msgspec.json.decode(self.output.read_text().splitlines()[-1], type=Report)


@contextlib.contextmanager
def _users(loaded: LoadedSite, size: Size, seed: str) -> Iterator[list[_User]]:
    """Start a process for each account."""
    users: list[_User] = []
    with contextlib.ExitStack() as stack:
        for plan in plans(size, seed, loaded.clusters, loaded.accounts):
            plan = replace(plan, socket=str(loaded.socket), run_log=str(loaded.run_log))
            output = loaded.site.folder / f"user-{plan.label}"
            with output.open("wb") as file:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.load.user", msgspec.json.encode(plan).decode()],
                    env={"PYTHONPATH": ROOT, "PATH": "/usr/bin:/bin", "HOME": "/"},
                    stdin=subprocess.PIPE,
                    stdout=file,
                    **accounts.as_(plan.account),
                )
            stack.callback(_end, process)
            users.append(_User(plan.account, plan.label, process, output))
        yield users


def plans(size: Size, seed: str, clusters: Sequence[str], names: Sequence[str]) -> list[Plan]:
    """Return the plans of these accounts. The first has a third of all tasks, the last none."""
    others = size.tasks - size.tasks // 3
    shares = [others // max(1, size.accounts - 1)] * size.accounts
    if size.accounts > 1:
        shares[0] = size.tasks // 3
    return [
        Plan(
            socket="",
            run_log="",
            account=account,
            label=f"u{number}",
            tasks=tasks,
            ramp=size.ramp,
            largest_array=size.largest_array,
            run_times=size.run_times,
            clusters=tuple(clusters),
            pause=size.pause,
            seed=f"{seed} {number}",
        )
        for number, (account, tasks) in enumerate(zip(names, [*shares, 0], strict=True))
    ]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _load(
    result: Result, monitor: Monitor, users: Sequence[_User], struck: Sequence[Fault]
) -> Counter[str] | None:
    """Strike until the time is over, or until all tasks have ended.

    Return the starts by user until all tasks were accepted; None if they were not.
    """
    before: Counter[str] | None = None
    loaded, size = monitor.loaded, result.size
    bulk = [user for user in users if user.label != f"u{size.accounts}"]
    remaining = list(struck)
    while monitor.seconds < size.minutes * 60:
        _check_alive(users, loaded)
        if not result.submitted_after and all(user.has_submitted for user in bulk):
            result.submitted_after = round(monitor.seconds, 1)
            before = _count_starts(loaded)
        ended = len(struck) - len(remaining)
        # in the small form as soon as payloads run, else evenly over the time after the ramp
        due = size.ramp + (ended + 1) * (size.minutes * 60 - size.ramp) / (len(struck) + 1)
        has_work = bool(monitor.samples) and monitor.samples[-1].started > 0
        if remaining and has_work and (size.ramp == 0 or monitor.seconds >= due):
            result.recoveries.append(_strike(loaded, remaining.pop(0)))
        if result.submitted_after and not remaining and not _open_tasks(loaded):
            break
        time.sleep(0.5)
    return before


def _check_alive(users: Sequence[_User], loaded: LoadedSite) -> None:
    for user in users:
        code = user.process.poll()
        assert code is None, f"user {user.label}: exit code {code}"
    assert psutil.pid_exists(loaded.site.pid), f"the daemon has ended; {loaded.site.log_tail()}"


def _open_tasks(loaded: LoadedSite) -> bool:
    """Whether a task of a bulk user is open, or no answer came."""
    last = loaded.accounts[-1]  # he submits single jobs until the end
    rows = _page(loaded, OPEN)
    return rows is None or any(row["user"] != last for row in rows)


def _page(loaded: LoadedSite, states: str) -> list[dict[str, object]] | None:
    """Return a page of jobs in these states, None without an answer."""
    with contextlib.suppress(ClientError):
        rows: list[dict[str, object]] = loaded.client._request(
            "GET", "/jobs", {"state": states, "limit": 100}
        )
        return rows
    return None


def _strike(loaded: LoadedSite, fault: Fault) -> tuple[str, float]:
    """Strike; return the fault and the seconds from its repair until all clusters are up."""
    print(f"fault: {fault.name}", file=sys.stderr)
    repair = fault.strike(loaded)
    time.sleep(fault.seconds)
    repair()
    begun = time.monotonic()
    loaded.site.until(lambda: _all_up(loaded.client), PATIENCE)
    return fault.name, round(time.monotonic() - begun, 2)


def _all_up(client: Client) -> bool:
    return {row["state"] for row in client.clusters()} == {"up"}


def _count_starts(loaded: LoadedSite) -> Counter[str]:
    """Return the starts so far, by user."""
    return Counter(name.partition("x")[0] for name in set(loaded.run_log.read_text().split()))


def _starts(
    users: Sequence[_User], loaded: LoadedSite, before: Counter[str] | None
) -> list[UserStarts]:
    """Return the starts of each user so far; `_judge` sets the other numbers."""
    starts, last = _count_starts(loaded), users[-1]
    return [
        UserStarts(
            user.label,
            user is last,
            starts[user.label],
            competing=None if before is None else starts[user.label] - before[user.label],
        )
        for user in users
    ]


def _settle(result: Result, loaded: LoadedSite) -> None:
    """Wait until no task is open. Resolve unknown tasks as an operator would."""
    stream = Stream(loaded.client, loaded.run_log, loaded.clusters, "")
    unknown_since: dict[str, float] = {}
    last_change, last_rows = time.monotonic(), ""
    while True:
        with contextlib.suppress(ClientError):
            rows = _page(loaded, OPEN)
            unknown = loaded.client.jobs(state="unknown")
            if rows == [] and not unknown:
                break
            now = time.monotonic()
            if (shown := str((rows, unknown))) != last_rows:
                last_change, last_rows = now, shown
            assert now < last_change + PATIENCE, f"still open: {shown[:2000]}"
            if unknown:
                began, held = stream.began(), " ".join(loaded.natives())
                for row in unknown:
                    since = unknown_since.setdefault(words(row), now)
                    if now - since >= QUIET and f"-{row['job']}-" not in held:
                        loaded.client.change("ran" if began[named(row)] else "lost", [words(row)])
                        result.resolved += 1
        time.sleep(0.5)
    instance = loaded.client.health()["instance"]
    with contextlib.suppress(AssertionError):  # the audit reports what remains
        loaded.site.until(
            lambda: not any(tag.startswith(f"ms-{instance}-") for tag in loaded.natives()), 60
        )


def _judge(result: Result, users: Sequence[_User], loaded: LoadedSite) -> None:
    """Read the reports, audit the database and set the violations."""
    stream = Stream(loaded.client, loaded.run_log, loaded.clusters, "")
    for user in users:
        user.read()
        stream.promises |= _promises(user.report, accounts.as_(user.account)["user"])
        result.outages += user.report.outages
        result.violations += [f"{user.label}: {error}" for error in user.report.errors[:5]]
        for kind, seconds in user.report.latencies.items():
            result.latencies.setdefault(kind, []).append([round(s, 4) for s in seconds])
    may_fail = any(name == "slurmctld killed" for name, _ in result.recoveries)
    database = database_from_url(loaded.site.url, loaded.site.folder)
    verdict = audit(database, stream, [loaded.natives], may_fail)
    result.ended_by_fault, result.restarted = len(verdict.ended), len(verdict.restarted)
    began = stream.began()
    for starts, user in zip(result.users, users, strict=True):
        accepted = [
            name
            for name, promise in stream.promises.items()
            if name.partition("x")[0] == starts.label and promise.accepted is not None
        ]
        starts.accepted = len(accepted)
        starts.waiting = user.report.left
        result.accepted += starts.accepted
        result.cancelled += sum(1 for name in accepted if not began[name])
    result.started = len(began)
    result.violations += [
        *(f"lost: {line}" for line in verdict.lost[:10]),
        *(f"duplicated: {line}" for line in verdict.duplicated[:10]),
        *(f"wrong: {line}" for line in verdict.wrong[:10]),
        *(f"waiting: {line}" for line in verdict.waiting[:10]),
        *starved(result.users),
        *unbounded(result.samples, result.submitted_after),
    ]


def _promises(report: Report, uid: int) -> dict[str, Promise]:
    """Return a promise for each task of a user."""
    cancelled, all_cancelled = set(report.cancelled), "*" in report.cancelled
    promises = {}
    for job in report.jobs:
        indices = parse_array(job.array).indices if job.array else (None,)
        for index in indices:
            name = job.name if index is None else f"{job.name}_{index}"
            promises[name] = Promise(
                job.id, cancelled=all_cancelled or name in cancelled, owner=uid
            )
    return promises


def starved(users: Sequence[UserStarts]) -> list[str]:
    """Return the users with waiting tasks and less than `MIN_SHARE` of an equal share of starts.

    The equal share is the median of those who still had waiting tasks. Starts count while all had:
    who submits first fills empty queues alone.
    """
    starts = {
        user.label: user.started if user.competing is None else user.competing
        for user in users
        if user.waiting and not user.single
    }
    if not starts:
        return []
    share = median(starts.values())
    return [
        f"starved: {label} has {count} starts, an equal share is {share:g}"
        for label, count in starts.items()
        if count < MIN_SHARE * share
    ]


def warm_thirds(
    samples: Sequence[Sample], submitted_after: float
) -> tuple[Sequence[Sample], Sequence[Sample]] | None:
    """Return the first and the last third of the samples after the last submission.

    None if these are too few to judge growth.
    """
    warm = [sample for sample in samples if submitted_after and sample.seconds >= submitted_after]
    third = len(warm) // 3
    return (warm[:third], warm[-third:]) if third >= LEAST_SAMPLES else None


def unbounded(samples: Sequence[Sample], submitted_after: float) -> list[str]:
    """Return what has grown from the first to the last third after the last submission."""
    if any(sample.wal > MAX_WAL for sample in samples):
        return [f"unbounded: the write-ahead log has more than {MAX_WAL:g} MiB"]
    if (thirds := warm_thirds(samples, submitted_after)) is None:
        return []
    grown = []
    for name, spare in (
        *((name, SPARE_MEMORY) for name in ("daemon_memory", "worker_memory", "wal")),
        *((name, SPARE_FILES) for name in ("daemon_files", "worker_files")),
    ):
        before, after = (max(getattr(sample, name) for sample in part) for part in thirds)
        if after > MAX_GROWTH * before + spare:
            grown.append(f"unbounded: {name} grew from {before:g} to {after:g}")
    return grown
