"""The command line. `main` is the entry point; each other module holds a group of commands.

`submit` bypasses Typer, whose import would take most of its run time.
"""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from metasched.cli.messages import fail
from metasched.errors import UserError

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
    if arguments[:1] == ["submit"] and "_METASCHED_COMPLETE" not in os.environ:
        from metasched.cli.submit import submit
        from metasched.client.options import parse_command_line

        options, command = parse_command_line(arguments[1:])
        if "help" not in options:
            return submit(options, command)
        arguments = ["submit", "--help"]
    from metasched.cli.app import run

    return run(arguments or ["--help"])
