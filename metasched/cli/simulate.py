"""The command `simulate`."""

from __future__ import annotations

import csv
import gc
import json as json_format
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from metasched.cli.common_options import JsonOption
from metasched.cli.messages import warn
from metasched.cli.option_class import takes_options
from metasched.cli.progress import progress_bar
from metasched.cli.results import result_json, result_line
from metasched.cli.show import print_table
from metasched.errors import UserError

SCHEDULE_COLUMNS = [
    "job",
    "submit",
    "start",
    "end",
    "cpus",
    "cluster",
    "machine",
    "priority",
    "reservation",
]


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Arguments and options of `metasched simulate`."""

    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            show_default=False,
            help="A trace (SWF, plain or gzipped), or table1, table4, table6, table13, lublin.",
        ),
    ]
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME|FILE",
            help="Local policy, or a policy file [fb-unmod]; several are compared.",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a key of policy or workload; repeatable."
        ),
    ] = None
    clusters: Annotated[
        str | None,
        typer.Option("--clusters", metavar="SPEC|FILE", help="128, 2x64, 64,32,32 or a TOML file."),
    ] = None
    reservations: Annotated[
        Path | None,
        typer.Option(
            "--reservations", metavar="FILE", help="Request the reservations of a TOML file, too."
        ),
    ] = None
    jobs: Annotated[
        str | None,
        typer.Option("--jobs", metavar="A:B", help="Use only jobs A to B-1, counted from 0."),
    ] = None
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all random numbers.")] = 0
    runs: Annotated[
        int, typer.Option("--runs", min=1, max=10000, help="Number of seeds, from --seed on.")
    ] = 1
    schedule: Annotated[
        Path | None,
        typer.Option("--schedule", metavar="OUT.csv", help="Write the times of every job."),
    ] = None
    over_time: Annotated[
        Path | None,
        typer.Option(
            "--over-time", metavar="OUT.csv", help="Write the state of clusters over time."
        ),
    ] = None
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw the schedule.")
    ] = None
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="OUT.html", help="Write a report with all results."),
    ] = None
    json: JsonOption = False


@takes_options(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Run a workload on simulated clusters with the daemon's own core and policies.

    \b
    Examples:
      metasched simulate trace.swf.gz --policy easy
      metasched simulate trace.swf --clusters 64,32,32 --set load=paper --set pull=false --json
      metasched simulate table6 --policy fb-mod --set inter_arrival=10 --seed 3
      metasched simulate lublin --set jobs=50000 --jobs 0:1000 --schedule out.csv --plot out.png
      metasched simulate trace.swf --set reserved=0.1 --reservations course.toml
      metasched simulate table1 --policy easy --policy fb-unmod --runs 10 --report out.html
    """
    if options.plot is not None:
        from metasched.laboratory.experiments.plots import check_plot

        check_plot(options.plot)
    if options.report is not None:
        from metasched.laboratory.experiments.report import check_report

        check_report(options.report)
    gc.disable()  # no cycles are created; collection would take a third of the time
    if len(options.policy or ()) > 1 or options.runs > 1:
        _compare_runs(options)
    else:
        _simulate_once(options)


def _simulate_once(options: SimulateOptions) -> None:
    """Simulate one policy with one seed; print its figures and write the files asked for."""
    from metasched.laboratory.simulate import metrics
    from metasched.laboratory.simulate.settings import read_settings, read_workload
    from metasched.laboratory.simulate.settings import simulate as run

    [policy] = _policies(options)
    settings = read_settings(
        policy,
        options.settings or [],
        options.seed,
        options.clusters,
        reservations=options.reservations,
    )
    trace, cluster_specs = read_workload(options.workload, options.clusters, options.jobs, settings)
    with progress_bar("jobs ended", len(trace.entries), 1000) as progress:
        started, cpu_started = time.perf_counter(), time.process_time()
        result = run(trace, cluster_specs, settings, progress)
        wall_seconds = time.perf_counter() - started
        cpu_seconds = time.process_time() - cpu_started
    figures = metrics.summary(result, settings.policy, wall_seconds, cpu_seconds)
    if options.schedule is not None:
        _write_schedule(options.schedule, result)
    if options.over_time is not None:
        _write_over_time(options.over_time, result)
    if options.plot is not None:
        from metasched.laboratory.experiments.plots import save_schedule_plot

        save_schedule_plot(result, options.plot)
    if options.report is not None:
        from metasched.laboratory.experiments.report import render_run

        parameters = {"policy": policy, **_parameters(options), "seed": options.seed}
        page = render_run(trace.name, parameters, result, figures)
        options.report.write_text(page, encoding="utf-8")
    for cause, count in result.dropped.items():
        warn(f"{count} jobs dropped ({cause}), {options.workload}; the figures exclude them")
    for heuristic, count in result.excluded.items():
        warn(f"heuristic {heuristic} was excluded for {count} jobs, --policy; correct it")
    for name, count in result.excluded_passes.items():
        warn(f"local policy {name} failed in {count} passes, which FCFS decided; correct it")
    if options.json:
        print(json_format.dumps(figures, indent=2))
    else:
        _print_figures(figures)


def _policies(options: SimulateOptions) -> list[str]:
    from metasched.policies.local import registry

    return options.policy or [registry.DEFAULT_POLICY]


def _parameters(options: SimulateOptions) -> dict[str, object]:
    """Return the options that a report lists for every kind of run."""
    named_values = {
        "clusters": options.clusters,
        "reservations": options.reservations,
        "jobs": options.jobs,
    }
    parameters: dict[str, object] = {
        key: text for key, text in named_values.items() if text is not None
    }
    return parameters | ({"set": " ".join(options.settings)} if options.settings else {})


def _compare_runs(options: SimulateOptions) -> None:
    """Simulate several policies or seeds; print a comparison."""
    from metasched.laboratory.experiments.comparison import compare
    from metasched.laboratory.experiments.report import render_results

    if any(path is not None for path in (options.schedule, options.over_time, options.plot)):
        raise UserError(
            "several runs have no single schedule, --schedule, --over-time or --plot; "
            "use --report, or simulate a single policy with a single seed"
        )
    policies, first = _policies(options), options.seed
    seeds = range(first, first + options.runs)
    with progress_bar("runs", len(policies) * len(seeds)) as progress:
        comparisons = compare(
            options.workload,
            policies,
            options.settings or [],
            options.clusters,
            options.jobs,
            seeds,
            progress,
            options.reservations,
        )
    if options.report is not None:
        used_seeds = f"{first} to {seeds[-1]}" if options.runs > 1 else first
        parameters = _parameters(options) | {"seeds": used_seeds}
        page = render_results(Path(options.workload).name, parameters, comparisons)
        options.report.write_text(page, encoding="utf-8")
    if options.json:
        rows = [result_json("", len(seeds), result) for result in comparisons]
        omitted = ("experiment", "setting", "published", "difference_percent")
        print(
            json_format.dumps(
                [{key: value for key, value in row.items() if key not in omitted} for row in rows],
                indent=2,
            )
        )
        return
    print_table(
        ("POLICY", "FIGURE", "MEAN", f"OVER {policies[0]}", f"MINUS {policies[0]}"),
        [result_line(result, False)[1:] for result in comparisons],
    )


def _write_schedule(path: Path, schedule: Any) -> None:
    """Write each run of each job as CSV, in seconds from the origin of the trace."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(SCHEDULE_COLUMNS)
        reservations = {
            reservation.job: number
            for number, reservation in enumerate(schedule.reservations, 1)
            if reservation.granted
        }
        for placement in schedule.jobs:
            cluster = schedule.clusters[placement.cluster]
            rows.writerows(
                (
                    placement.entry.number,
                    f"{placement.job.submitted:.15g}",
                    f"{run.start:.15g}",
                    f"{run.end:.15g}",
                    placement.job.cpus,
                    cluster.name,
                    run.machine if cluster.machines else "",
                    placement.priority,
                    reservations.get(placement.job.id, ""),
                )
                for run in placement.runs
            )


def _write_over_time(path: Path, schedule: Any) -> None:
    from metasched.laboratory.simulate import metrics

    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("cluster", *metrics.UsageSample._fields))
        for cluster_index, cluster in enumerate(schedule.clusters):
            placements = [job for job in schedule.jobs if job.cluster == cluster_index]
            for seconds, *state in metrics.usage_over_time(placements):
                rows.writerow((cluster.name, f"{seconds:.15g}", *state))


def _print_figures(figures: dict[str, Any]) -> None:
    rows = []
    for name, value in figures.items():
        if name in ("clusters", "load_share", "dropped", "reservations"):
            continue
        rows.append((name, f"{value:.6g}" if isinstance(value, float) else value))
    print_table(("FIGURE", "VALUE"), rows)
    print()
    if "reservations" in figures:
        print_table(
            ("RESERVATIONS", "VALUE"),
            [
                (name, f"{value:.6g}" if isinstance(value, float) else value)
                for name, value in figures["reservations"].items()
            ],
        )
        print()
    print_table(
        ("CLUSTER", "JOBS", "SHARE", "UTILISATION", "MEAN_WAIT", "BOUNDED_SLOWDOWN"),
        [
            (
                name,
                cluster_figures["jobs"],
                f"{figures['load_share'][name]:.1%}",
                f"{cluster_figures['utilisation']:.1%}",
                f"{cluster_figures['mean_wait']:.1f}",
                f"{cluster_figures['mean_bounded_slowdown']:.2f}",
            )
            for name, cluster_figures in figures["clusters"].items()
        ],
    )
