"""The command that changes what jobs ask for: modify."""

import time as clock
from collections.abc import Callable
from typing import Annotated, Any

import typer

from metasched.cli.connect import Config, Json, connect, ids
from metasched.cli.jobs import InState, Jobs, User, show_changed
from metasched.errors import UserError
from metasched.units import MOST, Unreadable, parse_count, parse_duration, parse_moment, parse_names

Text = str | None


def _option(names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names.split(), metavar=metavar, help=help, show_default=False)


def modify(
    jobs: Jobs = None,
    time: Annotated[Text, _option("--time -t", "DUR", "Time limit; bare: minutes.")] = None,
    deadline: Annotated[Text, _option("--deadline", "TIME", "To be finished by.")] = None,
    begin: Annotated[Text, _option("--begin -b", "TIME", "Not before.")] = None,
    urgency: Annotated[Text, _option("--urgency", "0..3", "How urgent.")] = None,
    priority: Annotated[
        Text, _option("--priority", "1..10", "Instead of what its class and deadline give.")
    ] = None,
    name: Annotated[Text, _option("--name --job-name -J", "NAME", "Name.")] = None,
    cluster: Annotated[Text, _option("--cluster", "NAME,...", "Only these clusters.")] = None,
    account: Annotated[Text, _option("--account -A", "NAME", "Account that pays.")] = None,
    partition: Annotated[Text, _option("--partition -p", "NAME", "Partition or queue.")] = None,
    qos: Annotated[Text, _option("--qos -q", "NAME", "Quality of service.")] = None,
    constraint: Annotated[Text, _option("--constraint -C", "FEATURES", "Of the nodes.")] = None,
    user: User = None,
    state: InState = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Change what jobs ask for; `none` takes a wish away.

    A job with us is changed at once. One in a cluster's queue is taken back and sent again,
    and so loses its place there; deadline, urgency, priority and name do without that, and can
    be changed while a job runs. A job that runs keeps everything else.

    \b
    Examples:
      metasched modify 17 --time 2:00:00
      metasched modify 17 18 --deadline +3h --urgency 3
      metasched modify --user ada --state pending --cluster none --partition long
    """
    if not (jobs or user or state):
        raise UserError("nothing to modify, metasched modify; name jobs, --user or --state")
    now = clock.time()
    given: dict[str, tuple[str, Text, Callable[[str], object]]] = {
        "time_limit": ("--time", time, lambda text: parse_duration(text, bare=60)),
        "deadline": ("--deadline", deadline, lambda text: parse_moment(text, now)),
        "begin": ("--begin", begin, lambda text: parse_moment(text, now)),
        "urgency": ("--urgency", urgency, lambda text: _within(text, 0, 3)),
        "priority": ("--priority", priority, lambda text: _within(text, 1, MOST)),
        "name": ("--name", name, str),
        "clusters": ("--cluster", cluster, lambda text: list(parse_names(text))),
        "account": ("--account", account, str),
        "partition": ("--partition", partition, str),
        "qos": ("--qos", qos, str),
        "constraint": ("--constraint", constraint, str),
    }
    changes = {
        field: _value(field, option, text, parse)
        for field, (option, text, parse) in given.items()
        if text is not None
    }
    if not changes:
        raise UserError("nothing to change, metasched modify; give --time or another option")
    show_changed(connect(config).modify(changes, ids(jobs or ()), user, state), json)


def _value(field: str, option: str, text: str, parse: Callable[[str], object]) -> object:
    """What the user gave, or what takes the wish away."""
    if text == "none" and field != "name":
        return {"urgency": 0, "clusters": []}.get(field)
    try:
        return parse(text)
    except Unreadable as error:
        raise UserError(f"{error.what}, {option}; {error.mend}") from None


def _within(text: str, least: int, most: int) -> int:
    number = parse_count(text, least)
    if number > most:
        raise Unreadable(f"{number} is too much", f"write {least} to {most}")
    return number
