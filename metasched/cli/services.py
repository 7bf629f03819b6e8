"""The commands `serve` and `demo`."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from metasched.config.settings import Settings

from metasched.cli.common_options import JsonOption, NearestConfigOption


def serve(
    config: NearestConfigOption = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another daemon uses the database.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check the configuration, print results, and exit.")
    ] = False,
) -> int:
    """Run the daemon until it receives SIGTERM or SIGINT; SIGHUP is `metasched reload`.

    With --check the exit code is 2 for a mistake in the files, and 1 if the database or a folder
    prevents a start. Other problems, such as a dead cluster, are printed.

    \b
    Examples:
      metasched serve
      metasched serve -c /etc/metasched/metasched.toml
      metasched serve --check
    """
    gc.disable()  # imports leave nothing to collect: a seventh of their time
    from metasched.config.reading import find_config, load_settings

    settings = load_settings(find_config(config))
    if check:
        return _check(settings)
    from metasched.api.server import serve
    from metasched.web.gate import add_pages

    gc.enable()
    return serve(settings, standby=standby, add_pages=add_pages)


def _check(settings: "Settings") -> int:
    from metasched.cli.findings import print_findings
    from metasched.config.reading import scheduled_policy_mistakes
    from metasched.daemon.doctor.checks import check_settings, prevents_start

    for mistake in scheduled_policy_mistakes(settings):
        raise mistake
    findings = check_settings(settings, before_start=True)
    print_findings([finding.as_json() for finding in findings])
    return 1 if any(map(prevents_start, findings)) else 0


def demo(
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1000, help="Jobs to run.")] = 40,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the workload.")] = 1,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write a Gantt chart.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Run a mixed workload on two local clusters and display its progress.

    \b
    Examples:
      metasched demo
      metasched demo --jobs 20 --seed 7 --json
    """
    from metasched.cli.demo import run

    return run(jobs=jobs, seed=seed, plot=plot, json=json)
