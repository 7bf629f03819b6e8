"""The command for 3 a.m.: doctor."""

import json as json_format
from dataclasses import asdict

from metasched.cli.connect import Json, Nearest
from metasched.cli.show import table


def doctor(
    json: Json = False,
    config: Nearest = None,
) -> int:
    """Tell on one page what is wrong, and what to do about it.

    Looks at the configuration, the database and its disk, the launcher (site mode), the
    daemon, each cluster and its clock, and the jobs that are unknown. Run it as the daemon's
    account, on its host. Exits with 1 if something is wrong.

    \b
    Examples:
      metasched doctor
      metasched doctor --json
    """
    from metasched.daemon.doctor import examine

    findings = examine(config)
    if json:
        print(json_format.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table(
            ("CHECK", "RESULT", "NOTE"),
            (
                (f.check, "ok" if f.ok else "wrong", f.text + (f"; {f.mend}" if f.mend else ""))
                for f in findings
            ),
        )
    return 0 if all(finding.ok for finding in findings) else 1
