"""The demonstration: a temporary daemon, two local clusters and a mixed stream of real jobs.

A reservation is made first; its job starts in its window, whatever else is queued then.
"""

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

from msgspec import to_builtins
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from metasched.client.client import Client
from metasched.client.connection import ClientError
from metasched.client.schemas import JobRequest, SubmitRequest
from metasched.client.site_answers import ClusterRow, ReservationRow
from metasched.errors import UserError

CLUSTERS = {"left": (8, 300), "right": (4, 100)}  # processors, benchmark
ARRIVAL_SECONDS = 15.0  # time over which the jobs are submitted
RESERVED = ("left", 4)  # cluster and processors of the reservation
RESERVED_AFTER, RESERVED_SECONDS = 10.0, 6.0  # from its request to its start; its length
RESERVED_JOB = 3.0  # seconds for which the job of the reservation runs
COMPLETION_TIMEOUT = 90.0  # seconds after which open jobs count as lost
# Jobs sleep instead of computing: the machine may have only two processors.
SCRIPT = "#!/bin/sh\nsleep $1\n"
FINAL_STATES = ("completed", "failed", "timeout", "cancelled", "rejected")


class DemoError(UserError):
    """The demonstration cannot run."""

    exit_code = 1


@dataclass(frozen=True)
class DemoJob:
    """One job of the workload."""

    submit_after: float  # seconds after the start of the demonstration
    seconds: float  # run time
    cpus: int
    urgency: int
    slack: float | None  # seconds between its earliest end and its deadline


def workload(jobs: int, seed: int) -> list[DemoJob]:
    """Generate jobs with random sizes, run times, urgencies and deadlines."""
    generator = random.Random(seed)
    return [
        DemoJob(
            submit_after=ARRIVAL_SECONDS * number / jobs,
            seconds=round(generator.uniform(0.5, 4.0), 1),
            cpus=generator.choice((1, 1, 1, 2, 2, 4)),
            urgency=generator.choice((0, 0, 0, 1, 2, 3)),
            slack=generator.choice((None, 3.0, 8.0, 20.0)),
        )
        for number in range(jobs)
    ]


def run(*, jobs: int, seed: int, plot: Path | None, json: bool) -> int:
    """Run the demonstration. Return 0 if every job completed, else 1.

    DemoError if the daemon does not start or the plot cannot be drawn.
    """
    if plot is not None:
        _check_plot(plot)
    console = Console(stderr=json)
    planned = workload(jobs, seed)
    with (
        tempfile.TemporaryDirectory(prefix="metasched-demo-") as folder,
        _running_daemon(Path(folder)) as client,
    ):
        window = _reserve(client)
        job = DemoJob(0.0, RESERVED_JOB, RESERVED[1], 0, None)
        submission = _submission(job, 0, Path(folder), window["reservation"])
        inside = client.submit(to_builtins(submission))[0]["job"]
        rows, reserved = _run_workload(client, planned, Path(folder), console, window, inside)
    summary = _summarise(planned, rows) | {"reservation": _summarise_window(window, reserved)}
    if json:
        print(json_text.dumps(summary))
    else:
        console.print(_format_summary(summary), soft_wrap=True)
    if plot is not None:
        _draw_gantt([*rows, reserved], plot, window)
        console.print(f"Gantt chart: {plot}", soft_wrap=True)
    return 0 if summary["completed"] == jobs and reserved["state"] == "completed" else 1


@contextmanager
def _running_daemon(folder: Path) -> Iterator[Client]:
    """Run a daemon with two local clusters, with its state in `folder`."""
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
            [sys.executable, "-P", "-m", "metasched", "serve", "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,  # at Ctrl-C the daemon is stopped after its jobs
        )
    client = Client(folder / "metasched.sock")
    try:
        _wait_until_ready(client, process, log)
        yield client
    finally:
        _stop_daemon(client, process)


def _wait_until_ready(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if all(cluster["state"] == "up" for cluster in client.clusters()):
                return
        except ClientError:
            pass
        time.sleep(0.05)
    last_log_line = log.read_text(errors="replace").strip().rpartition("\n")[2]
    raise DemoError(f"its daemon does not start ({last_log_line or 'its log is empty'}); see {log}")


def _stop_daemon(client: Client, process: subprocess.Popen[bytes]) -> None:
    """Cancel open jobs, then stop the daemon."""
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


def _reserve(client: Client) -> ReservationRow:
    """Reserve processors for a window that begins soon; return the reservation."""
    cluster, cpus = RESERVED
    start = time.time() + RESERVED_AFTER
    return client.reserve(
        {
            "least": cpus,
            "most": cpus,
            "shortest": RESERVED_SECONDS,
            "longest": RESERVED_SECONDS,
            "ready": start,
            "deadline": start + RESERVED_SECONDS + 1.0,  # times are whole seconds
            "clusters": [cluster],
        }
    )


def _submission(
    job: DemoJob, number: int, folder: Path, reservation: int | None = None
) -> SubmitRequest:
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    script, variables = (sha256(text.encode()).hexdigest() for text in (SCRIPT, str(environment)))
    deadline = None if job.slack is None else time.time() + job.seconds + job.slack
    request = JobRequest(
        script=script,
        environment=variables,
        directory=str(folder),
        arguments=(str(job.seconds),),
        output="/dev/null",
        name=f"demo-{number}",
        reservation=reservation,
        tasks=job.cpus,
        time_limit=job.seconds + 1,
        urgency=job.urgency,
        deadline=deadline,
    )
    return SubmitRequest(
        jobs=(request,), scripts={script: SCRIPT}, environments={variables: environment}
    )


def _run_workload(
    client: Client,
    planned: Sequence[DemoJob],
    folder: Path,
    console: Console,
    window: ReservationRow,
    inside: int | None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Submit each job when it is due and show the clusters until all have ended.

    Return the rows of these jobs, and the row of the job `inside` the window.
    """
    started_at = time.monotonic()
    submitted: dict[int | None, dict[str, Any]] = {inside: {"deadline": None, "cpus": RESERVED[1]}}
    rows: list[dict[str, Any]] = []
    reserved: dict[str, Any] = {}
    waiting = list(enumerate(planned, 1))
    with Live(console=console, refresh_per_second=8, transient=False) as live:
        while time.monotonic() - started_at < ARRIVAL_SECONDS + COMPLETION_TIMEOUT:
            while waiting and waiting[0][1].submit_after <= time.monotonic() - started_at:
                number, job = waiting.pop(0)
                submission = _submission(job, number, folder)
                answer = client.submit(to_builtins(submission))[0]
                attributes = {"deadline": submission.jobs[0].deadline, "cpus": job.cpus}
                submitted[answer["job"]] = attributes
            all_rows = [{**row, **submitted[row["job"]]} for row in client.jobs(all="1")]
            rows = [row for row in all_rows if row["job"] != inside]
            [reserved] = [row for row in all_rows if row["job"] == inside]
            elapsed = time.monotonic() - started_at
            promise = _describe_window(_summarise_window(window, reserved))
            lines = _render(client.clusters(), rows, len(planned), elapsed)
            live.update(Group(promise, lines))
            if not waiting and all(row["state"] in FINAL_STATES for row in all_rows):
                break
            time.sleep(0.2)
    if not console.is_terminal:
        console.line()  # Live ends its last line on terminals alone
    return rows, reserved


def _summarise_window(window: ReservationRow, row: dict[str, Any]) -> dict[str, Any]:
    """Return the reservation and what became of its job."""
    late = None
    if row["started"] is not None:
        late = _epoch_seconds(row["started"]) - _epoch_seconds(window["start"])
    return {
        "reservation": window["reservation"],
        "cluster": window["cluster"],
        "cpus": RESERVED[1],
        "start": window["start"],
        "end": window["end"],
        "job": row["state"],
        "started": row["started"],
        "start_delay": late,
    }


def _describe_window(summary: dict[str, Any]) -> str:
    begin, end = (f"{datetime.fromisoformat(summary[key]):%H:%M:%S}" for key in ("start", "end"))
    description = f"{summary['cpus']} processors of {summary['cluster']} from {begin} to {end}"
    line = f"Reservation of {description}: its job is {summary['job']}"
    if summary["start_delay"] is None:
        return line
    return f"{line}, it started {summary['start_delay']:.1f} s after the start of the window"


def _run_seconds(row: dict[str, Any]) -> float:
    """Return the run time of a job, 0.0 if it has not ended."""
    if row["started"] is None or row["ended"] is None:
        return 0.0
    return _epoch_seconds(row["ended"]) - _epoch_seconds(row["started"])


def _epoch_seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _processor_seconds(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    """Return the processor seconds used on each cluster."""
    processor_seconds: Counter[str] = Counter()
    for row in rows:
        if row["cluster"]:
            processor_seconds[row["cluster"]] += _run_seconds(row) * row["cpus"]
    return processor_seconds


def _count_met_deadlines(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return the number of deadlines that were met, and of ended jobs with a deadline."""
    ended = [row for row in rows if row["deadline"] is not None and row["ended"] is not None]
    met = sum(_epoch_seconds(row["ended"]) <= row["deadline"] for row in ended)
    return met, len(ended)


def _render(
    clusters: Sequence[ClusterRow], rows: Sequence[dict[str, Any]], jobs: int, now: float
) -> Group:
    table = Table(title=f"metasched demo, {now:.0f} s", title_justify="left", expand=False)
    for heading in ("cluster", "processors", "in use", "queued", "running", "ended", "share"):
        table.add_column(heading, justify="left" if heading == "cluster" else "right")
    work = _processor_seconds(rows)
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
            str(sum(states[state] for state in FINAL_STATES)),
            f"{share:.0%}",
        )
    met, with_deadline = _count_met_deadlines(rows)
    progress = Progress(
        TextColumn("ended"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    )
    progress.add_task(
        f"deadlines met {met} of {with_deadline}",
        total=jobs,
        completed=sum(row["state"] in FINAL_STATES for row in rows),
    )
    return Group(table, progress)


def _summarise(planned: Sequence[DemoJob], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    met, with_deadline = _count_met_deadlines(rows)
    work = _processor_seconds(rows)
    started = [row for row in rows if row["started"] is not None]
    waits = [_epoch_seconds(row["started"]) - _epoch_seconds(row["submitted"]) for row in started]
    states = Counter(row["state"] for row in rows)
    return {
        "jobs": len(planned),
        "completed": states["completed"],
        "failed": sum(states[state] for state in FINAL_STATES) - states["completed"],
        "lost": len(planned) - sum(states[state] for state in FINAL_STATES),
        "deadlines_met": met,
        "deadlines": with_deadline,
        "mean_wait": sum(waits) / len(waits) if waits else None,
        "load_share": {
            name: work[name] / work.total() if work.total() else 0.0 for name in CLUSTERS
        },
    }


def _format_summary(summary: dict[str, Any]) -> str:
    share = ", ".join(f"{name} {fraction:.0%}" for name, fraction in summary["load_share"].items())
    wait = summary["mean_wait"]
    return (
        f"{summary['completed']} of {summary['jobs']} jobs completed, {summary['failed']} failed, "
        f"{summary['lost']} lost. Deadlines met: {summary['deadlines_met']} of "
        f"{summary['deadlines']}. Mean wait: {'-' if wait is None else f'{wait:.1f} s'}. "
        f"Share of the work: {share}.\n{_describe_window(summary['reservation'])}."
    )


def _check_plot(path: Path) -> None:
    """Check before the run that the chart can be drawn after it."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise DemoError(
            "--plot needs matplotlib; install it with pip install 'metasched[plot]'"
        ) from None
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DemoError(f"--plot {path}: unknown kind of picture; write .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise DemoError(f"--plot {path}: no such folder; make it first")


def _draw_gantt(rows: Sequence[dict[str, Any]], path: Path, window: ReservationRow) -> None:
    """Draw a Gantt chart: a bar per job on simulated processors, coloured by priority.

    The time of the window is shaded on its cluster.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ran = [row for row in rows if row["started"] is not None and row["ended"] is not None]
    origin = min((_epoch_seconds(row["submitted"]) for row in rows), default=0.0)
    sizes = [cpus for cpus, _ in CLUSTERS.values()]
    figure, axes = pyplot.subplots(
        len(CLUSTERS), 1, sharex=True, height_ratios=sizes, layout="constrained", figsize=(10, 5)
    )
    colours = matplotlib.colormaps["viridis_r"]
    for axis, (name, (cpus, _)) in zip(axes, CLUSTERS.items(), strict=True):
        free = [0.0] * cpus
        on_cluster = [row for row in ran if row["cluster"] == name]
        for row in sorted(on_cluster, key=lambda row: row["started"]):
            start = _epoch_seconds(row["started"]) - origin
            end = _epoch_seconds(row["ended"]) - origin
            # clusters count processors without names: draw on those that were free longest
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
        if name == window["cluster"]:
            begin, end = (_epoch_seconds(window[key]) - origin for key in ("start", "end"))
            axis.axvspan(begin, end, color="tab:orange", alpha=0.2, zorder=0)
        axis.set(title=name, ylabel="processor", ylim=(-0.6, cpus - 0.4))
    axes[-1].set_xlabel("seconds since the first submission (darker: more urgent; shaded: window)")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
