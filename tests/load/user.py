"""A user of the load test: submits tasks, issues commands and times each call.

Run as a process of that account: `python -m tests.load.user PLAN`, where PLAN is JSON. It prints
`submitted` when all tasks of the plan are accepted, and the `Report` as JSON when its standard
input has ended.
"""

from __future__ import annotations

import contextlib
import random
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from metasched.client.client import Client
from metasched.client.connection import ClientError, DaemonUnreachable, ResponseLost
from tests.chaos.stream import SCRIPT
from tests.harness.http_calls import call

SUBMITTED = "submitted"  # the line that reports the end of the submissions
UNSTARTED = "queued,held,dispatching,pending"
ENDED = {"completed", "failed", "timeout", "cancelled", "rejected"}
CALL_TIMEOUT = 300.0  # seconds for an answer
CANCEL_TRIES = 60  # at the end, a second apart
PAGE = 100  # rows
LARGEST_BATCH = 50  # single jobs in a submission
LIGHT_JOBS = 8  # open jobs of the user who submits them singly
LIGHT_PAUSE = 0.5  # seconds between his looks at them


@dataclass(frozen=True)
class Plan:
    """The part of a user in a load."""

    socket: str
    run_log: str  # to which payloads append
    account: str
    label: str  # the first part of the names of his jobs
    tasks: int  # to submit; 0: he submits single jobs, the next when one of a few has ended
    ramp: float  # seconds over which the tasks are submitted
    largest_array: int  # tasks
    run_times: tuple[float, ...]  # seconds of a payload, to draw from
    clusters: tuple[str, ...]
    pause: float  # seconds between two commands
    seed: str


@dataclass(frozen=True)
class SubmittedJob:
    """A job of a submission; `id` is None if no answer came."""

    name: str
    array: str | None
    id: int | None


@dataclass
class Report:
    """The jobs of a user, and the latencies of his calls."""

    jobs: list[SubmittedJob] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)  # tasks that he may have cancelled
    left: int = 0  # tasks that had not started at the end
    latencies: dict[str, list[float]] = field(default_factory=dict)  # seconds, by kind of call
    outages: int = 0  # calls without an answer, or refused since the daemon or database was away
    errors: list[str] = field(default_factory=list)  # of all other calls that failed


class User:
    """Acts by a plan until standard input ends."""

    def __init__(
        self,
        plan: Plan,
        client: Client | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns seconds."""
        self._plan, self.report, self._clock = plan, Report(), clock
        self._client = client or Client(plan.socket, timeout=CALL_TIMEOUT)
        self._draw = random.Random(plan.seed)
        self._numbers = 0  # jobs submitted so far
        self._tasks = 0  # tasks submitted so far
        self._begun = clock()
        self._unreleased: list[str] = []  # jobs that are held until a release is answered
        self._announced = False  # whether SUBMITTED was printed
        self._names: dict[int, SubmittedJob] = {}  # by id
        self._followed: dict[int, float] = {}  # open single jobs: monotonic seconds of submission

    def run(self) -> None:
        """Act until standard input ends, then cancel all that has not started."""
        while not self._stopped(self.next_pause()):
            self.act()
        for _ in range(CANCEL_TRIES):
            if (rows := self._cancel_all()) is not None:
                self.report.left = len(rows)
                break
            time.sleep(1.0)

    def act(self) -> None:
        """Submit what is due, and issue a command."""
        if self._plan.tasks:
            self._work()
        else:
            self._follow_single_jobs()

    def next_pause(self) -> float:
        """Draw the seconds until the next act."""
        pause = self._plan.pause if self._plan.tasks else LIGHT_PAUSE
        return pause * self._draw.uniform(0.5, 1.5)

    def _stopped(self, seconds: float) -> bool:
        """Wait; return whether the run is to end."""
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    def _work(self) -> None:
        """Submit what is due, then issue a command."""
        plan, elapsed = self._plan, self._clock() - self._begun
        due = plan.tasks * min(1.0, elapsed / plan.ramp) if plan.ramp else plan.tasks
        while self._tasks < due and not self._stopped(0):
            self._submit_portion(plan.tasks - self._tasks)
        if self._tasks >= plan.tasks and not self._announced:
            self._announced = True
            print(SUBMITTED, flush=True)
        self._release()
        self._draw.choice(
            (
                *(self._page, self._page, self._own_page, self._status_of_one),
                *(self._explain, self._limits, self._clusters),
                *(self._cancel_one, self._hold_one),
            )
        )()

    def _submit_portion(self, remaining: int) -> None:
        """Submit an array, a batch of single jobs, or a single job."""
        kind = self._draw.random()
        largest = min(remaining, self._plan.largest_array)
        if kind < 0.5 and largest > 1:
            size = self._draw.randint(2, largest)
            self._submit("submit array", [f"1-{size}"])
            self._tasks += size
        elif kind < 0.9:
            size = self._draw.randint(1, min(remaining, LARGEST_BATCH))
            self._submit("submit batch", [None] * size)
            self._tasks += size
        else:
            self._submit("submit", [None])
            self._tasks += 1

    def _submit(self, kind: str, arrays: list[str | None]) -> list[int]:
        """Submit jobs, each with an array or alone; return the ids, none without an answer."""
        plan = self._plan
        names = [f"{plan.label}x{self._numbers + number}" for number in range(len(arrays))]
        self._numbers += len(arrays)
        clusters = [self._draw.choice(plan.clusters)] if self._draw.random() < 0.2 else []
        requests = [
            {
                "name": name,
                "script": "s",
                "environment": "e",
                "directory": "/",
                "output": "/dev/null",
                "arguments": [name, plan.run_log, f"{self._draw.choice(plan.run_times):g}", ""],
                "array": array,
                "clusters": clusters,
                "time_limit": 300.0,
            }
            for name, array in zip(names, arrays, strict=True)
        ]
        environment = {"PATH": "/usr/bin:/bin"}
        body = {"jobs": requests, "scripts": {"s": SCRIPT}, "environments": {"e": environment}}
        answers = self._timed(kind, lambda: self._client.submit(body))
        ids = [None] * len(names) if answers is None else [answer["job"] for answer in answers]
        for name, array, id in zip(names, arrays, ids, strict=True):
            submitted = SubmittedJob(name, array, id)
            self.report.jobs.append(submitted)
            if id is not None:
                self._names[id] = submitted
        return [id for id in ids if id is not None]

    def _follow_single_jobs(self) -> None:
        """Submit a single job if few are open; note the ends of the open ones."""
        if len(self._followed) < LIGHT_JOBS:
            begun = self._clock()
            self._followed |= dict.fromkeys(self._submit("submit", [None]), begun)
        ids = [str(id) for id in self._followed]
        rows = self._timed("status of a few jobs", lambda: self._client.jobs(ids)) if ids else []
        ended = [row["job"] for row in rows or () if row["state"] in ENDED]
        for id in ended:
            seconds = self._clock() - self._followed.pop(id)
            self.report.latencies.setdefault("a single job, to its end", []).append(seconds)
        if ended:
            self._page()

    def _page(self) -> None:
        """Read a page of the jobs that a user sees by default."""
        self._timed(f"status, page of {PAGE}", lambda: self._read(f"/jobs?limit={PAGE}"))

    def _own_page(self) -> None:
        """Read a page of ended jobs."""
        path = f"/jobs?limit={PAGE}&user={self._plan.account}&state=completed&all=true"
        self._timed(f"status of ended jobs, page of {PAGE}", lambda: self._read(path))

    def _read(self, path: str) -> Any:
        try:
            answer = call(Path(self._plan.socket), "GET", path, timeout=CALL_TIMEOUT)
        except OSError as error:
            raise DaemonUnreachable(str(error)) from None
        if answer.status == 503:
            raise DaemonUnreachable(path)
        if answer.status >= 300:
            raise ClientError(f"{path}: status {answer.status}, {answer.content[:200]!r}")
        return answer.json

    def _status_of_one(self) -> None:
        if (job := self._own_job()) is not None:
            self._timed("status of a job", lambda: self._read(f"/jobs?limit={PAGE}&job={job}"))

    def _explain(self) -> None:
        if (job := self._own_job()) is not None:
            task = f"{job}_1" if self._names[job].array else str(job)
            self._timed("explain", lambda: self._client.explain(task))

    def _limits(self) -> None:
        self._timed("limits", self._client.limits)

    def _clusters(self) -> None:
        self._timed("clusters", self._client.clusters)

    def _cancel_one(self) -> None:
        """Cancel a task: a single job, or the first of an array."""
        if (id := self._own_job()) is not None:
            job = self._names[id]
            self.report.cancelled.append(f"{job.name}_1" if job.array else job.name)
            task = f"{id}_1" if job.array else str(id)
            self._timed("cancel", lambda: self._client.change("cancel", [task]))

    def _hold_one(self) -> None:
        """Submit a job, hold it and release it again."""
        if self._tasks < self._plan.tasks:
            for id in self._submit("submit", [None]):
                self._tasks += 1
                self._unreleased.append(str(id))
                self._timed("hold", lambda: self._client.change("hold", [str(id)]))  # noqa: B023

    def _release(self) -> None:
        """Release what was held; what is not answered is repeated."""
        held = list(self._unreleased)
        if held and self._timed("release", lambda: self._client.change("release", held)):
            self._unreleased = self._unreleased[len(held) :]

    def _cancel_all(self) -> list[dict[str, Any]] | None:
        """Cancel all tasks that have not started; return their rows, None without an answer.

        After a lost answer any task of the user may have been cancelled.
        """
        rows: list[dict[str, Any]] | None = self._timed(
            "cancel all",
            lambda: self._client.change("cancel", [], user=self._plan.account, state=UNSTARTED),
        )
        if rows is None:
            self.report.cancelled += ["*"]
            return None
        for row in rows:
            if (job := self._names.get(row["job"])) is None:
                self.report.cancelled += ["*"]  # of a submission without an answer
            else:
                suffix = f"_{row['task']}" if job.array else ""
                self.report.cancelled.append(f"{job.name}{suffix}")
        return rows

    def _own_job(self) -> int | None:
        """Draw a job of this user."""
        return self._draw.choice(list(self._names)) if self._names else None

    def _timed(self, kind: str, function: Callable[[], Any]) -> Any:
        """Call a function; store its latency. Return its result, or None if it failed."""
        begun = self._clock()
        try:
            result = function()
        except (DaemonUnreachable, ResponseLost):
            self.report.outages += 1
            return None
        except ClientError as error:
            self.report.errors.append(f"{kind}: {error}")
            return None
        self.report.latencies.setdefault(kind, []).append(self._clock() - begun)
        return result


def main(plan: str) -> None:
    user = User(msgspec.json.decode(plan, type=Plan))
    with contextlib.suppress(KeyboardInterrupt):
        user.run()
    print(msgspec.json.encode(user.report).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
