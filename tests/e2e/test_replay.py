"""A long run of the daemon, replayed: the simulator's core takes the same decisions."""

from __future__ import annotations

import os
from random import Random

import pytest
from msgspec import to_builtins

from metasched.client.client import Client
from metasched.client.schemas import JobRequest, SubmitRequest
from tests.e2e.conftest import Site

JOBS = 240
THREE_LOCAL = "".join(
    f'[[cluster]]\nname = "{name}"\nadapter = "local"\ncpus = {cpus}\npoll_interval = 0.2\n'
    f'policy = "{policy}"\n'
    for name, cpus, policy in (
        ("large", 16, "fb-unmod"),
        ("middle", 6, "easy"),
        ("small", 3, "sjf"),
    )
)
LICENCES = (
    '[[licence]]\nname = "solver"\ntotal = 3\n'
    '[[licence]]\nname = "mesher"\ntotal = 2\nlinger = "1s"\nclusters = ["large", "small"]\n'
)


def requests(site: Site, draw: Random) -> list[JobRequest]:
    """Draw short jobs of all sizes and kinds, more than the clusters can run at once."""
    return [
        JobRequest(
            script=f"sleep{draw.choice('123')}",
            environment="e",
            directory=str(site.folder),
            output="/dev/null",
            tasks=draw.choice([1, 1, 1, 2, 3, 4, 6, 10]),
            time_limit=draw.choice([60.0, 120.0, 600.0]),
            urgency=draw.randrange(4),
            licences=draw.choice([{}, {}, {}, {"solver": 1}, {"solver": 2, "mesher": 1}]),
        )
        for _ in range(JOBS)
    ]


@pytest.mark.slow("hundreds of jobs run, then are decided again")
def test_a_long_run_with_licences_a_cancel_and_a_drain_is_decided_the_same_again(
    site: Site,
) -> None:
    site.configure(THREE_LOCAL + LICENCES)
    site.start()
    client = Client(site.folder / "ms.sock")
    scripts = {f"sleep{n}": f"#!/bin/sh\nsleep 0.{n}\n" for n in "123"}
    long = site.submit("--wrap", "sleep 600")
    drawn = requests(site, Random(4))
    jobs: list[int] = []
    for first in range(0, JOBS, 80):
        submission = SubmitRequest(
            jobs=tuple(drawn[first : first + 80]),
            scripts=scripts,
            environments={"e": dict(os.environ)},
        )
        answers = client.submit(to_builtins(submission))
        jobs += [answer["job"] for answer in answers if answer["job"] is not None]
        if first == 0:
            site.run("cancel", str(long))
            site.run("cluster", "drain", "middle", "--reason", "a test")
        if first == 80:
            site.run("cluster", "resume", "middle")
    rows = site.until_ended(*jobs, patience=240.0)
    assert [row["state"] for row in rows] == ["completed"] * JOBS
    [cancelled] = site.until_ended(long)
    assert cancelled["state"] == "cancelled"
    assert {row["cluster"] for row in rows} == {"large", "middle", "small"}
    together = zip(rows, drawn, strict=True)
    assert {row["cluster"] for row, request in together if "mesher" in request.licences} == {
        "large",
        "small",
    }
    site.stop()
    site.replayed()
    tried_on_the_record(site)


def tried_on_the_record(site: Site) -> None:
    """Let another policy run on what the daemon has recorded."""
    (site.folder / "other.toml").write_text("pull = false\n[weights]\nlicence = 0\n")
    answer = site.json("policy", "try", "other.toml", "-c", str(site.config))
    # the cancelled job counts if it had started
    assert answer["jobs"] + sum(answer["left_out"].values()) == JOBS + 1
    assert answer["replay"]["problems"] == []
    assert answer["replay"]["decisions"] >= 2 * JOBS
    assert {group["name"] for group in answer["groups"]["cluster"]} == {"large", "middle", "small"}
    assert {group["name"] for group in answer["groups"]["licence"]} == {"solver", "mesher"}
    [moves] = [each for each in answer["figures"] if each["figure"] == "moves per job"]
    assert moves["after"] == 0
