"""The demonstration: a daemon of its own, two local clusters, a mixed stream of real jobs, live."""

from __future__ import annotations

import json as json_text
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from metasched.client.client import Client, ClientError
from metasched.client.schemas import Request, Submission
from metasched.errors import UserError

CLUSTERS = {"left": (8, 300), "right": (4, 100)}  # processors, benchmark
ARRIVALS = 15.0  # seconds over which the jobs are submitted
PATIENCE = 90.0  # seconds after which what has not ended counts as lost
# A job keeps its processors busy for a while by sleeping: the machine may have only two.
WORK = "#!/bin/sh\nsleep $1\n"
ENDED = ("completed", "failed", "timeout", "cancelled", "rejected")


class DemoFailed(UserError):
    """The demonstration could not run: what, where; what to do."""

    exit_code = 1


@dataclass(frozen=True)
class Planned:
    """One job of the workload: `at` seconds after the start it asks for `seconds` of `cpus`."""

    at: float
    seconds: float
    cpus: int
    urgency: int
    slack: float | None  # seconds between its earliest end and its deadline


def workload(jobs: int, seed: int) -> list[Planned]:
    """A mixed stream: sizes, run times, urgencies and deadlines drawn from the seed."""
    draw = random.Random(seed)
    return [
        Planned(
            at=ARRIVALS * number / jobs,
            seconds=round(draw.uniform(0.5, 4.0), 1),
            cpus=draw.choice((1, 1, 1, 2, 2, 4)),
            urgency=draw.choice((0, 0, 0, 1, 2, 3)),
            slack=draw.choice((None, 3.0, 8.0, 20.0)),
        )
        for number in range(jobs)
    ]


def run(*, jobs: int, seed: int, plot: Path | None, json: bool) -> int:
    """Run the demonstration; 0 if every job ended well, 1 if one was lost or failed.

    DemoFailed if the daemon does not start or the plot cannot be drawn.
    """
    if plot is not None:
        _check_plot(plot)
    console = Console(stderr=json)
    planned = workload(jobs, seed)
    with (
        tempfile.TemporaryDirectory(prefix="metasched-demo-") as name,
        _daemon(Path(name)) as client,
    ):
        rows = _watch(client, planned, Path(name), console)
    summary = _summary(planned, rows)
    if json:
        print(json_text.dumps(summary))
    else:
        console.print(_told(summary), soft_wrap=True)
    if plot is not None:
        _draw(rows, plot)
        console.print(f"Gantt chart: {plot}")
    return 0 if summary["completed"] == jobs else 1


@contextmanager
def _daemon(folder: Path) -> Iterator[Client]:
    """A daemon with two local clusters in a folder of its own; it ends with the demonstration."""
    config = folder / "metasched.toml"
    config.write_text(
        '[daemon]\ndatabase = "sqlite:///metasched.db"\nsocket = "metasched.sock"\n'
        + "".join(
            f'[[cluster]]\nname = "{name}"\nadapter = "local"\ncpus = {cpus}\n'
            f"benchmark = {benchmark}\npoll_interval = 0.5\n"
            for name, (cpus, benchmark) in CLUSTERS.items()
        )
    )
    log = folder / "daemon.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "metasched", "serve", "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,  # Ctrl-C is for us: we stop the daemon after its jobs
        )
    client = Client(folder / "metasched.sock")
    try:
        _ready(client, process, log)
        yield client
    finally:
        _stop(client, process)


def _ready(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if all(c["state"] == "up" for c in client.clusters()):
                return
        except ClientError:
            pass
        time.sleep(0.05)
    last = log.read_text(errors="replace").strip().rpartition("\n")[2]
    raise DemoFailed(f"its daemon does not start ({last or 'it says nothing'}); see {log}")


def _stop(client: Client, process: subprocess.Popen[bytes]) -> None:
    """End what still runs, then the daemon."""
    if process.poll() is None:
        try:
            if client.jobs(state="queued,held,dispatching,pending,running,suspended"):
                client.change("cancel", [], state="queued,held,dispatching,pending,running")
                deadline = time.monotonic() + 10
                while time.monotonic() < deadline and client.jobs(state="pending,running"):
                    time.sleep(0.1)
        except ClientError:
            pass
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _submission(job: Planned, number: int, folder: Path) -> Submission:
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    script, variables = (sha256(t.encode()).hexdigest() for t in (WORK, str(environment)))
    deadline = None if job.slack is None else time.time() + job.seconds + job.slack
    request = Request(
        script=script,
        environment=variables,
        directory=str(folder),
        arguments=(str(job.seconds),),
        output="/dev/null",
        name=f"demo-{number}",
        tasks=job.cpus,
        time_limit=job.seconds + 1,
        urgency=job.urgency,
        deadline=deadline,
    )
    return Submission(
        jobs=(request,), scripts={script: WORK}, environments={variables: environment}
    )


def _watch(
    client: Client, planned: Sequence[Planned], folder: Path, console: Console
) -> list[dict[str, Any]]:
    """Submit each job when it is due and show the clusters until all have ended."""
    begun = time.monotonic()
    deadlines: dict[int, float | None] = {}
    rows: list[dict[str, Any]] = []
    waiting = list(enumerate(planned, 1))
    with Live(console=console, refresh_per_second=8, transient=False) as live:
        while time.monotonic() - begun < ARRIVALS + PATIENCE:
            while waiting and waiting[0][1].at <= time.monotonic() - begun:
                number, job = waiting.pop(0)
                submission = _submission(job, number, folder)
                answer = client.submit(submission)[0]
                deadlines[answer["job"]] = submission.jobs[0].deadline
            rows = [
                row | {"deadline": deadlines[row["job"]], "cpus": planned[row["job"] - 1].cpus}
                for row in client.jobs(all="1")
            ]
            live.update(_view(client.clusters(), rows, len(planned), time.monotonic() - begun))
            if not waiting and rows and all(row["state"] in ENDED for row in rows):
                break
            time.sleep(0.2)
    return rows


def _seconds(row: dict[str, Any]) -> float:
    """How long it ran, in seconds."""
    if row["started"] is None or row["ended"] is None:
        return 0.0
    return _epoch(row["ended"]) - _epoch(row["started"])


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _work(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    """Processor seconds done on each cluster."""
    done: Counter[str] = Counter()
    for row in rows:
        if row["cluster"]:
            done[row["cluster"]] += _seconds(row) * row["cpus"]
    return done


def _met(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """How many deadlines were met, of how many ended jobs that had one."""
    with_one = [r for r in rows if r["deadline"] is not None and r["ended"] is not None]
    return sum(_epoch(r["ended"]) <= r["deadline"] for r in with_one), len(with_one)


def _view(
    clusters: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], jobs: int, now: float
) -> Group:
    table = Table(title=f"metasched demo, {now:.0f} s", title_justify="left", expand=False)
    for heading in ("cluster", "processors", "in use", "queued", "running", "ended", "share"):
        table.add_column(heading, justify="left" if heading == "cluster" else "right")
    work = _work(rows)
    for cluster in clusters:
        name = cluster["cluster"]
        states = Counter(row["state"] for row in rows if row["cluster"] == name)
        share = work[name] / work.total() if work.total() else 0.0
        table.add_row(
            name,
            str(cluster["cpus"]),
            str(cluster["used"]),
            str(states["dispatching"] + states["pending"]),
            str(states["running"]),
            str(sum(states[state] for state in ENDED)),
            f"{share:.0%}",
        )
    met, of = _met(rows)
    progress = Progress(
        TextColumn("ended"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    )
    progress.add_task(
        f"deadlines met {met} of {of}",
        total=jobs,
        completed=sum(row["state"] in ENDED for row in rows),
    )
    return Group(table, progress)


def _summary(planned: Sequence[Planned], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    met, of = _met(rows)
    work = _work(rows)
    started = [row for row in rows if row["started"] is not None]
    waits = [_epoch(row["started"]) - _epoch(row["submitted"]) for row in started]
    states = Counter(row["state"] for row in rows)
    return {
        "jobs": len(planned),
        "completed": states["completed"],
        "failed": sum(states[state] for state in ENDED) - states["completed"],
        "lost": len(planned) - sum(states[state] for state in ENDED),
        "deadlines_met": met,
        "deadlines": of,
        "mean_wait": sum(waits) / len(waits) if waits else None,
        "load_share": {
            name: work[name] / work.total() if work.total() else 0.0 for name in CLUSTERS
        },
    }


def _told(summary: dict[str, Any]) -> str:
    share = ", ".join(f"{name} {part:.0%}" for name, part in summary["load_share"].items())
    wait = summary["mean_wait"]
    return (
        f"{summary['completed']} of {summary['jobs']} jobs completed, {summary['failed']} failed, "
        f"{summary['lost']} lost. Deadlines met: {summary['deadlines_met']} of "
        f"{summary['deadlines']}. Mean wait: {'-' if wait is None else f'{wait:.1f} s'}. "
        f"Share of the work: {share}."
    )


def _check_plot(path: Path) -> None:
    """Find out before the run whether the chart can be drawn after it."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise DemoFailed(
            "--plot needs matplotlib; install it with pip install 'metasched[plot]'"
        ) from None
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DemoFailed(f"--plot {path}: unknown kind of picture; write .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise DemoFailed(f"--plot {path}: no such folder; make it first")


def _draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A Gantt chart: a bar a job on the processors that it could have had, by priority."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ran = [row for row in rows if row["started"] is not None and row["ended"] is not None]
    origin = min((_epoch(row["submitted"]) for row in rows), default=0.0)
    sizes = [cpus for cpus, _ in CLUSTERS.values()]
    figure, axes = pyplot.subplots(
        len(CLUSTERS), 1, sharex=True, height_ratios=sizes, layout="constrained", figsize=(10, 5)
    )
    colours = matplotlib.colormaps["viridis_r"]
    for axis, (name, (cpus, _)) in zip(axes, CLUSTERS.items(), strict=True):
        free = [0.0] * cpus
        for row in sorted((r for r in ran if r["cluster"] == name), key=lambda r: r["started"]):
            start, end = _epoch(row["started"]) - origin, _epoch(row["ended"]) - origin
            # a job's processors are counted, not named: take those that were free longest
            lanes = sorted(range(cpus), key=lambda lane: free[lane])[: row["cpus"]]
            for lane in lanes:
                free[lane] = end
                axis.barh(
                    lane,
                    end - start,
                    left=start,
                    height=0.9,
                    color=colours(row["priority"] / 10),
                    edgecolor="white",
                )
            axis.text(start, lanes[0], f" {row['job']}", va="center", fontsize=7)
        axis.set(title=name, ylabel="processor", ylim=(-0.6, cpus - 0.4))
    axes[-1].set_xlabel("seconds since the first submission (darker: more urgent)")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
