"""The options of `metasched submit`, once: for the command line, `#MS` and `#SBATCH` lines.

argparse reads them all: it starts in a tenth of Typer's time, and a script's own arguments and
unknown `#SBATCH` options need its `parse_known_args`. Typer gets the same table for `--help`
and completion.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from metasched.errors import UserError
from metasched.units import quote_for_error

COMMAND_LINE = "metasched submit"  # where an option stands if not in a script


_HELP_HINT = "see `metasched submit --help`"


class InvalidSubmission(UserError):
    """A submission that makes no sense, in one line: what, where; what to do."""


@dataclass(frozen=True)
class Option:
    """One option: its names (the first is the one in messages), its value, its help.

    A flag has no `metavar`. `many` may be given again and again. `refused` tells why an option is
    known but not taken, and what to do instead. `scope` is "job" (in every directive), "ours"
    (in `#MS` lines, not in `#SBATCH`) or "call" (on the command line only).
    """

    option_strings: str
    metavar: str
    help: str
    repeatable: bool = False
    refusal: str = ""
    scope: str = "job"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.option_strings.split())

    @property
    def dest(self) -> str:
        """Under which name its value is found."""
        return self.names[0].removeprefix("--").replace("-", "_")


OPTIONS = (
    Option("--ntasks -n", "N", "Tasks of the job [1]."),
    Option("--cpus-per-task -c", "N", "Processors of each task [1]."),
    Option("--nodes -N", "N", "Nodes to spread the tasks over; alone it means a task on each."),
    Option("--ntasks-per-node", "N", "Tasks on each node."),
    Option("--mem", "SIZE", "Memory per node: 4G, 500M; a bare number is MiB."),
    Option("--mem-per-cpu", "SIZE", "Memory per processor."),
    Option("--gpus -G", "[TYPE:]N", "GPUs of the job, on one node unless --nodes says more."),
    Option("--gpus-per-node", "[TYPE:]N", "GPUs on each node."),
    Option("--gpus-per-task", "[TYPE:]N", "GPUs of each task."),
    Option("--gres", "SPEC", "Generic resources per node: gpu:2, gpu:a100:2, or a comma list."),
    Option("--exclusive", "", "Share no node with other jobs."),
    Option("--time -t", "DUR", "Time limit: 90s, 10m, 1:30:00, 2-00:00:00; bare: minutes."),
    Option("--begin -b", "TIME", "Not before: +2h, now+1hour, 17:30, 2030-01-31T17:30."),
    Option("--deadline", "TIME", "To be finished by: as --begin."),
    Option("--urgency", "0..3", "How urgent its owner calls it [0].", scope="ours"),
    Option("--cluster", "NAME,...", "Only these clusters.", scope="ours"),
    Option("--account -A", "NAME", "Account that pays."),
    Option("--partition -p", "NAME", "Partition or queue."),
    Option("--qos -q", "NAME", "Quality of service."),
    Option("--constraint -C", "FEATURES", "Features that the nodes must have."),
    Option(
        "--native",
        "CLUSTER:'ARGS'",
        "Options for one cluster, passed on as written; may be repeated.",
        repeatable=True,
        scope="ours",
    ),
    Option(
        "--licence --license --licenses -L",
        "NAME[:N],...",
        "Licences: matlab, matlab:2, or a comma list; the job gets all of them or waits.",
    ),
    Option("--name --job-name -J", "NAME", "Name of the job [the script's]."),
    Option("--output -o", "PATH", "Output file; %j job, %a task, %x name, %u user, %N node."),
    Option("--error -e", "PATH", "File of the error stream [the output file]."),
    Option("--chdir -D", "DIR", "Directory to run in [the present one]."),
    Option("--export", "LIST", "Environment: ALL, NONE, or NAME,NAME=value [ALL]."),
    Option("--requeue", "", "May be started again by its cluster if a node fails."),
    Option("--no-requeue", "", "Never started twice: the default."),
    Option("--hold -H", "", "Wait until released."),
    Option("--wrap", "CMD", "Run this shell command instead of a script.", scope="call"),
    Option("--wait -W", "", "Wait for the end; exit with the job's code.", scope="call"),
    Option("--dry-run", "", "Say what would happen and store nothing.", scope="call"),
    Option("--strict", "", "Refuse what is otherwise a warning.", scope="call"),
    Option("--parsable", "", "Print the bare id.", scope="call"),
    Option("--json", "", "Print JSON.", scope="call"),
    Option("--help -h", "", "Show this help.", scope="call"),
    Option("--config", "FILE", "Configuration that names the daemon.", scope="call"),
    Option(
        "--array -a", "RANGE", "A task for each index: 1-100, 1,3,5-9:2; 1-100%10: 10 at a time."
    ),
    Option(
        "--dependency -d", "LIST", "Start after others: afterok:12:13,afterany:14_3, singleton."
    ),
    Option("--kill-on-invalid-dep", "yes|no", "Cancel it if that can never come [no]."),
    Option("--reservation", "ID", "Run in this reservation, within its window.", scope="ours"),
)

# sbatch's own that would change what runs, and what to write instead.
_SBATCH_REFUSED = (
    Option(
        "--reservation",
        "x",
        "",
        refusal="is not taken from there; write #MS --reservation ID, or name it by --native",
    ),
    Option(
        "--wait -W",
        "",
        "",
        refusal="is not taken from a script; write --wait on the command line of metasched submit",
    ),
    Option(
        "--input -i",
        "x",
        "",
        refusal="is not taken from a script; redirect the input in the script",
    ),
    Option(
        "--test-only",
        "",
        "",
        refusal="is not taken from a script; write --dry-run on the command line",
    ),
    Option("--bb", "x", "", refusal="is not taken from a script; use --native CLUSTER:'--bb=...'"),
    Option(
        "--bbf", "x", "", refusal="is not taken from a script; use --native CLUSTER:'--bbf=...'"
    ),
    Option(
        "--container",
        "x",
        "",
        refusal="is not taken from a script; start the container in the script",
    ),
    Option(
        "--export-file",
        "x",
        "",
        refusal="is not taken from a script; set the variables in the script",
    ),
    Option(
        "--wrap", "x", "", refusal="is not taken from a script; write the command into the script"
    ),
    Option("--uid", "x", "", refusal="is not taken from a script; submit as that user"),
    Option("--gid", "x", "", refusal="is not taken from a script; submit as that group"),
)

MS_OPTIONS = tuple(o for o in OPTIONS if o.scope != "call")
SBATCH_OPTIONS = (*(o for o in OPTIONS if o.scope == "job"), *_SBATCH_REFUSED)


def parse_command_line(arguments: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """The options of a command line by `dest`, and the script with its arguments.

    Options end at the script. BadInput for an unknown one, a missing value, or one that is not
    built yet.
    """
    parser = _build_parser(OPTIONS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    values, unknown = _parse(parser, OPTIONS, arguments, COMMAND_LINE)
    if unknown:
        raise unknown_option(unknown[0], COMMAND_LINE)
    command = values.pop("command", [])
    assert isinstance(command, list)
    return values, command[1:] if command[:1] == ["--"] else command


def parse_directive(
    options: Sequence[Option], arguments: Sequence[str], location: str
) -> tuple[dict[str, object], list[str]]:
    """The options of a directive by `dest`, and the words that are no known ones.

    BadInput for a missing value, or an option that is refused by name.
    """
    return _parse(_build_parser(options), options, arguments, location)


def _build_parser(options: Sequence[Option]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
        # A width of its own: else every option asks for the size of the terminal.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100),
    )
    for option in options:
        action = "append" if option.repeatable else "store" if option.metavar else "store_true"
        parser.add_argument(*option.names, dest=option.dest, action=action)
    return parser


def _parse(
    parser: argparse.ArgumentParser,
    options: Sequence[Option],
    arguments: Sequence[str],
    location: str,
) -> tuple[dict[str, object], list[str]]:
    try:
        namespace, unparsed = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        name = (error.argument_name or "").partition("/")[0]
        raise InvalidSubmission(f"{name}: {error.message}, {location}; {_HELP_HINT}") from None
    values = vars(namespace)
    for option in options:
        if option.refusal and option.dest in values:
            reason, _, remedy = option.refusal.partition("; ")
            suffix = "" if location == COMMAND_LINE else f", {location}"
            raise InvalidSubmission(f"{option.names[0]} {reason}{suffix}; {remedy}")
    return values, unparsed


def unknown_option(argument: str, location: str) -> InvalidSubmission:
    """The error about a word that is no option there."""
    from difflib import get_close_matches

    name = argument.partition("=")[0]
    option_names = [option_name for option in OPTIONS for option_name in option.names]
    if name in option_names:
        remedy = f"write it on the command line of `{COMMAND_LINE}`"
    else:
        suggestions = get_close_matches(name, option_names, n=1, cutoff=0.7)
        remedy = f"did you mean {suggestions[0]}?" if suggestions else _HELP_HINT
    return InvalidSubmission(f"unknown option {quote_for_error(name)}, {location}; {remedy}")
