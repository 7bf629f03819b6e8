"""The options of `metasched submit`: a single table for command line, `#MS` and `#SBATCH` lines.

argparse parses them: it starts in a tenth of Typer's time, and a script's own arguments and
unknown `#SBATCH` options need its `parse_known_args`. Typer uses the same table for `--help`
and completion.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from metasched.errors import UserError
from metasched.units import quote_for_error

COMMAND_LINE = "metasched submit"  # location of an option that is not in a script
MAX_NAME_LENGTH = 255  # characters of the name of a job

_HELP_HINT = "see `metasched submit --help`"


class InvalidSubmission(UserError):
    """The submission is invalid. The message is one line: problem, place; remedy."""


@dataclass(frozen=True)
class Option:
    """An option of `submit` or of a directive."""

    option_strings: str  # all names, separated by spaces; messages use the first
    metavar: str  # of its value; "" for a flag
    help: str
    repeatable: bool = False
    refusal: str = ""  # "reason; remedy" if the option is known but refused
    scope: Literal["job", "metasched", "call"] = "job"  # all directives; #MS only; command line

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.option_strings.split())

    @property
    def dest(self) -> str:
        """The key of its value, as in argparse."""
        return self.names[0].removeprefix("--").replace("-", "_")


OPTIONS = (
    Option("--ntasks -n", "N", "Tasks of the job [1]."),
    Option("--cpus-per-task -c", "N", "Processors of each task [1]."),
    Option("--nodes -N", "N", "Nodes to spread the tasks over; alone: one task on each node."),
    Option("--ntasks-per-node", "N", "Tasks on each node."),
    Option("--mem", "SIZE", "Memory per node: 4G, 500M; a bare number is MiB."),
    Option("--mem-per-cpu", "SIZE", "Memory per processor."),
    Option("--gpus -G", "[TYPE:]N", "GPUs of the job, on one node unless --nodes says more."),
    Option("--gpus-per-node", "[TYPE:]N", "GPUs on each node."),
    Option("--gpus-per-task", "[TYPE:]N", "GPUs of each task."),
    Option("--gres", "SPEC", "Generic resources per node: gpu:2, gpu:a100:2, or a comma list."),
    Option("--exclusive", "", "Share no node with other jobs."),
    Option("--time -t", "DUR", "Time limit: 90s, 10m, 1:30:00, 2-00:00:00; bare: minutes."),
    Option("--begin -b", "TIME", "Start no earlier: +2h, now+1hour, 17:30, 2030-01-31T17:30."),
    Option("--deadline", "TIME", "Finish by this time; formats as --begin."),
    Option("--urgency", "0..3", "Urgency as judged by the owner [0].", scope="metasched"),
    Option("--cluster", "NAME,...", "Only these clusters.", scope="metasched"),
    Option("--account -A", "NAME", "Account to charge."),
    Option("--partition -p", "NAME", "Partition or queue."),
    Option("--qos -q", "NAME", "Quality of service."),
    Option("--constraint -C", "FEATURES", "Required node features."),
    Option(
        "--native",
        "CLUSTER:'ARGS'",
        "Options for one cluster, passed on as written; may be repeated.",
        repeatable=True,
        scope="metasched",
    ),
    Option(
        "--licence --license --licenses -L",
        "NAME[:N],...",
        "Licences: matlab, matlab:2, or a comma list; the job gets all of them or waits.",
    ),
    Option("--name --job-name -J", "NAME", "Name of the job [the script's]."),
    Option("--output -o", "PATH", "Output file; %j job, %a task, %x name, %u user, %N node."),
    Option("--error -e", "PATH", "File of the error stream [the output file]."),
    Option("--chdir -D", "DIR", "Working directory [the current directory]."),
    Option("--export", "LIST", "Environment: ALL, NONE, or NAME,NAME=value [ALL]."),
    Option("--requeue", "", "Allow its cluster to restart it if a node fails."),
    Option("--no-requeue", "", "Never restart it (default)."),
    Option("--hold -H", "", "Hold the job until it is released."),
    Option("--wrap", "CMD", "Run this shell command instead of a script.", scope="call"),
    Option("--wait -W", "", "Wait until the job ends; exit with its code.", scope="call"),
    Option("--dry-run", "", "Print the outcome; store nothing.", scope="call"),
    Option("--strict", "", "Treat warnings as errors.", scope="call"),
    Option("--parsable", "", "Print the bare id.", scope="call"),
    Option("--json", "", "Print JSON.", scope="call"),
    Option("--help -h", "", "Show this help.", scope="call"),
    Option("--config", "FILE", "Configuration that names the daemon.", scope="call"),
    Option(
        "--array -a", "RANGE", "One task for each index: 1-100, 1,3,5-9:2; 1-100%10: 10 at a time."
    ),
    Option(
        "--dependency -d", "LIST", "Start after other jobs: afterok:12:13,afterany:14_3, singleton."
    ),
    Option("--kill-on-invalid-dep", "yes|no", "Cancel if a dependency can never be met [no]."),
    Option("--reservation", "ID", "Run in this reservation, within its window.", scope="metasched"),
)

# sbatch options that would change the job's command or environment, refused with a remedy
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
    """Return the options of a command line by dest, and the script with its arguments.

    Options end at the script. Raise InvalidSubmission for an unknown option or a missing value.
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
    """Return the options of a directive by dest, and its unknown words.

    Raise InvalidSubmission for a missing value, or for an option that is refused by name.
    """
    return _parse(_build_parser(options), options, arguments, location)


def _build_parser(options: Sequence[Option]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
        # a fixed width: the default queries the size of the terminal for every option
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
    """Return the error for an unknown option, with the closest known name."""
    from difflib import get_close_matches

    name = argument.partition("=")[0]
    option_names = [option_name for option in OPTIONS for option_name in option.names]
    if name in option_names:
        remedy = f"write it on the command line of `{COMMAND_LINE}`"
    else:
        suggestions = get_close_matches(name, option_names, n=1, cutoff=0.7)
        remedy = f"did you mean {suggestions[0]}?" if suggestions else _HELP_HINT
    return InvalidSubmission(f"unknown option {quote_for_error(name)}, {location}; {remedy}")
