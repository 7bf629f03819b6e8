"""What the commands that talk to the daemon have in common: finding it, ids, `--json`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from metasched.client import Client
from metasched.errors import UserError
from metasched.places import daemon_socket
from metasched.units import shown

Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration that names the daemon."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def connect(config: str | None) -> Client:
    """The daemon of the configuration, else of the environment, else the nearest one."""
    return Client(daemon_socket(config))


def ids(words: Sequence[str]) -> list[str]:
    """Job ids as given. UserError for a word that is none."""
    for word in words:
        job, mark, task = word.partition("_")
        if not all(w.isascii() and w.isdecimal() for w in ((job, task) if mark else (job,))):
            raise UserError(f"{shown(word)} is no job, JOB; write 17, or 17_3 for a task")
    return list(words)


def id_of(row: dict[str, object]) -> str:
    """How users write the job, or the task, of a row."""
    return str(row["job"]) if row.get("task") is None else f"{row['job']}_{row['task']}"
