"""Start of a drop-in command: its options, the daemon's answers, errors, exit codes."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper

from metasched.client.address import check_daemon, find_daemon
from metasched.client.connection import ClientError, Connection, DaemonUnreachable, ResponseLost
from metasched.client.sudo import check_environment, programs
from metasched.drop_in.command_line import CommandLineError, Option, OptionTable
from metasched.errors import UserError
from metasched.paths import NEXT_CURSOR_HEADER

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

COMMANDS = (
    *("sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "seff"),
    *("sinfo", "sprio", "squeue", "srun", "sshare", "sstat"),
)
VERSION = "24.11.0"  # of Slurm, whose words and options the commands have at least
VERSION_LINE = f"slurm-metasched {VERSION}"  # tools read the second word
_WITHOUT_HINT = ("sacct", "sstat")  # their errors of usage do not name --help
_LAUNCHERS = ("salloc", "sbatch", "srun")  # they start programs of users
PAGE_SIZE = 5000  # rows that are requested at once
MAX_IDS_LENGTH = 8000  # characters of the ids that a request names
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in a shell
_FOLDER = "/metasched/drop_in/slurm/"  # of the drop-in commands of any release
BYPASS = "METASCHED_BYPASS"  # set to 1: the real command runs
_REAL = "METASCHED_REAL"  # for a real command: its name, and the process that started it


class CommandError(UserError):
    """A command that fails as the real one does: the message is its line on stderr."""

    exit_code = 1


def run(name: str) -> int:
    """Run a command with the arguments of this process. Return its exit code; never raise.

    What it prints is complete, or nothing: several tools take an empty list with exit code 0 for
    "completed".
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for names outside the encoding
    if name not in COMMANDS:
        return fail(f"{name}: error: no command of this name; call it as {', '.join(COMMANDS)}")
    try:
        check_environment()
        _check_recursion(name)
        if os.environ.get(BYPASS) == "1":
            exec_real(name, sys.argv[1:])
        main: Callable[[Sequence[str]], int] = import_module(f"metasched.drop_in.{name}").main
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader has closed the pipe (`| head`): discard output that is flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CommandError as error:
        return fail(str(error), error.exit_code)
    except ResponseLost as error:
        return fail(f"{name}: error: the answer was lost, look with squeue (metasched: {error})")
    except DaemonUnreachable as error:
        remedy = f"{BYPASS}=1 uses the real command"
        return fail(
            f"{name}: error: Unable to contact slurm controller (metasched: {error}; {remedy})"
        )
    except UserError as error:
        return fail(f"{name}: error: {error}")
    except OSError as error:
        return fail(f"{name}: error: {error.strerror or error}, {error.filename or 'stdout'}")
    return code


def fail(message: str, exit_code: int = 1) -> int:
    """Print an error; return the exit code."""
    print(message, file=sys.stderr)
    return exit_code


def fail_for_job(id: str, problem: str) -> int:
    """Print a problem with a job, or a task of an array, as scontrol does; return 1."""
    return fail(f"{id}: {problem}" if "_" in id else f"{problem} for job {id}")


def exec_real(name: str, arguments: Sequence[str]) -> None:
    """Replace this process by the real command. CommandError if there is none on PATH."""
    exec_program(real_path(name), arguments, os.environ)


def real_path(name: str) -> str:
    """Return the path of the real command for the default cluster, or for that of the job.

    Inside a job the programs of its cluster come first. CommandError if there is none on PATH.
    """
    path = find_real(name, [os.environ.get("METASCHED_SLURM_BIN", ""), *search_path()])
    if path is None:
        raise CommandError(f"{name}: error: no real {name} on PATH")
    return path


def search_path() -> list[str]:
    """Return the folders of PATH."""
    return os.environ.get("PATH", os.defpath).split(os.pathsep)


def find_real(name: str, folders: Sequence[str]) -> str | None:
    """Return the absolute path of the real command; None if no folder has it.

    A drop-in command of any release is no real one. Under sudo nor is one that others may change.
    """
    real = (path for path in programs(name, folders) if _FOLDER not in os.path.realpath(path))
    return next(real, None)


def exec_program(path: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Replace this process by a real command."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(path, [path, *arguments], real_environment(path, environment))


def real_environment(path: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a real command, by which `_check_recursion` recognises it."""
    return {**environment, _REAL: f"{os.path.basename(path)} {os.getpid()}"}


def _check_recursion(name: str) -> None:
    """Raise CommandError if this is the real command that a drop-in command has called.

    A script on PATH may have the name of a real command, and call the first of that name. The
    launchers pass their environment to programs that may call them again: there the process counts.
    """
    real, _, process = os.environ.get(_REAL, "").partition(" ")
    is_caller = process in (str(os.getpid()), str(os.getppid()))
    if real == name and (is_caller or name not in _LAUNCHERS):
        raise CommandError(
            f"{name}: error: the {name} that follows on PATH calls this command again; "
            "put the folder of Slurm's own commands before it"
        )


def parse_options(
    name: str, options: Mapping[str, str], arguments: Sequence[str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options of a command line, by their long names, and its other words.

    As `read_arguments`; an option without a value has the value "".
    """
    parsed, words = read_arguments(name, options, arguments)
    return [(option, value or "") for option, value in parsed], words


def read_arguments(
    name: str, options: Mapping[str, str], arguments: Sequence[str]
) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Return the options of a command line, None without a value, and its other words.

    `options` gives the short name of each long one, which ends in "=" if it has a value, in "[=]"
    if it may have one; a short name may be empty. As in the real commands, a long option may be
    shortened, and options may follow other words. CommandError for an unknown option.
    """
    table = OptionTable(Option.parse(long, short) for long, short in options.items())
    try:
        return table.read(arguments, permutes="POSIXLY_CORRECT" not in os.environ)
    except CommandLineError as error:
        hint = "" if name in _WITHOUT_HINT else f'\nTry "{name} --help" for more information'
        raise CommandError(f"{name}: {error}{hint}") from None


def real_arguments(
    options: Mapping[str, str], parsed: Sequence[tuple[str, str]], words: Sequence[str]
) -> list[str]:
    """Return what `parse_options` has read as arguments of the real command.

    No value and no word can become another option.
    """
    arguments = [
        f"--{name}={value}" if value or f"{name}=" in options else f"{'--'[len(name) == 1 :]}{name}"
        for name, value in parsed
    ]
    return [*arguments, "--", *words] if words else arguments


def listed_tasks(connection: Connection, query: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `GET /jobs/details`, each once. Raises ClientError.

    Ids are sent in portions: the head of a request is limited. Their rows are not folded.
    """
    ids = query.get("job")
    portions = list(_portions(ids)) if isinstance(ids, list) else []
    if len(portions) < 2:
        yield from _pages(connection, query)
        return
    listed: set[tuple[int, int | None]] = set()
    for portion in portions:
        for row in _pages(connection, {**query, "job": portion, "fold": "false"}):
            if (key := (row["job"], row["task"])) not in listed:
                listed.add(key)
                yield row


def _portions(ids: Sequence[str]) -> Iterator[list[str]]:
    portion: list[str] = []
    length = 0
    for id in ids:
        if portion and length + len(id) > MAX_IDS_LENGTH:
            yield portion
            portion, length = [], 0
        portion.append(id)
        length += len(id) + len("job=&")
    yield portion


def _pages(connection: Connection, query: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    page = {**query, "limit": PAGE_SIZE}
    while True:
        rows, fields = connection.request("GET", "/jobs/details", page)
        if not isinstance(rows, list):
            raise ClientError(f"unexpected response, socket {connection.path}; see its log")
        yield from rows
        cursor = fields.get(NEXT_CURSOR_HEADER.lower())
        if cursor is None:
            return
        page["cursor"] = cursor


def connect() -> Connection:
    """Return a connection to the daemon of the environment, or the default one."""
    address = find_daemon()
    check_daemon(address)
    return Connection(address)
