"""What the commands that talk to the daemon have in common: finding it, ids, `--json`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from metasched.client.client import Client
from metasched.errors import UserError
from metasched.model.arrays import folded, parse_tasks
from metasched.paths import daemon_socket
from metasched.units import Unreadable

LONGEST = 30  # characters of a list of tasks on a terminal

Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration that names the daemon."),
]
Nearest = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration [the nearest one]."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def filled(given: typer.CallbackParam, word: str | None) -> str | None:
    """The callback of what must not be empty: a variable of a script that is not set."""
    if word == "":
        name = given.opts[0] if given.param_type_name == "option" else given.metavar
        raise UserError(f"an empty word, {name}; leave it out, or give it a value")
    return word


def connect(config: str | None) -> Client:
    """The daemon of the configuration, else of the environment, else the nearest one."""
    return Client(daemon_socket(config))


def ids(words: Sequence[str]) -> list[str]:
    """Job ids as given. UserError for a word that is none."""
    for word in words:
        try:
            parse_tasks(word)
        except Unreadable as error:
            raise UserError(f"{error.what}, JOB; {error.mend}") from None
    return list(words)


def id_of(row: dict[str, object]) -> str:
    """How users write the job, or the task, of a row."""
    return str(row["job"]) if row.get("task") is None else f"{row['job']}_{row['task']}"


def folded_rows(
    rows: Sequence[dict[str, Any]], alike: Callable[[dict[str, Any]], object]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The tasks of each array that look alike, together: `17_[3-9]`, as squeue does.

    With the rows that stand behind it, of which there is at least one.
    """
    groups: dict[object, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["job"], row.get("task") is None, alike(row)), []).append(row)
    for group in groups.values():
        if len(group) == 1 or group[0].get("task") is None:
            yield id_of(group[0]), group
            continue
        tasks = folded(sorted(row["task"] for row in group))
        if sys.stdout.isatty() and "," in tasks[:LONGEST] and len(tasks) > LONGEST:
            tasks = tasks[:LONGEST].rpartition(",")[0] + ",..."
        yield f"{group[0]['job']}_[{tasks}]", group
