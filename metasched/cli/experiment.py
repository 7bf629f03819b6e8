"""The command `experiment`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer

from metasched.cli.common_options import JsonOption
from metasched.cli.progress import progress_bar
from metasched.cli.results import result_json, result_line
from metasched.cli.show import print_table
from metasched.errors import UserError


def experiment(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", show_default=False, help="Name of the experiment; see --list."
        ),
    ] = None,
    list_experiments: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    runs: Annotated[
        int | None,
        typer.Option("--runs", min=1, max=10000, help="Number of seeds [as in the paper]."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="DIR", help="Draw a chart of each figure.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="OUT.html", help="Write a report with all results."),
    ] = None,
    dask: Annotated[
        str,
        typer.Option("--dask", metavar="ADDRESS", help="Run on the workers of a Dask scheduler."),
    ] = "",
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Store the results for --tables.")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables",
            metavar="DIR",
            help="Print stored results in Markdown, with --plot draw their trade-offs; run none.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FILE",
            help="Keep finished runs in FILE; repeat none of those.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Take this trace (estimates only)."),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option("--cpus", metavar="N", help="Processors of its machine.")
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option("--federation", metavar="FILE", help="Take these clusters (better only)."),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option("--row", metavar="SETTING", help="Run only these settings; repeatable."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run an experiment; compare its figures with published figures or with a baseline.

    \b
    Examples:
      metasched experiment --list
      metasched experiment licence-ratios --runs 3
      METASCHED_TRACES=traces metasched experiment better --runs 5
      metasched experiment grid-plans-large --runs 3 --resume runs.jsonl
      metasched experiment two-level --dask tcp://head:8786 --report two-level.html
      METASCHED_TRACES=traces metasched experiment local-periods --json --plot pictures
      metasched experiment estimates --trace site.swf --cpus 512
      metasched experiment better --federation site.toml --row "site 0.85"
      metasched experiment --tables docs/experiments/results
    """
    from metasched.laboratory.experiments import catalogue
    from metasched.laboratory.experiments.formulas import describe_formulas
    from metasched.laboratory.experiments.plots import check_folder, save_curves, save_result_plots
    from metasched.laboratory.experiments.report import check_report, render_results
    from metasched.laboratory.experiments.tables import load_results, render_tables, save_results
    from metasched.laboratory.experiments.trade_offs import save_trade_offs

    if list_experiments:
        _print_experiments(list(catalogue.EXPERIMENTS.values()), json)
        return
    if tables is not None:
        experiments = catalogue.EXPERIMENTS
        stored = load_results(tables, list(experiments))
        if plot is not None:
            check_folder(plot)
            save_trade_offs(stored, plot)
        formulas = {name: describe_formulas(each.cases()) for name, each in experiments.items()}
        print(render_tables(stored, formulas), end="")
        return
    if name is None:
        raise UserError("no NAME, metasched experiment; see metasched experiment --list")
    selected = catalogue.find_experiment(name)
    source = _trace_file(trace, cpus, save, resume) or _federation_file(federation, save, resume)
    if row and save is not None:
        raise UserError("results of some settings only are not kept, --save; use --json")
    if plot is not None:
        check_folder(plot)
    if report is not None:
        check_report(report)
    if save is not None and not save.is_dir():
        raise UserError(f"{save} is not a folder, --save; create it first")
    runs = runs or selected.runs
    count = sum(not row or case.row in row for case in selected.select_cases(source))
    with progress_bar("runs", runs * count) as progress:
        reports = catalogue.run_experiment(
            selected, runs, progress, dask, resume, source, tuple(row or ())
        )
    if save is not None:
        save_results(save, selected, runs, reports)
    if plot is not None:
        save_result_plots(selected.name, reports, plot, selected.quantity)
        if selected.curves is not None:
            save_curves(selected.name, selected.curves(1), plot)
    if report is not None:
        parameters = {
            "experiment": selected.name,
            "source": selected.source,
            "seeds": f"1 to {runs}",
        }
        page = render_results(selected.about, parameters, reports, selected.quantity)
        report.write_text(page, encoding="utf-8")
    if json:
        print(
            json_format.dumps(
                [result_json(selected.name, runs, result) for result in reports], indent=2
            )
        )
        return
    print(f"{selected.about} ({selected.source}); {runs} of {selected.runs} runs\n")
    for formula in describe_formulas(selected.select_cases(source)):
        print(f"{formula}\n")
    published = any(result.published is not None for result in reports)
    reference_columns = ("PUBLISHED", "PERCENT") if published else (f"OVER {selected.baseline}",)
    print_table(
        ("SETTING", "POLICY", "FIGURE", "OURS", *reference_columns, f"MINUS {selected.baseline}"),
        [result_line(result, published) for result in reports],
    )


def _trace_file(
    trace: Path | None, cpus: int | None, save: Path | None, resume: Path | None
) -> Any:
    """Return the `TraceFile` of the options, or None. UserError if they do not fit together."""
    from metasched.laboratory.experiments.harness import TraceFile

    if trace is None and cpus is None:
        return None
    if trace is None or cpus is None:
        present, missing = ("--cpus", "--trace") if trace is None else ("--trace", "--cpus")
        raise UserError(f"{present} without {missing}; give both")
    if save is not None or resume is not None:
        option = "--save" if save is not None else "--resume"
        raise UserError(f"results of another trace are not kept, {option}; use --json")
    if not trace.is_file():
        raise UserError(f"no file {trace}, --trace; give a trace in the Standard Workload Format")
    return TraceFile(trace.resolve(), cpus)


def _federation_file(
    federation: Path | None, save: Path | None, resume: Path | None
) -> Path | None:
    if federation is not None and (save is not None or resume is not None):
        option = "--save" if save is not None else "--resume"
        raise UserError(f"results of another federation are not kept, {option}; use --json")
    return None if federation is None else federation.resolve()


def _print_experiments(experiments: list[Any], json: bool) -> None:
    if json:
        print(
            json_format.dumps(
                [
                    {
                        "experiment": experiment.name,
                        "about": experiment.about,
                        "source": experiment.source,
                        "runs": experiment.runs,
                    }
                    for experiment in experiments
                ],
                indent=2,
            )
        )
        return
    print_table(
        ("EXPERIMENT", "RUNS", "ABOUT", "SOURCE"),
        [
            (experiment.name, experiment.runs, experiment.about, experiment.source)
            for experiment in experiments
        ],
    )
