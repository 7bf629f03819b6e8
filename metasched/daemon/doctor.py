"""What is wrong, on one page: configuration, database, daemon, clusters, clocks, what is lost."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.launcher_client import Launcher
from metasched.adapters.registry import adapter_class
from metasched.client.client import Client
from metasched.config.reading import find, load
from metasched.config.settings import ClusterSettings, Settings
from metasched.core.transitions import Event
from metasched.db.schema import attempt, change
from metasched.db.sqlite import NETWORK_FILESYSTEMS, Sqlite, filesystem
from metasched.db.store import Database, words
from metasched.errors import UserError

ROOM = 256 * 1024 * 1024  # bytes that must be free beside the database
SKEW = 2.0  # seconds by which clocks may differ; managers tell whole seconds
LATELY = 10_000  # changes that are looked at for the clocks
DYING = 3  # deaths of a worker in a row that are worth a word
NAMED = 5  # unknown jobs that are named one by one


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `mend` says what to do if it is not `ok`."""

    check: str
    ok: bool
    text: str
    mend: str = ""


def examine(config: Path | None) -> list[Finding]:
    """Look at everything that can be looked at; what cannot is itself a finding."""
    try:
        settings = load(find(config))
    except UserError as error:
        return [_wrong("configuration", error)]
    origin = settings.origin or "none: the defaults"
    return [
        Finding("configuration", True, f"{origin}, {len(settings.clusters)} clusters"),
        *_database(settings.database),
        *_launcher(settings.launcher),
        *_mail_program(settings.mail_program),
        *_daemon(settings),
        *(finding for cluster in settings.clusters for finding in _manager(cluster)),
    ]


def _wrong(check: str, error: UserError) -> Finding:
    """A finding of one of our own errors: what, where; what to do."""
    text, _, mend = str(error).rpartition("; ")
    return Finding(check, False, text or mend, mend if text else "")


def _disk(folder: Path) -> Iterator[Finding]:
    if not folder.is_dir():
        yield Finding("filesystem", False, f"no folder {folder}", "start the daemon once")
        return
    kind, free = filesystem(folder.resolve()), shutil.disk_usage(folder).free
    told = f"{folder} is on {kind or 'an unknown filesystem'}, {free >> 20} MiB free"
    if kind in NETWORK_FILESYSTEMS:
        yield Finding("filesystem", False, told, "move the database to a local disk")
    else:
        mend = "" if free >= ROOM else "make room, or `metasched db prune`"
        yield Finding("filesystem", free >= ROOM, told, mend)


def _database(database: Database) -> Iterator[Finding]:
    if isinstance(database, Sqlite):
        yield from _disk(database.path.parent)
    try:
        engine = database.open_existing()
    except UserError as error:
        yield _wrong("database", error)
        return
    try:
        with engine.connect() as connection:
            weak, bytes = database.weakness(connection), database.size(connection)
            last = select(func.max(change.c.id)).scalar_subquery()
            clocks = connection.execute(
                select(
                    attempt.c.cluster,
                    func.max(attempt.c.sent - attempt.c.started),
                    func.max(attempt.c.started - change.c.time),
                )
                .join(
                    change,
                    (change.c.job == attempt.c.job)
                    & (change.c.task_index == attempt.c.task_index)
                    & (change.c.attempt == attempt.c.number),
                )
                .where(change.c.id > last - LATELY, change.c.what == Event.START)
                .group_by(attempt.c.cluster)
            ).all()
    except DBAPIError as error:
        yield Finding("database", False, f"{database}: {words(error)}", "restore a backup")
        return
    finally:
        engine.dispose()
    told = f"{database}, {bytes >> 10} KiB"
    if weak is None:
        yield Finding("database", True, told)
    else:
        yield Finding("database", False, f"{told}: {weak[0]}", weak[1])
    for name, behind, ahead in clocks:
        yield _clock(name, behind, ahead)


def _clock(name: str, behind: float | None, ahead: float | None) -> Finding:
    """Jobs cannot begin before they were sent, nor after they were seen running."""
    for seconds, word in ((behind or 0.0, "behind"), (ahead or 0.0, "ahead of")):
        if seconds > SKEW:
            told = f"its clock is at least {seconds:.0f} s {word} this host's, by its jobs' starts"
            return Finding(f"clock of {name}", False, told, "set both by NTP")
    return Finding(f"clock of {name}", True, f"within {SKEW:g} s of this host's")


def _launcher(path: Path | None) -> Iterator[Finding]:
    if path is None:
        return
    try:
        Launcher(path, "").enter(pwd.getpwuid(os.geteuid()).pw_name, "/")
    except Refused:
        pass  # it answers: the daemon's account may have no jobs
    except Unreachable as error:
        mend = "run this as the daemon's account; look at the log of metasched-launcher"
        yield Finding("launcher", False, error.reason, mend)
        return
    yield Finding("launcher", True, f"answers at {path}")


def _mail_program(path: Path | None) -> Iterator[Finding]:
    if path is not None and not os.access(path, os.X_OK):
        mend = "install it, or name another as mail_program in [daemon]"
        yield Finding("mail program", False, f"no program {path}", mend)


def _daemon(settings: Settings) -> Iterator[Finding]:
    client = Client(settings.socket)
    try:
        health, clusters = client.health(), client.clusters()
        servers, licences = client.licence_servers(), client.licences()
        unknown, reserved = client.jobs(state="unknown"), client.reservations()
    except UserError as error:
        yield _wrong("daemon", error)
        return
    ours, theirs = version("metasched"), health.get("version")
    told = f"version {theirs} since {health.get('started')}"
    if ours == theirs:
        yield Finding("daemon", True, told)
    else:
        mend = "restart the daemon, or use its own commands"
        yield Finding("daemon", False, f"{told}, this command is {ours}", mend)
    if trouble := health.get("mail"):
        mend = "run it by hand as the daemon's account; its own words are in the daemon's log"
        yield Finding("mail", False, f"an owner was not told: {trouble}", mend)
    for row in clusters:
        yield _cluster(row)
    for row in servers:
        yield _licence_server(row)
    for row in licences:
        yield from _drift(row)
    names = {row["cluster"] for row in clusters}
    for row in reserved:
        if row["closed"] is None and row["cluster"] not in names:
            yield _homeless(row)
    down = {row["cluster"] for row in clusters if row["state"].startswith("down")}
    for job in unknown[:NAMED]:
        yield _unknown(job, str(health.get("instance")), down)
    if len(unknown) > NAMED:
        more = f"{len(unknown) - NAMED} more"
        yield Finding("unknown jobs", False, more, "see `metasched status --state unknown`")


def _cluster(row: dict[str, Any]) -> Finding:
    check, worker, breaker = f"cluster {row['cluster']}", row["worker"], row["breaker"]
    if row["state"].startswith("down"):
        told = f"{row['state']}, since {breaker['since']}, next try {breaker['next_try']}"
        return Finding(check, False, told, "ask its manager on this host by its own commands")
    if worker["failures"] >= DYING:
        mend = "see the daemon's log; check the cluster's `python` and `library`"
        return Finding(check, False, worker["words"], mend)
    return Finding(check, True, row["state"])


def _manager(settings: ClusterSettings) -> Iterator[Finding]:
    """What the manager's own configuration has against ours, if it answers."""
    kind = adapter_class(settings.cluster.adapter)
    try:
        doubts = kind.doubts(kind.Options(**settings.options))
    except Unreachable:
        return  # if that is no matter of a moment the daemon says so
    for text, mend in doubts:
        yield Finding(f"manager of {settings.cluster.name}", False, text, mend)


def _licence_server(row: dict[str, Any]) -> Finding:
    check, breaker = f"licence server {row['server']}", row["breaker"]
    if breaker["failures"]:
        told = f"{breaker['words']}, since {breaker['since']}, next try {breaker['next_try']}"
        return Finding(check, False, told, f"try `metasched licence probe {row['server']}`")
    if row["lacking"]:
        told = "; ".join(f"does not tell of {name}: {why}" for name, why in row["lacking"].items())
        return Finding(check, False, told, "see `features`, or the server's own log")
    if not row["licences"]:
        return Finding(check, True, "counts no licence of the configuration")
    return Finding(check, True, f"answered at {row['observed'] or 'no time yet'}")


def _drift(row: dict[str, Any]) -> Iterator[Finding]:
    """Where a manager's own counter of a licence says something else than the ledger."""
    name = row["licence"]
    for own in row["managers"]:
        check = f"licence {name} on {own['cluster']}"
        if own["others"]:
            yield Finding(check, True, f"{own['others']} are taken there past us")
        if row["total"] is not None and own["total"] != row["total"]:
            yield Finding(check, True, f"it gives out {own['total']}, there are {row['total']}")


def _homeless(row: dict[str, Any]) -> Finding:
    """An open reservation whose cluster the daemon does not know."""
    id, cluster = row["reservation"], row["cluster"]
    told = f"of {row['user']}, {row['state']} from {row['start']}: cluster {cluster}"
    mend = (
        f"put {cluster} back into the configuration and restart the daemon, "
        f"or `metasched reservation cancel {id}`"
    )
    return Finding(f"reservation {id}", False, f"{told} is not configured", mend)


def _unknown(row: dict[str, Any], instance: str, down: set[str]) -> Finding:
    id = row["job"] if row["task"] is None else f"{row['job']}_{row['task']}"
    told = f"unknown on {row['cluster']} (there {row['native_id'] or 'without an id'})"
    if row["cluster"] in down:
        mend = f"nothing: {row['cluster']} will tell when it answers"
    else:
        mend = (
            f"look for ms-{instance}-{row['job']}-* in the records of {row['cluster']}, "
            f"then `metasched resolve {id} lost` or `ran`"
        )
    return Finding(f"job {id}", False, told, mend)
