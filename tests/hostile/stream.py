"""The jobs of account b: short jobs, several at a time, and when each of them started.

Run as a process of that account: `python -m tests.hostile.stream SOCKET FOLDER NUMBER CLUSTER...`
prints the `Stream` as JSON.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from metasched.client.client import Client
from metasched.client.connection import ClientError

OPEN_AT_MOST = 10  # jobs
POLL = 0.1  # seconds between two queries of the jobs
PATIENCE = 240.0  # seconds without an end of any job, after which the rest counts as lost
ENDED = {"completed", "failed", "timeout", "cancelled", "rejected"}
# each start appends a line, so that a second start shows
SCRIPT = '#!/bin/sh\ndate +%s.%N >>"$1"\n'


@dataclass(frozen=True)
class Start:
    """One job and its start."""

    job: int
    cluster: str
    state: str  # the last that was reported
    starts: int  # how often its payload has begun
    seconds: float | None  # from the submission to the first line of the payload


@dataclass
class Stream:
    """The starts of all jobs, and failed requests."""

    starts: list[Start] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # of requests to the daemon


@dataclass(frozen=True)
class _Open:
    """A job that has not ended."""

    cluster: str
    submitted: float  # epoch seconds, before the request
    run_log: Path  # its payload's lines


def run(client: Client, folder: Path, number: int, clusters: list[str]) -> Stream:
    """Submit jobs to the clusters in turn, and wait until all have ended."""
    stream, jobs, submitted = Stream(), dict[int, _Open](), 0
    last_end = time.monotonic()
    while (submitted < number or jobs) and time.monotonic() < last_end + PATIENCE:
        try:
            while submitted < number and len(jobs) < OPEN_AT_MOST:
                cluster = clusters[submitted % len(clusters)]
                started = _Open(cluster, time.time(), folder / f"ran-{os.getpid()}-{submitted}")
                submitted += 1
                jobs[_submit(client, started)] = started
            states = {row["job"]: row["state"] for row in client.jobs([str(job) for job in jobs])}
        except ClientError as error:
            stream.errors.append(str(error))
            states = {}
        for job in [job for job, state in states.items() if state in ENDED]:
            stream.starts.append(_start(job, states[job], jobs.pop(job)))
            last_end = time.monotonic()
        time.sleep(POLL)
    stream.starts += [
        _start(job, states.get(job, "open"), remaining) for job, remaining in jobs.items()
    ]
    return stream


def _submit(client: Client, job: _Open) -> int:
    request = {
        "name": job.run_log.name,
        "script": "s",
        "environment": "e",
        "directory": str(job.run_log.parent),
        "arguments": [str(job.run_log)],
        "output": "/dev/null",
        "clusters": [job.cluster],
        "time_limit": 300.0,
    }
    environment = {"PATH": "/usr/bin:/bin"}
    [answer] = client.submit(
        {"jobs": [request], "scripts": {"s": SCRIPT}, "environments": {"e": environment}}
    )
    number = answer["job"]
    assert number is not None
    return number


def _start(job: int, state: str, opened: _Open) -> Start:
    lines = opened.run_log.read_text().splitlines() if opened.run_log.exists() else []
    seconds = float(lines[0]) - opened.submitted if lines else None
    return Start(job, opened.cluster, state, len(lines), seconds)


def main(arguments: list[str]) -> None:
    socket, folder, number, *clusters = arguments
    stream = run(Client(socket), Path(folder), int(number), clusters)
    sys.stdout.buffer.write(msgspec.json.encode(stream))


if __name__ == "__main__":
    main(sys.argv[1:])
