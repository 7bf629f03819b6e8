"""The command `modify`."""

import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.job_commands import print_changes
from metasched.cli.job_ids import check_job_ids
from metasched.cli.jobs import JobsArgument, StateOption, UserOption
from metasched.cli.option_class import takes_options
from metasched.errors import UserError
from metasched.model.units import (
    MAX_NUMBER,
    ParseError,
    parse_count,
    parse_duration,
    parse_moment,
    parse_names,
)

OptionalText = str | None


def _option(names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names.split(), metavar=metavar, help=help, show_default=False)


@dataclass(frozen=True, kw_only=True)
class ModifyOptions:
    """Options of `metasched modify`, as written."""

    jobs: JobsArgument = None
    time_limit: Annotated[
        OptionalText, _option("--time -t", "DUR", "Time limit; bare: minutes.")
    ] = None
    deadline: Annotated[OptionalText, _option("--deadline", "TIME", "Finish by this time.")] = None
    begin: Annotated[OptionalText, _option("--begin -b", "TIME", "Start no earlier.")] = None
    urgency: Annotated[
        OptionalText, _option("--urgency", "0..3", "Urgency as judged by the owner.")
    ] = None
    priority: Annotated[
        OptionalText, _option("--priority", "1..10", "Fixed priority [operators only].")
    ] = None
    name: Annotated[OptionalText, _option("--name --job-name -J", "NAME", "Name of the job.")] = (
        None
    )
    cluster: Annotated[OptionalText, _option("--cluster", "NAME,...", "Only these clusters.")] = (
        None
    )
    account: Annotated[OptionalText, _option("--account -A", "NAME", "Account to charge.")] = None
    partition: Annotated[OptionalText, _option("--partition -p", "NAME", "Partition or queue.")] = (
        None
    )
    qos: Annotated[OptionalText, _option("--qos -q", "NAME", "Quality of service.")] = None
    constraint: Annotated[
        OptionalText, _option("--constraint -C", "FEATURES", "Required node features.")
    ] = None
    user: UserOption = None
    state: StateOption = None
    json: JsonOption = False
    config: ConfigOption = None


@takes_options(ModifyOptions)
def modify(options: ModifyOptions) -> None:
    """Modify jobs; the value `none` removes an attribute.

    A job queued in metasched is modified at once. A job pending on a cluster is withdrawn and
    dispatched again, and so loses its place in the queue. Deadline, urgency, priority and name need
    no new dispatch. They can be changed while a job runs; other attributes cannot.

    \b
    Examples:
      metasched modify 17 --time 2:00:00
      metasched modify 17 18 --deadline +3h --urgency 3
      metasched modify --user ada --state pending --cluster none --partition long
    """
    if not (options.jobs or options.user or options.state):
        raise UserError("nothing to modify, metasched modify; name jobs, --user or --state")
    now = clock.time()
    inputs: dict[str, tuple[str, OptionalText, Callable[[str], object]]] = {
        "time_limit": (
            "--time",
            options.time_limit,
            lambda text: parse_duration(text, bare_unit=60),
        ),
        "deadline": ("--deadline", options.deadline, lambda text: parse_moment(text, now)),
        "begin": ("--begin", options.begin, lambda text: parse_moment(text, now)),
        "urgency": ("--urgency", options.urgency, lambda text: _parse_within(text, 0, 3)),
        "priority": (
            "--priority",
            options.priority,
            lambda text: _parse_within(text, 1, MAX_NUMBER),
        ),
        "name": ("--name", options.name, str),
        "clusters": ("--cluster", options.cluster, lambda text: list(parse_names(text))),
        "account": ("--account", options.account, str),
        "partition": ("--partition", options.partition, str),
        "qos": ("--qos", options.qos, str),
        "constraint": ("--constraint", options.constraint, str),
    }
    changes = {
        field: _parse_value(field, option, text, parse)
        for field, (option, text, parse) in inputs.items()
        if text is not None
    }
    if not changes:
        raise UserError("nothing to change, metasched modify; give --time or another option")
    client, jobs = connect(options.config), check_job_ids(options.jobs or ())
    changed = client.modify_folded(changes, jobs, options.user, options.state)
    print_changes(changed, options.json)


def _parse_value(field: str, option: str, text: str, parse: Callable[[str], object]) -> object:
    """Return the parsed value, or the value that removes the attribute."""
    if text == "none" and field != "name":
        return {"urgency": 0, "clusters": []}.get(field)
    try:
        return parse(text)
    except ParseError as error:
        raise UserError(f"{error.problem}, {option}; {error.fix}") from None


def _parse_within(text: str, minimum: int, maximum: int) -> int:
    count = parse_count(text, minimum)
    if count > maximum:
        raise ParseError(f"{count} is too large", f"write {minimum} to {maximum}")
    return count
