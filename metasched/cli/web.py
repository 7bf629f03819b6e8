"""The command `web`."""

import json as json_format

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.show import format_time


def web(json: JsonOption = False, config: ConfigOption = None) -> None:
    """Print a link to the pages of the site. It signs you in once, within 5 minutes.

    Whoever opens it first acts as you, so send it to nobody. The session lasts 12 hours.
    `token list` shows it, and `token revoke` ends it.

    \b
    Examples:
      metasched web
      xdg-open "$(metasched web)"
      metasched web --json
    """
    import sys

    link = connect(config).create_link()
    if json:
        print(json_format.dumps(link))
        return
    print(link["url"])
    if sys.stderr.isatty():
        print(f"It is good once, until {format_time(link['expires'])}.", file=sys.stderr)
