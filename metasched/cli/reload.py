"""The command `reload`."""

import json as json_format

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.findings import print_findings


def reload(json: JsonOption = False, config: ConfigOption = None) -> int:
    """Let the daemon take over its changed configuration and policy without a restart.

    For operators. All changes are taken over, or none: a mistake in the files refuses them, and
    so does a removed cluster that has tasks. Running jobs continue. Prints the changed keys, those
    that need a restart, and problems outside of the files. SIGHUP does the same.

    \b
    Examples:
      metasched reload
      metasched reload --json
    """
    answer = connect(config).reload()
    if json:
        print(json_format.dumps(answer, indent=2))
        return 0
    changes, restart_needed = answer["changes"], answer["restart_needed"]
    print(f"changed: {', '.join(changes)}" if changes else "nothing changed")
    if restart_needed:
        print(f"restart needed for: {', '.join(restart_needed)}")
    if answer["findings"]:
        print_findings(answer["findings"])
    return 0
