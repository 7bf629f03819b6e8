"""Shared by commands that call the daemon: its address, job ids, common options."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from metasched.client.address import find_daemon
from metasched.client.client import Client
from metasched.errors import UserError
from metasched.model.arrays import format_indices, parse_task_selector
from metasched.units import ParseError

MAX_TASKS_WIDTH = 30  # characters for a list of tasks on a terminal

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration that names the daemon."),
]
NearestConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration [the nearest one]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def require_value(parameter: typer.CallbackParam, text: str | None) -> str | None:
    """Refuse an empty value (of an unset shell variable, say); a callback of Typer options."""
    if text == "":
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        raise UserError(f"an empty word, {name}; leave it out, or give it a value")
    return text


def connect(config: str | None) -> Client:
    """Return a client of the daemon that configuration, environment or default path name."""
    return Client(find_daemon(config))


def check_job_ids(references: Sequence[str]) -> list[str]:
    """Return the job ids unchanged. Raise UserError for an invalid id."""
    for reference in references:
        try:
            parse_task_selector(reference)
        except ParseError as error:
            raise UserError(f"{error.problem}, JOB; {error.fix}") from None
    return list(references)


def format_task_id(row: dict[str, object]) -> str:
    """Return the id of a job or task as users write it: `17` or `17_3`."""
    return str(row["job"]) if row.get("task") is None else f"{row['job']}_{row['task']}"


def fold_array_rows(
    rows: Sequence[dict[str, Any]], group_key: Callable[[dict[str, Any]], object]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Group the tasks of each array with equal `group_key`, as squeue does: `17_[3-9]`.

    Yield the label and the rows of each group.
    """
    groups: dict[object, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["job"], row.get("task") is None, group_key(row)), []).append(row)
    for group in groups.values():
        if len(group) == 1 or group[0].get("task") is None:
            yield format_task_id(group[0]), group
            continue
        tasks = format_indices(sorted(row["task"] for row in group))
        if sys.stdout.isatty() and "," in tasks[:MAX_TASKS_WIDTH] and len(tasks) > MAX_TASKS_WIDTH:
            tasks = tasks[:MAX_TASKS_WIDTH].rpartition(",")[0] + ",..."
        yield f"{group[0]['job']}_[{tasks}]", group
