"""Arrays of 10,000 tasks: duration of calls, and whether waiting tasks slow running tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from metasched.client.client import Client
from tests.bench.conftest import Record
from tests.bench.test_daemon import seconds, submission
from tests.e2e.conftest import Site
from tests.harness.slurm import SlurmSite

TASKS, AT_A_TIME, RUN, ROUNDS = 10_000, 50, 500, 1
OPEN = "queued,held,dispatching,pending,running"
SENT = 1_000  # to two Slurm clusters, as native arrays


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_calls_on_ten_thousand_tasks(running: Site, record: Record) -> None:
    client = Client(running.folder / "ms.sock", timeout=300)
    spent: dict[str, list[float]] = {}

    def submit(name: str, limit: str = "", **fields: Any) -> str:
        rows: list[dict[str, Any]] = []
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
