"""The command `doctor`."""

import json as json_format
from typing import Annotated

import typer

from metasched.cli.common_options import JsonOption, NearestConfigOption
from metasched.cli.findings import print_findings


def doctor(
    json: JsonOption = False,
    config: NearestConfigOption = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.5, max=600, metavar="SECONDS", help="Time of all checks."),
    ] = 3.5,
    probe: Annotated[
        bool, typer.Option("--probe", help="Run a small job on each cluster (site mode).")
    ] = False,
    account: Annotated[
        str | None,
        typer.Option("--account", metavar="NAME", help="Account of these jobs [that of [doctor]]."),
    ] = None,
) -> int:
    """Check the installation; print each problem and its fix.

    Reads the file as a restart would. Checks accounts, folders, the database, the launcher, mail,
    each cluster and licence server by calls of its own, and the running daemon. Run it as the
    daemon's account, on the daemon's host. Exits with 1 if there is an error; warnings and notes
    are no errors.

    With --probe a job of a minute at most runs on each cluster, as an ordinary account. It checks
    uid, groups, home and the way to the daemon, and is withdrawn also after Ctrl-C.

    \b
    Examples:
      metasched doctor
      metasched doctor --json
      metasched doctor -c new.toml --timeout 30
      metasched doctor --probe --account ada
    """
    from metasched.daemon.doctor.checks import run_checks

    findings = run_checks(config, timeout, probe, account)
    rows = [finding.as_json() for finding in findings]
    if json:
        print(json_format.dumps(rows, indent=2))
    else:
        print_findings(rows)
    return 0 if all(finding.ok for finding in findings) else 1
