"""The command line. `main` is the entry point; each other module holds a group of commands.

`submit` and plain command lines of `quick_start` bypass Typer, whose import would take most of
their run time.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from metasched.cli.messages import fail
from metasched.errors import UserError

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in a shell


def main() -> int:
    """Run the command of this process's arguments. Return its exit code; never raise."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for names outside the encoding
    try:
        code = _run_command(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader has closed the pipe (`| head`): discard output that is flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UserError as error:
        return fail(str(error), error.exit_code)
    except OSError as error:
        location = error.filename or "standard output"
        return fail(f"{error.strerror or error}, {location}; fix that and try again", 1)
    return code


def _run_command(arguments: Sequence[str]) -> int:
    if "_METASCHED_COMPLETE" not in os.environ:
        code = _run_without_typer(arguments)
        if code is not None:
            return code
    from metasched.cli.app import run

    return run(arguments or ["--help"])


def _run_without_typer(arguments: Sequence[str]) -> int | None:
    """Run a command that does not need Typer; None: it does."""
    if arguments[:1] != ["submit"]:
        from metasched.cli.quick_start import run_plain

        return run_plain(arguments)
    from metasched.cli.submit import submit
    from metasched.client.options import parse_command_line

    options, command = parse_command_line(arguments[1:])
    return None if "help" in options else submit(options, command)
