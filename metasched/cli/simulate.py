"""The commands of the laboratory: simulate, experiment."""

from __future__ import annotations

import csv
import gc
import json as json_format
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from metasched.cli.connect import Json
from metasched.cli.messages import warn
from metasched.cli.show import table
from metasched.errors import UserError

COLUMNS = ["job", "submit", "start", "end", "cpus", "cluster", "machine", "priority", "reservation"]


def simulate(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            show_default=False,
            help="A trace (SWF, plain or gzipped), or table1, table4, table6, table13, lublin.",
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME|FILE",
            help="Local policy, or a policy file [fb-unmod]; several are compared.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of policy or workload; repeatable."),
    ] = None,
    clusters: Annotated[
        str | None,
        typer.Option("--clusters", metavar="SPEC|FILE", help="128, 2x64, 64,32,32 or a TOML file."),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option("--jobs", metavar="A:B", help="Only those at places A to B-1, from 0."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all that is drawn.")] = 0,
    runs: Annotated[
        int, typer.Option("--runs", min=1, max=10000, help="Seeds, from --seed on, to compare.")
    ] = 1,
    schedule: Annotated[
        Path | None, typer.Option("--schedule", metavar="OUT.csv", help="Write every job's times.")
    ] = None,
    over_time: Annotated[
        Path | None,
        typer.Option("--over-time", metavar="OUT.csv", help="Write each cluster's state by time."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw the schedule.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="OUT.html", help="Write a page with it all.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a workload on simulated clusters with the daemon's own core and policies.

    \b
    Examples:
      metasched simulate trace.swf.gz --policy easy
      metasched simulate trace.swf --clusters 64,32,32 --set load=paper --set pull=false --json
      metasched simulate table6 --policy fb-mod --set inter_arrival=10 --seed 3
      metasched simulate lublin --set jobs=50000 --jobs 0:1000 --schedule out.csv --plot out.png
      metasched simulate table1 --policy easy --policy fb-unmod --runs 10 --report out.html
    """
    from metasched.policies.local import registry as named
    from metasched.simulate import metrics
    from metasched.simulate.settings import read_settings, read_workload
    from metasched.simulate.settings import simulate as run

    if plot is not None:
        from metasched.experiments.plots import check_plot, draw_schedule

        check_plot(plot)
    if report is not None:
        from metasched.experiments.report import check_report, report_run

        check_report(report)
    gc.disable()  # nothing here makes cycles, and looking for them takes a third of the time
    policies, words = policy or [named.DEFAULT], settings or []
    about: dict[str, object] = {"clusters": clusters} if clusters is not None else {}
    about |= {"jobs": jobs} if jobs is not None else {}
    about |= {"set": " ".join(words)} if words else {}
    if len(policies) > 1 or runs > 1:
        if schedule is not None or over_time is not None or plot is not None:
            raise UserError(
                "several runs have no one schedule, --schedule, --over-time or --plot; "
                "write --report, or simulate one policy with one seed"
            )
        seeds = range(seed, seed + runs)
        about["seeds"] = f"{seed} to {seed + runs - 1}" if runs > 1 else seed
        _compare((workload, policies, words, clusters, jobs, seeds), about, report, json)
        return
    chosen = read_settings(policies[0], words, seed, clusters)
    read, described = read_workload(workload, clusters, jobs, chosen)
    with _bar("jobs ended", len(read.requests), 1000) as progress:
        begun = time.perf_counter()
        done = run(read, described, chosen, progress)
        wall = time.perf_counter() - begun
    figures = metrics.summary(done, chosen.policy, wall)
    if schedule is not None:
        _write(schedule, done)
    if over_time is not None:
        _write_moments(over_time, done)
    if plot is not None:
        draw_schedule(done, plot)
    if report is not None:
        about = {"policy": policies[0], **about, "seed": seed}
        report.write_text(report_run(read.name, about, done, figures), encoding="utf-8")
    for cause, count in done.dropped.items():
        warn(f"{count} jobs dropped ({cause}), {workload}; they count in no figure")
    if json:
        print(json_format.dumps(figures, indent=2))
    else:
        _show(figures)


def _compare(
    what: tuple[str, list[str], list[str], str | None, str | None, range],
    about: dict[str, object],
    report: Path | None,
    json: bool,
) -> None:
    """Several policies, or one with several seeds."""
    from metasched.experiments.comparison import compare
    from metasched.experiments.report import report_results

    workload, policies, *_, seeds = what
    with _bar("runs", len(policies) * len(seeds)) as progress:
        results = compare(*what, progress)
    if report is not None:
        page = report_results(Path(workload).name, about, results)
        report.write_text(page, encoding="utf-8")
    if json:
        rows = [_as_json("", len(seeds), result) for result in results]
        foreign = ("experiment", "setting", "published", "difference_percent")
        print(
            json_format.dumps(
                [{k: v for k, v in row.items() if k not in foreign} for row in rows], indent=2
            )
        )
        return
    table(
        ("POLICY", "FIGURE", "MEAN", f"OVER {policies[0]}", f"MINUS {policies[0]}"),
        [_row(result, False)[1:] for result in results],
    )


def _list(them: list[Any], json: bool) -> None:
    if json:
        print(
            json_format.dumps(
                [
                    {"experiment": e.name, "about": e.about, "source": e.source, "runs": e.runs}
                    for e in them
                ],
                indent=2,
            )
        )
        return
    table(
        ("EXPERIMENT", "RUNS", "ABOUT", "SOURCE"),
        [(e.name, e.runs, e.about, e.source) for e in them],
    )


def _as_json(name: str, runs: int, result: Any) -> dict[str, Any]:
    paired = result.paired
    return {
        "experiment": name,
        "runs": runs,
        "setting": result.row,
        "policy": result.column,
        "figure": result.figure,
        "mean": result.mean,
        "values": list(result.values),
        "published": result.published,
        "difference_percent": result.difference,
        "over_baseline": result.ratio,
        "minus_baseline": None if paired is None else paired[0],
        "minus_baseline_95": paired[1] if paired and math.isfinite(paired[1]) else None,
    }


def _row(result: Any, published: bool) -> list[str]:
    paired = ""
    if result.paired is not None:
        mean, half = result.paired
        paired = f"{mean:+.4g}" + (f" +- {round(half, 6):.2g}" if math.isfinite(half) else "")
    if published:
        beside = [
            "" if result.published is None else f"{result.published:g}",
            "" if result.difference is None else f"{result.difference:+.1f}%",
        ]
    else:
        beside = ["" if result.ratio is None else f"{result.ratio:.2f}"]
    return [
        result.row,
        result.column,
        result.figure,
        f"{result.mean:.4g}" if abs(result.mean) < 1e4 else f"{result.mean:.0f}",
        *beside,
        paired,
    ]


class Advance(Protocol):
    def __call__(self, steps: int, /) -> None: ...


@contextmanager
def _bar(what: str, total: int, every: int = 1) -> Iterator[Advance | None]:
    """A progress bar on a terminal, nothing in a pipe; drawn again after `every` steps."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    with Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)
    ) as progress:
        task = progress.add_task(what, total=total)
        waiting = 0

        def advance(steps: int) -> None:
            nonlocal waiting
            waiting += steps
            if waiting >= every:
                progress.advance(task, waiting)
                waiting = 0

        yield advance
        progress.advance(task, waiting)


def _write(path: Path, schedule: Any) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for p in schedule.placed:
            cluster = schedule.clusters[p.cluster]
            rows.writerow(
                (
                    p.request.number,
                    f"{p.job.submitted:.15g}",
                    f"{p.start:.15g}",
                    f"{p.end:.15g}",
                    p.job.cpus,
                    cluster.name,
                    p.machine if cluster.machines else "",
                    p.priority,
                    "",
                )
            )


def _write_moments(path: Path, schedule: Any) -> None:
    from metasched.simulate import metrics

    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("cluster", *metrics.Moment._fields))
        for place, cluster in enumerate(schedule.clusters):
            there = [p for p in schedule.placed if p.cluster == place]
            for time, *state in metrics.over_time(there):
                rows.writerow((cluster.name, f"{time:.15g}", *state))


def _show(figures: dict[str, Any]) -> None:
    rows = []
    for name, value in figures.items():
        if name in ("clusters", "load_share", "dropped"):
            continue
        rows.append((name, f"{value:.6g}" if isinstance(value, float) else value))
    table(("FIGURE", "VALUE"), rows)
    print()
    table(
        ("CLUSTER", "JOBS", "SHARE", "UTILISATION", "MEAN_WAIT", "BOUNDED_SLOWDOWN"),
        [
            (
                name,
                of["jobs"],
                f"{figures['load_share'][name]:.1%}",
                f"{of['utilisation']:.1%}",
                f"{of['mean_wait']:.1f}",
                f"{of['mean_bounded_slowdown']:.2f}",
            )
            for name, of in figures["clusters"].items()
        ],
    )
