"""A stream of jobs through a daemon that is killed, and the promise for each task."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from metasched.client.client import Client
from metasched.client.connection import ClientError, DaemonUnreachable, ResponseLost
from metasched.client.schemas import JobRequest, SubmitRequest
from metasched.client.site_answers import ReleasedTask
from metasched.model.arrays import parse_array

# Each start appends a line, so that a second start shows, and its uid and the manager's id of its
# job to another file. A payload
# with licences also records the begin and end of their use, in seconds since boot: no fault steps
# that clock.
SCRIPT = """#!/bin/sh
name=$1${METASCHED_ARRAY_TASK_ID:+_$METASCHED_ARRAY_TASK_ID} ran=$2 seconds=$3 licences=$4
note() {
  [ -n "$licences" ] || return 0
  read -r now _ </proc/uptime
  echo "$now $$ $name $1 $licences" >> "$ran.used"
}
echo "$name" >> "$ran"
echo "$name $(id -u) $METASCHED_NATIVE_ID" >> "$ran.owners"
note begin
sleep "$seconds"
note end
"""
WINDOW = 60.0  # seconds of a reservation
AHEAD = 7200.0  # seconds until the first reservation begins, after all jobs of a stream
OPEN_AT_MOST = 40  # jobs; more would only wait for each other
TOTALS = {"matlab": 6, "ansys": 3}  # tokens of each licence of a site
# Licence requests of jobs, to draw from: most jobs request none.
_WANTS: tuple[dict[str, int], ...] = (
    *({},) * 6,
    *({"matlab": 1}, {"matlab": 2}, {"ansys": 1}, {"matlab": 3, "ansys": 1}),
)


def named(row: Mapping[str, Any]) -> str:
    """Return the name of a `status` row's task in promises and notes: `t7`, or `t7_2`."""
    return str(row["name"]) if row["task"] is None else f"{row['name']}_{row['task']}"


def words(row: Mapping[str, Any]) -> str:
    """Return the task as commands take it: `17`, or `17_2`."""
    return str(row["job"]) if row["task"] is None else f"{row['job']}_{row['task']}"


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """How the jobs of a submission differ from the ordinary jobs of a stream."""

    seconds: float | None = None  # run time; None: drawn
    cancelled: bool = False  # they will be cancelled
    refused: bool = False  # their manager will reject them
    held: bool = False
    begin: float | None = None  # epoch seconds
    native: Mapping[str, str] = field(default_factory=dict)  # options, by cluster
    dependency: str | None = None
    array: str | None = None
    clusters: tuple[str, ...] | None = None  # the only eligible clusters; None: drawn
    licences: Mapping[str, int] | None = None  # copies, by licence; None: drawn


ORDINARY = JobKind()


@dataclass
class Promise:
    """The allowed outcomes of a task; `accepted` is the job id that the daemon has returned."""

    accepted: int | None = None
    cancelled: bool = False  # may have been cancelled: it begins at most once
    refused: bool = False  # its manager will reject it: it never begins
    again: int = 0  # maximum number of requeues
    owner: int = -1  # uid under which the payload must run; -1 before the submission


@dataclass
class Use:
    """Licences used by a payload from `begun` to `ended`, seconds since boot.

    `ended` is None if the payload was killed and recorded no end.
    """

    name: str
    tokens: Mapping[str, int]
    begun: float
    ended: float | None = None


@dataclass(frozen=True)
class Submission:
    """A submission that may be repeated under its key."""

    submitter: Client
    key: str
    body: Mapping[str, object]
    promises: Sequence[dict[str, Promise]]  # of each job, by task


class Stream:
    """Submits, cancels, holds and releases jobs from its own thread, as drawn by its seed.

    An interrupted call may have taken effect or not. Its job must begin exactly once if it is in
    the database, else never. Half of the submissions without an answer are repeated with their
    keys until there is one; answered submissions are repeated, too. Each is stored once.
    """

    def __init__(
        self,
        client: Client,
        run_log: Path,
        clusters: tuple[str, ...],
        seed: str,
        pause: float = 0.02,
        reserving: bool = False,
        submitters: Mapping[int, Client] | None = None,
    ) -> None:
        """`pause`: seconds between two calls. The first of `clusters` gets invalid native options.

        `reserving`: the clusters support reservations. `submitters` submit the jobs, by the uid of
        the owner; None: `client` does. All other calls are those of `client`.
        """
        self._submitters = cycle((submitters or {os.geteuid(): client}).items())
        self._submitter = next(self._submitters)  # a job and its dependents have the same owner
        self.promises: dict[str, Promise] = {}
        self._client, self._run_log, self.clusters, self._pause = client, run_log, clusters, pause
        self._draw = random.Random(seed)
        self._number = 0
        self.accepted = 0  # jobs
        self._unanswered: dict[str, Submission] = {}  # to repeat, by key
        self._answered: deque[Submission] = deque(maxlen=50)
        self._probes = count()
        self._reserving, self._windows, self._begun = reserving, count(1), time.time()
        self.promised: dict[int, bool] = {}  # reservation id: whether it may be cancelled
        self._held: list[int] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop submitting. Held jobs and drained clusters are left to `release`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def release(self) -> None:
        """Resume all clusters, reset the licence totals and release all held jobs."""
        for cluster in self.clusters:
            self._client.resume(cluster)
        for row in self._client.licences():
            if row["chosen"] is not None:
                self._client.set_licence(row["licence"], None)
        self._client.change("release", [], state="held")

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause):
                with contextlib.suppress(ClientError):
                    self.act()
        except BaseException as error:
            self.error = error

    def act(self) -> None:
        """Make a call, or a few related calls."""
        self._submitter = next(self._submitters)
        if self._number % 10 == 0 and len(self._client.jobs(state=_OPEN)) > OPEN_AT_MOST:
            return
        draw = self._draw.random()
        if draw < (0.4 if self._unanswered else 0.1):
            self.repeat()
        elif draw < 0.6:
            self.submit(self._draw.randrange(1, 4))
        elif draw < 0.68:
            self.submit(1, JobKind(begin=time.time() + self._draw.random()))
        elif draw < 0.76:
            # cancelled before, while or after it begins
            for id in self.submit(2, JobKind(cancelled=True, seconds=1.0)):
                self._client.change("cancel", [str(id)])
        elif draw < 0.88:
            held = self.submit(1, JobKind(held=self._draw.random() < 0.5))
            self._client.change("hold", [str(id) for id in held])
            self._held += held
        elif draw < 0.93 and self._held:
            self._client.change("release", [str(self._held.pop(0))])
        elif draw < 0.95:
            self.submit(1, JobKind(array=self._array()))
        elif draw < 0.965:
            self.depend()
        elif draw < 0.97:
            self.refused()
        elif draw < 0.98:
            self.modify()
        elif draw < 0.985:
            self.requeue()
        elif draw < 0.987 and self._reserving:
            self.reserve(cancelled=self._draw.random() < 0.5)
        elif draw < 0.99:
            self.set_licence()
        elif draw < 0.995:
            self.release_licences()
        else:
            self.drain()

    def repeat(self) -> None:
        """Repeat a submission: one without an answer, if there is any."""
        unanswered = list(self._unanswered.values())
        if submissions := unanswered or list(self._answered):
            self._send(self._draw.choice(submissions))

    def modify(self) -> None:
        """Modify a new job in whatever state it is."""
        ids = self.submit(1)
        limit = self._draw.choice((120.0, 240.0))
        self._client.modify({"time_limit": limit}, [str(id) for id in ids])

    def depend(self) -> None:
        """Submit jobs that depend on a job, on an array, and on an array that is cancelled."""
        [first] = self.submit(1)
        [array] = self.submit(1, JobKind(array=self._array(), dependency=f"afterany:{first}"))
        self.submit(1, JobKind(dependency=f"afterany:{array}"))
        [other] = self.submit(1, JobKind(array=self._array(), cancelled=True, seconds=1.0))
        self.submit(1, JobKind(dependency=f"afterany:{other}"))
        self._client.change("cancel", [f"{other}_2", str(other)])

    def _array(self) -> str:
        return self._draw.choice(("1-3", "1-4%2", "2-8:3%1", "1,2,5"))

    def requeue(self) -> None:
        """Requeue a completed task."""
        ended = self._client.jobs(state="completed")
        for row in self._draw.sample(ended, min(1, len(ended))):
            self.promises[named(row)].again += 1
            self._client.change("requeue", [words(row)])

    def drain(self) -> None:
        """Drain a cluster for a moment."""
        cluster = self.clusters[0]
        self._client.drain(cluster, "chaos")
        self._client.resume(cluster)

    def set_licence(self) -> None:
        """Set the total of a licence to 1 for a moment."""
        name = self._draw.choice(list(TOTALS))
        self._client.set_licence(name, 1)
        self._client.set_licence(name, None)

    def release_licences(self) -> list[ReleasedTask]:
        """Release, as an operator, the licences of unknown tasks whose payload has ended."""
        used = {use.name for use in self.used() if use.ended}
        unknown = self._client.jobs(state="unknown")
        ended = [words(row) for row in unknown if named(row) in used]
        return self._client.release_licences(ended) if ended else []

    def reserve(self, cancelled: bool) -> None:
        """Reserve a node for a window that no other reservation overlaps. Any thread may call it.

        Every second reservation has a licence. `cancelled`: cancel the reservation at once.
        """
        number = next(self._windows)
        start = self._begun + AHEAD + number * 2 * WINDOW
        request: dict[str, object] = {
            "least": 1,
            "most": 1,
            "by_node": True,
            "shortest": WINDOW,
            "longest": WINDOW,
            "ready": start,
            "deadline": start + WINDOW + 1,
            "licences": {"ansys": 1} if number % 2 else {},
        }
        row = self._client.reserve(request)
        self.promised[row["reservation"]] = cancelled
        if cancelled:
            self._client.cancel_reservation(row["reservation"])

    def refused(self) -> list[int]:
        """Submit a job that its manager rejects."""
        cluster = self.clusters[0]
        return self.submit(
            1, JobKind(refused=True, native={cluster: "--no-such"}, clusters=(cluster,))
        )

    def submit(self, number: int, job_kind: JobKind = ORDINARY) -> list[int]:
        """Submit jobs of a kind; return their ids. Raises ClientError without an answer."""
        names = [f"t{self._number + i}" for i in range(number)]
        self._number += number
        clusters = job_kind.clusters
        if clusters is None:
            clusters = (self._draw.choice(self.clusters),) if self._draw.random() < 0.2 else ()
        run = (
            self._draw.choice((0.0, 0.0, 0.05, 0.2))
            if job_kind.seconds is None
            else job_kind.seconds
        )
        requests = tuple(
            self._request(
                name,
                run,
                tasks=self._draw.choice((1, 1, 1, 2, 4)),
                time_limit=self._draw.choice((60.0, 300.0, 600.0)),
                held=job_kind.held,
                begin=job_kind.begin,
                native=dict(job_kind.native),
                dependency=job_kind.dependency,
                array=job_kind.array,
                clusters=clusters,
                licences=self._draw.choice(_WANTS)
                if job_kind.licences is None
                else job_kind.licences,
            )
            for name in names
        )
        return self._hand_in(
            requests, Promise(cancelled=job_kind.cancelled, refused=job_kind.refused)
        )

    def probe(self, cluster: str, seconds: float = 0.0) -> str:
        """Submit a job to a cluster; return its name. Any thread may call it."""
        self._client.resume(cluster)  # the daemon may have died between drain and resume
        name = f"probe{next(self._probes)}"
        request = self._request(name, seconds, time_limit=60.0, urgency=3, clusters=(cluster,))
        self._hand_in((request,), Promise())
        return name

    def _request(
        self, name: str, run: float, licences: Mapping[str, int] | None = None, **fields: Any
    ) -> JobRequest:
        tokens = dict(licences or {})
        return JobRequest(
            script="s",
            environment="e",
            directory="/",
            arguments=(name, str(self._run_log), f"{run:g}", json.dumps(tokens) if tokens else ""),
            licences=tokens,
            output="/dev/null",
            name=name,
            **fields,
        )

    def _hand_in(self, requests: tuple[JobRequest, ...], promise: Promise) -> list[int]:
        owner, submitter = self._submitter
        promise = replace(promise, owner=owner)
        promises = [_promises(request, promise) for request in requests]
        for of_job in promises:
            self.promises |= of_job
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        body = SubmitRequest(jobs=requests, scripts={"s": SCRIPT}, environments={"e": environment})
        return self._send(Submission(submitter, requests[0].name, to_builtins(body), promises))

    def _send(self, submission: Submission) -> list[int]:
        """Submit, or repeat a submission; return the job ids. Raises ClientError without answer."""
        was_lost = self._unanswered.pop(submission.key, None) is not None
        try:
            answers = submission.submitter.submit(submission.body, submission.key)
        except (DaemonUnreachable, ResponseLost):
            if was_lost or (submission not in self._answered and self._draw.random() < 0.5):
                self._unanswered[submission.key] = submission
            raise
        ids = [answer["job"] for answer in answers if answer["job"] is not None]
        if submission in self._answered:
            earlier = [next(iter(of_job.values())).accepted for of_job in submission.promises]
            assert ids == earlier, f"{submission.key}: accepted as {earlier}, repeated as {ids}"
            return ids
        for of_job, id in zip(submission.promises, ids, strict=True):
            for promised in of_job.values():
                promised.accepted = id
        self.accepted += len(ids)
        self._answered.append(submission)
        return ids

    @staticmethod
    def files(run_log: Path) -> tuple[Path, Path, Path]:
        """Return the files to which payloads append: starts, owners, licence use."""
        return run_log, Path(f"{run_log}.owners"), Path(f"{run_log}.used")

    def owners(self) -> set[tuple[str, int]]:
        """Return the name of each task that has begun with the uid of its payload."""
        return {(name, int(uid)) for name, uid, _ in self._owners()}

    def native_ids(self) -> dict[str, set[str]]:
        """Return the managers' ids of the jobs in which each task has begun."""
        ids: dict[str, set[str]] = {}
        for name, _, native_id in self._owners():
            ids.setdefault(name, set()).add(native_id)
        return ids

    def _owners(self) -> Iterator[list[str]]:
        for line in Path(f"{self._run_log}.owners").read_text().splitlines():
            yield line.split(" ")

    def began(self) -> Counter[str]:
        """Return how often each task has begun."""
        return Counter(self._run_log.read_text().split())

    def used(self) -> list[Use]:
        """Return the licence use that the payloads have recorded."""
        uses: dict[tuple[str, str], Use] = {}  # by task and process
        for line in Path(f"{self._run_log}.used").read_text().splitlines():
            moment, process, name, event, tokens = line.split(maxsplit=4)
            if event == "begin":
                uses[name, process] = Use(name, json.loads(tokens), float(moment))
            else:
                uses[name, process].ended = float(moment)
        return list(uses.values())


def _promises(request: JobRequest, promise: Promise) -> dict[str, Promise]:
    """Return a promise for each task, by its name."""
    if request.array is None:
        return {request.name: replace(promise)}
    indices = parse_array(request.array).indices
    return {f"{request.name}_{index}": replace(promise) for index in indices}


_OPEN = "queued,dispatching,pending,running"
