"""The command `doctor`."""

import json as json_format

from metasched.cli.common_options import JsonOption, NearestConfigOption
from metasched.cli.show import print_table


def doctor(
    json: JsonOption = False,
    config: NearestConfigOption = None,
) -> int:
    """Check the installation; print each problem and its fix.

    Checks the configuration, the database and its disk, the launcher (site mode), the daemon, each
    cluster and its clock, and unknown jobs. Run it as the daemon's account, on the daemon's host.
    Exits with 1 if a check fails.

    \b
    Examples:
      metasched doctor
      metasched doctor --json
    """
    from metasched.daemon.doctor import run_checks

    findings = run_checks(config)
    if json:
        print(json_format.dumps([finding.as_json() for finding in findings], indent=2))
    else:
        print_table(
            ("CHECK", "RESULT", "NOTE"),
            (
                (
                    finding.check,
                    "ok" if finding.ok else "wrong",
                    finding.text + (f"; {finding.fix}" if finding.fix else ""),
                )
                for finding in findings
            ),
        )
    return 0 if all(finding.ok for finding in findings) else 1
