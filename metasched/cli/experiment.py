"""The command `experiment`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from metasched.cli.connect import Json
from metasched.cli.show import table
from metasched.cli.simulate import _as_json, _bar, _list, _row
from metasched.errors import UserError


def experiment(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", show_default=False, help="Which; see --list.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List what there is.")] = False,
    runs: Annotated[
        int | None, typer.Option("--runs", min=1, max=10000, help="Seeds [as many as the paper].")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="DIR", help="Draw a picture of each figure.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="OUT.html", help="Write a page with it all.")
    ] = None,
    dask: Annotated[
        str,
        typer.Option("--dask", metavar="ADDRESS", help="Run on the workers of a Dask scheduler."),
    ] = "",
    json: Json = False,
) -> None:
    """Run an experiment; print its figures beside the published ones or the baseline's.

    \b
    Examples:
      metasched experiment --list
      metasched experiment licence-ratios --runs 3
      METASCHED_TRACES=traces metasched experiment better --runs 5
      metasched experiment two-level --dask tcp://head:8786 --report two-level.html
      METASCHED_TRACES=traces metasched experiment local-periods --json --plot pictures
    """
    from metasched.experiments import catalogue as experiments
    from metasched.experiments.plots import check_folder, draw_results
    from metasched.experiments.report import check_report, report_results

    if list_them:
        _list(list(experiments.EXPERIMENTS.values()), json)
        return
    if name is None:
        raise UserError("no NAME, metasched experiment; choose one of metasched experiment --list")
    chosen = experiments.find(name)
    if plot is not None:
        check_folder(plot)
    if report is not None:
        check_report(report)
    runs = runs or chosen.runs
    with _bar("runs", runs * len(chosen.cases())) as progress:
        results = experiments.run(chosen, runs, progress, dask)
    if plot is not None:
        draw_results(chosen.name, results, plot)
    if report is not None:
        about = {"experiment": chosen.name, "source": chosen.source, "seeds": f"1 to {runs}"}
        report.write_text(report_results(chosen.about, about, results), encoding="utf-8")
    if json:
        print(json_format.dumps([_as_json(chosen.name, runs, r) for r in results], indent=2))
        return
    print(f"{chosen.about} ({chosen.source}); {runs} of {chosen.runs} runs\n")
    published = any(result.published is not None for result in results)
    beside = ("PUBLISHED", "PERCENT") if published else (f"OVER {chosen.baseline}",)
    table(
        ("SETTING", "POLICY", "FIGURE", "OURS", *beside, f"MINUS {chosen.baseline}"),
        [_row(result, published) for result in results],
    )
