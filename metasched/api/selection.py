"""Which jobs a request is about, and whether its sender may do that."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from metasched.api.identity import Caller
from metasched.daemon.service import Daemon
from metasched.errors import Unreadable, Wrong
from metasched.model.arrays import parse_tasks
from metasched.model.job import State

RECENT = 3600.0  # seconds for which ended jobs are listed without being asked for


@dataclass(frozen=True)
class Choice:
    """Which jobs a command is about: by id, or all open ones of a user or in a state."""

    jobs: tuple[str, ...] = ()
    user: str | None = None
    state: str | None = None
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


def chosen(daemon: Daemon, who: Caller, wish: str, choice: Choice) -> list[dict[str, Any]]:
    """The rows of the chosen tasks: by id, else open ones (to requeue: lately ended ones, too).

    An unknown id, or another's, is refused as a whole.
    """
    if not (choice.jobs or choice.user or choice.state):
        raise Wrong(422, f"nothing to {wish}; name jobs, --user or --state")
    wanted = ids(choice.jobs) if choice.jobs else None
    since: float | None = time.time() - RECENT if wish == "requeue" else math.inf
    user = choice.user
    if wanted is not None:
        who.may_touch(owners(daemon, wanted))
        since = None
    elif user is not None:
        who.may_touch([user])
    elif not who.operator:
        user = who.user
    return daemon.ledger.status(wanted, user=user, states=states(choice.state), ended_since=since)


def ids(words: Sequence[str]) -> list[tuple[int, int | None]]:
    """`17`, `17_3` and `17_[3-4]` as (17, None), (17, 3) and (17, 3), (17, 4)."""
    found: list[tuple[int, int | None]] = []
    for word in words:
        try:
            job, indices = parse_tasks(word)
        except Unreadable as error:
            raise Wrong(422, str(error)) from None
        found += [(job, None)] if indices is None else [(job, index) for index in indices]
    return found


def owners(daemon: Daemon, wanted: Sequence[tuple[int, int | None]]) -> set[str]:
    """Whose the jobs are. Wrong if one was never stored."""
    if missing := daemon.ledger.unknown(wanted):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise Wrong(404, f"no job {', '.join(missing[:3])}{more}; see `metasched status --all`")
    return daemon.ledger.owners(id for id, _ in wanted)


def known(daemon: Daemon, who: Caller, word: str) -> tuple[int, int | None]:
    """The job that a word names, if the caller may look into it."""
    wanted = ids([word])
    if len(wanted) > 1:
        raise Wrong(422, f"{word} are several tasks; name one, as {wanted[0][0]}_{wanted[0][1]}")
    who.may_touch(owners(daemon, wanted))
    return wanted[0]


def states(word: str | None) -> list[str]:
    if word is None:
        return []
    for state in word.split(","):
        if state not in set(State):
            raise Wrong(422, f"unknown state {state!r}; there are {', '.join(State)}")
    return word.split(",")


def answers(
    daemon: Daemon, rows: Sequence[dict[str, Any]], notes: Sequence[str]
) -> list[dict[str, Any]]:
    """What each task was and is, with a note."""
    after = {
        (r["job"], r["task_index"]): r["state"]
        for r in daemon.ledger.status([(row["job"], None) for row in rows])
    }
    return [
        {
            "job": row["job"],
            "task": row["task_index"] if row["array"] else None,
            "was": row["state"],
            "state": after[row["job"], row["task_index"]],
            "note": note,
        }
        for row, note in zip(rows, notes, strict=True)
    ]
