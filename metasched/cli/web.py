"""The command `web`."""

import json as json_format
import os
from typing import Annotated

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.show import format_time
from metasched.client.sudo import is_under_sudo
from metasched.errors import UserError


def web(
    open: Annotated[
        bool, typer.Option("--open", help="Open the link in a browser of this host.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Print a link to the pages of the site. It signs you in once, within 5 minutes.

    Whoever opens it first acts as you, so send it to nobody. Make it no argument of a command:
    all accounts of a host see these. `--open` hands it over by a file that only you may read.
    The session lasts 12 hours. `token list` shows it, and `token revoke` ends it.

    \b
    Examples:
      metasched web
      metasched web --open
      metasched web --json
    """
    import sys

    if open and json:
        raise UserError("--open and --json; give one of them")
    if open and is_under_sudo():
        raise UserError("no browser is started under sudo; open the link of `metasched web`")
    link = connect(config).create_link()
    if json:
        print(json_format.dumps(link))
        return
    if open:
        _open(link["url"])
        return
    print(link["url"])
    if sys.stderr.isatty():
        print(f"It is good once, until {format_time(link['expires'])}.", file=sys.stderr)


def _open(url: str) -> None:
    """Open a URL in the user's browser. No command line has it: all accounts see these."""
    import webbrowser

    page = _write_page(url)
    # a browser may read the file after its starter has ended, so the file stays
    if not webbrowser.open(f"file://{page}"):
        os.unlink(page)
        raise UserError("no browser can be started; open the link of `metasched web` in one")


def _write_page(url: str) -> str:
    """Write a page that leads to a URL, for this account alone; return its absolute path."""
    import html
    import stat
    import tempfile

    folder = os.path.abspath(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    try:
        status = os.lstat(folder)
        is_own = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700
    except OSError:
        is_own = False
    target = html.escape(url)
    try:
        file, path = tempfile.mkstemp(
            ".html", "metasched-web-", folder if is_own else tempfile.mkdtemp(prefix="metasched-")
        )
        with os.fdopen(file, "w") as page:
            page.write(
                f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">'
                f'<title>metasched</title><a href="{target}">metasched</a>\n'
            )
    except OSError as error:
        raise UserError(
            f"{error.strerror}, a temporary file; open the link of `metasched web`"
        ) from None
    return path
