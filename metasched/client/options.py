"""The options of `metasched submit`: a single table for command line, `#MS` and `#SBATCH` lines.

Typer uses the same table for `--help` and completion. Tools submit in loops, so this module imports
nothing slow: see `option_words`.
"""

from __future__ import annotations

from metasched.client.manager_options import DEFAULT_NICE
from metasched.client.option_words import (
    FLAG,
    OPTIONAL,
    VALUE,
    MissingValue,
    OptionError,
    UnexpectedValue,
    UnknownOption,
    is_option,
    read_options,
)
from metasched.errors import UserError, quote_for_error

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Literal

COMMAND_LINE = "metasched submit"  # location of an option that is not in a script
MAX_NAME_LENGTH = 255  # characters of the name of a job

_HELP_HINT = "see `metasched submit --help`"


class InvalidSubmission(UserError):
    """The submission is invalid. The message is a line: problem, place; remedy."""


class Option:
    """An option of `submit` or of a directive."""

    def __init__(
        self,
        option_strings: str,
        metavar: str,
        help: str,
        repeatable: bool = False,
        refusal: str = "",
        scope: Literal["job", "metasched", "call"] = "job",
        default: str = "",
    ) -> None:
        """`option_strings`: all names, separated by spaces; messages use the first.

        `metavar` is of its value, "" for a flag. `refusal` is "reason; remedy" if the option is
        known but refused. `scope`: all directives; #MS only; command line. `default` is the value
        of an option that is given without a value.
        """
        self.names = tuple(option_strings.split())
        self.dest = self.names[0][2:].replace("-", "_")  # the key of its value
        self.metavar, self.help, self.repeatable = metavar, help, repeatable
        self.refusal, self.scope = refusal, scope
        self.default = default
        self.value = OPTIONAL if default else VALUE if metavar else FLAG


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
    Option("--gres", "SPEC", "Generic resources per node: gpu:2, gpu:a100|gpu:h100, or a list."),
    Option("--exclusive", "", "Share no node with other jobs."),
    Option("--time -t", "DUR", "Time limit: 90s, 10m, 1:30:00, 2-00:00:00; minutes; 0: none."),
    Option("--signal", "[B:]SIG[@SEC]", "Signal before the time limit: USR1@60 to srun's tasks."),
    Option("--nice", "[=N]", "Lower its priority in its cluster's queue.", default=DEFAULT_NICE),
    Option("--nodelist -w", "NODES", "Only these nodes: n1, or n[1-3],m1."),
    Option("--exclude -x", "NODES", "None of these nodes."),
    Option("--begin -b", "TIME", "Start no earlier: +2h, now+1hour, 17:30, 2030-01-31T17:30."),
    Option("--deadline", "TIME", "Finish by this time; formats as --begin."),
    Option("--urgency", "0..3", "Urgency as judged by the owner [0].", scope="metasched"),
    Option("--cluster", "NAME,...", "Only these clusters.", scope="metasched"),
    Option("--account -A", "NAME", "Account to charge."),
    Option("--partition -p", "NAME", "Partition or queue; a,b: those that a cluster has."),
    Option("--qos -q", "NAME", "Quality of service."),
    Option("--constraint -C", "FEATURES", "Required node features: a, a&b, or a|b."),
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
        "Licences: matlab:2,ansys for all of these together, or matlab|octave for one of them.",
    ),
    Option("--name --job-name -J", "NAME", "Name of the job [the script's]."),
    Option("--output -o", "PATH", "Output file; %j job, %a task, %x name, %u user, %N node."),
    Option("--error -e", "PATH", "File of the error stream [the output file]."),
    Option("--open-mode", "MODE", "Output files: append or truncate [truncate]."),
    Option("--comment", "TEXT", "Comment, shown by squeue and sacct."),
    Option("--wckey", "NAME", "Slurm's key of a project."),
    Option("--mail-type", "TYPE,...", "Mail: BEGIN, END, FAIL, REQUEUE, TIME_LIMIT, ALL."),
    Option("--mail-user", "ADDRESS", "Address of these mails [your user name]."),
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


def _by_name(options: Iterable[Option]) -> dict[str, Option]:
    return {name: option for option in options for name in option.names}


_COMMAND_LINE_OPTIONS = _by_name(OPTIONS)
MS_OPTIONS = _by_name(option for option in OPTIONS if option.scope != "call")
SBATCH_OPTIONS = _by_name((*(o for o in OPTIONS if o.scope == "job"), *_SBATCH_REFUSED))


def parse_command_line(arguments: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Return the options of a command line by dest, and the script with its arguments.

    Options end at the script. Raise InvalidSubmission for an unknown option or a missing value.
    """
    values: dict[str, object] = {}
    rest = list(arguments)
    rest.reverse()
    while rest:
        argument = rest.pop()
        if argument == "--":
            break
        if not is_option(argument):
            rest.append(argument)
            break
        try:
            _read_word(argument, rest, _COMMAND_LINE_OPTIONS, values, COMMAND_LINE)
        except UnknownOption as error:
            raise unknown_option(error.name, COMMAND_LINE) from None
    rest.reverse()
    return values, rest


def parse_directive(
    options: Mapping[str, Option], arguments: Sequence[str], location: str
) -> tuple[dict[str, object], list[str]]:
    """Return the options of a directive by dest, and its unknown words.

    Raise InvalidSubmission for a missing value, or for an option that is refused by name.
    """
    values: dict[str, object] = {}
    unknown: list[str] = []
    rest = list(arguments)
    rest.reverse()
    while rest:
        argument = rest.pop()
        try:
            if not is_option(argument):
                raise UnknownOption(argument)
            _read_word(argument, rest, options, values, location)
        except UnknownOption:
            unknown.append(argument)
    return values, unknown


def _read_word(
    argument: str,
    rest: list[str],
    options: Mapping[str, Option],
    values: dict[str, object],
    location: str,
) -> None:
    """Add the options of a word to `values`; raise UnknownOption if it has an unknown name."""
    following = len(rest)
    try:
        for option, text in read_options(argument, rest, options.get):
            _refuse(option, location)
            if text is None:
                values[option.dest] = option.default or True
                continue
            if len(rest) < following:  # the next word, unless it is an option itself
                if text.partition("=")[0] in options:
                    raise MissingValue(option.names[0])
            elif argument[:2] != "--" and text[:1] == "=":
                text = text[1:]  # `-n=4`
            if option.repeatable:
                present = values.setdefault(option.dest, [])
                assert isinstance(present, list)
                present.append(text)
            else:
                values[option.dest] = text
    except UnknownOption:
        raise
    except OptionError as error:
        option = options[error.name]
        _refuse(option, location)
        problem = "expected one argument"
        if isinstance(error, UnexpectedValue):
            problem = f"ignored explicit argument {quote_for_error(error.text)}"
        name = option.names[0]
        raise InvalidSubmission(f"{name}: {problem}, {location}; {_HELP_HINT}") from None


def _refuse(option: Option, location: str) -> None:
    """Raise InvalidSubmission for an option that is known but refused."""
    if option.refusal:
        reason, _, remedy = option.refusal.partition("; ")
        raise InvalidSubmission(f"{option.names[0]} {reason}, {location}; {remedy}")


def unknown_option(argument: str, location: str) -> InvalidSubmission:
    """Return the error for an unknown option, with the closest known name."""
    from difflib import get_close_matches

    name = argument.partition("=")[0]
    option_names = list(_COMMAND_LINE_OPTIONS)
    if name in option_names:
        remedy = f"write it on the command line of `{COMMAND_LINE}`"
    else:
        suggestions = get_close_matches(name, option_names, n=1, cutoff=0.7)
        remedy = f"did you mean {suggestions[0]}?" if suggestions else _HELP_HINT
    return InvalidSubmission(f"unknown option {quote_for_error(name)}, {location}; {remedy}")
