"""Checks the installation: configuration, database, daemon, clusters, clocks, unknown jobs."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from metasched.adapters.claims import FenceError, check_fence
from metasched.adapters.errors import Refused, SiteFault, Unreachable
from metasched.adapters.launcher_client import LauncherClient
from metasched.adapters.registry import adapter_class
from metasched.client.client import Client
from metasched.client.native_ids import first_id_problem
from metasched.config.reading import find_config, load_settings
from metasched.config.settings import ClusterSettings, Settings
from metasched.core.task_state_machine import HELD_AFTER_BACKUP
from metasched.core.transitions import TaskEvent
from metasched.db.instances import read_first_dispatches
from metasched.db.schema import attempt, change, task
from metasched.db.sqlite import NETWORK_FILESYSTEMS, Sqlite, filesystem_type
from metasched.db.store import Database, driver_message
from metasched.errors import UserError
from metasched.model.job import State
from metasched.model.tags import Instances

MIN_FREE_BYTES = 256 * 1024 * 1024  # on the filesystem of the database
MAX_CLOCK_SKEW = 2.0  # seconds; managers report whole seconds
RECENT_CHANGES = 10_000  # stored changes that are examined for clock differences
MAX_WORKER_DEATHS = 3  # in a row, from which a cluster is reported
MAX_DESCRIPTOR_USE = 0.95  # of the daemon's descriptors, from which it is reported
MAX_LISTED_JOBS = 5  # unknown jobs that are listed one by one
MAX_DELAYED = 3  # accounts whose listings waited longest


@dataclass(frozen=True)
class Diagnosis:
    """The result of a check."""

    check: str  # its subject
    ok: bool
    text: str
    fix: str = ""  # what to do, unless `ok`

    def as_json(self) -> dict[str, Any]:
        """Return a row of `doctor --json`."""
        return {"check": self.check, "ok": self.ok, "text": self.text, "mend": self.fix}


def run_checks(config: Path | None) -> list[Diagnosis]:
    """Run all checks. A check that cannot run has a result that says so."""
    try:
        settings = load_settings(find_config(config))
    except UserError as error:
        return [_failed_check("configuration", error)]
    origin = settings.config_path or "none: the defaults"
    return [
        Diagnosis("configuration", True, f"{origin}, {len(settings.clusters)} clusters"),
        *_check_database(settings.database),
        *_check_launcher(settings),
        *_check_mail_program(settings.mail_program),
        *_check_daemon(settings),
        *(result for cluster in settings.clusters for result in _check_manager(cluster, settings)),
        *(result for cluster in settings.clusters for result in _check_fence(cluster)),
    ]


def _failed_check(check: str, error: UserError) -> Diagnosis:
    """Return the result of a check that raised an error: problem, place; remedy."""
    text, _, fix = str(error).rpartition("; ")
    return Diagnosis(check, False, text or fix, fix if text else "")


def _check_disk(folder: Path) -> Iterator[Diagnosis]:
    """Check type and free space of the filesystem of a folder."""
    if not folder.is_dir():
        yield Diagnosis("filesystem", False, f"no folder {folder}", "start the daemon once")
        return
    fs_type, free = filesystem_type(folder.resolve()), shutil.disk_usage(folder).free
    message = f"{folder} is on {fs_type or 'an unknown filesystem'}, {free >> 20} MiB free"
    if fs_type in NETWORK_FILESYSTEMS:
        yield Diagnosis("filesystem", False, message, "move the database to a local disk")
    else:
        fix = "" if free >= MIN_FREE_BYTES else "make room, or `metasched db prune`"
        yield Diagnosis("filesystem", free >= MIN_FREE_BYTES, message, fix)


def _check_database(database: Database) -> Iterator[Diagnosis]:
    if isinstance(database, Sqlite):
        yield from _check_disk(database.path.parent)
    try:
        engine = database.open_existing()
    except UserError as error:
        yield _failed_check("database", error)
        return
    try:
        with engine.connect() as connection:
            weakness, size = database.quick_check(connection), database.size(connection)
            last_change = select(func.max(change.c.id)).scalar_subquery()
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
                .where(change.c.id > last_change - RECENT_CHANGES, change.c.what == TaskEvent.START)
                .group_by(attempt.c.cluster)
            ).all()
            held, names = count_held_after_backup(connection), read_first_dispatches(connection)
    except DBAPIError as error:
        message = f"{database}: {driver_message(error)}"
        yield Diagnosis("database", False, message, "restore a backup")
        return
    finally:
        engine.dispose()
    message = f"{database}, {size >> 10} KiB"
    if weakness is None:
        yield Diagnosis("database", True, message)
    else:
        yield Diagnosis("database", False, f"{message}: {weakness[0]}", weakness[1])
    if held:
        message = f"{held} tasks are held, since they may have been dispatched after the backup"
        tags = " or ".join(f"ms-{name}-JOB-*" for name in list(names)[:-1])
        fix = (
            f"look for {tags} in the records of the clusters; `metasched cancel` the tasks that "
            "are there, and `metasched release` the others"
        )
        yield Diagnosis("restored backup", False, message, fix)
    for name, behind, ahead in clocks:
        yield _check_clock(name, behind, ahead)


def count_held_after_backup(connection: Connection) -> int:
    """Count the tasks that are held since their database was restored."""
    last_change = (
        select(change.c.cause)
        .where(change.c.job == task.c.job, change.c.task_index == task.c.task_index)
        .order_by(change.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = select(func.count()).select_from(task)
    held = query.where(task.c.state == State.HELD, last_change == HELD_AFTER_BACKUP)
    return connection.execute(held).scalar_one()


def _check_clock(name: str, behind: float | None, ahead: float | None) -> Diagnosis:
    """Compare clocks: no job starts before its dispatch, or after it was seen running."""
    for seconds, direction in ((behind or 0.0, "behind"), (ahead or 0.0, "ahead of")):
        if seconds > MAX_CLOCK_SKEW:
            message = f"its clock is at least {seconds:.0f} s {direction} this host's"
            text = f"{message}, by its jobs' starts"
            return Diagnosis(f"clock of {name}", False, text, "set both by NTP")
    return Diagnosis(f"clock of {name}", True, f"within {MAX_CLOCK_SKEW:g} s of this host's")


def _check_launcher(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the launcher answers, and compare launcher.toml with the configured clusters."""
    path = settings.launcher
    if path is None:
        return
    try:
        LauncherClient(path, "").check_access(pwd.getpwuid(os.geteuid()).pw_name, "/")
    except Refused:
        pass  # it answers; it refuses because the account of the daemon may have no jobs
    except SiteFault as error:
        yield _failed_check("launcher", UserError(error.reason))
        return
    except Unreachable as error:
        fix = "run this as the daemon's account; look at the log of metasched-launcher"
        yield Diagnosis("launcher", False, error.reason, fix)
        return
    yield Diagnosis("launcher", True, f"answers at {path}")
    for entry in settings.clusters:
        name = entry.cluster.name
        verbs = adapter_class(entry.cluster.adapter).launcher_verbs
        try:
            LauncherClient(path, name).check_cluster(verbs)
        except Unreachable as error:
            yield _failed_check(f"launcher.toml for {name}", UserError(error.reason))
        else:
            yield Diagnosis(f"launcher.toml for {name}", True, ", ".join(verbs))


def _check_mail_program(path: Path | None) -> Iterator[Diagnosis]:
    if path is not None and not os.access(path, os.X_OK):
        fix = "install it, or name another as mail_program in [daemon]"
        yield Diagnosis("mail program", False, f"no program {path}", fix)


def _check_daemon(settings: Settings) -> Iterator[Diagnosis]:
    client = Client(settings.socket)
    try:
        health, clusters = client.health(), client.clusters()
        servers, licences = client.licence_servers(), client.licences()
        unknown, reservations = client.jobs(state="unknown"), client.reservations()
    except UserError as error:
        yield _failed_check("daemon", error)
        return
    command_version, daemon_version = version("metasched"), health.get("version")
    message = f"version {daemon_version} since {health.get('started')}"
    if command_version == daemon_version:
        yield Diagnosis("daemon", True, message)
    else:
        fix = "restart the daemon, or use its own commands"
        yield Diagnosis("daemon", False, f"{message}, this command is {command_version}", fix)
    if mail_error := health.get("mail"):
        fix = "run it by hand as the daemon's account; its output is in the daemon's log"
        yield Diagnosis("mail", False, f"an owner was not notified: {mail_error}", fix)
    for entry in health.get("quarantine", ()):
        yield _quarantine_entry(entry)
    for row in health.get("connections", ()):  # of an operator; unknown to earlier daemons
        yield _check_listener(row)
    if (descriptors := health.get("descriptors")) is not None:
        yield _check_descriptors(**descriptors)
    if delayed := health.get("delayed"):  # of an operator; unknown to earlier daemons
        yield _delayed_listings(delayed)
    yield _check_ids(health, clusters)
    for row in clusters:
        yield _check_cluster(row)
        yield from check_evidence(row, settings)
        yield from check_use(row, settings)
    for row in servers:
        yield _check_licence_server(row)
    for row in licences:
        yield from _check_manager_licences(row)
    names = {row["cluster"] for row in clusters}
    for row in reservations:
        if row["closed"] is None and row["cluster"] not in names:
            yield _unconfigured_reservation(row)
    down = {row["cluster"] for row in clusters if row["state"].startswith("down")}
    for job in unknown[:MAX_LISTED_JOBS]:
        yield _unknown_job(job, tag_of_unknown(settings.database, job), down)
    if len(unknown) > MAX_LISTED_JOBS:
        remaining = f"{len(unknown) - MAX_LISTED_JOBS} more"
        yield Diagnosis("unknown jobs", False, remaining, "see `metasched status --state unknown`")


def _check_ids(health: dict[str, Any], clusters: list[dict[str, Any]]) -> Diagnosis:
    """Return whether the drop-in commands can be used; they need not."""
    first_id = health.get("first_id", 1)
    problem, fix = first_id_problem(first_id, clusters)
    if not problem:
        return Diagnosis("drop-in commands", True, f"ids from {first_id} are those of no cluster")
    return Diagnosis("drop-in commands", first_id == 1, f"cannot be used: {problem}", fix)


def _quarantine_entry(entry: dict[str, Any]) -> Diagnosis:
    """Return the result for a source that failed, or a row that is set aside."""
    if "tag" not in entry:
        message = f"{entry['words']}, since {entry['since']}, next try {entry['next_try']}"
        return Diagnosis(entry["source"], False, message, "report it with the daemon's log")
    owner = f" of {entry['owner']}" if entry["owner"] else ""
    message = f"the row of {entry['tag']}, task {entry['task']}{owner} is set aside"
    fix = "look at that job in its manager; its state in metasched is unknown"
    return Diagnosis(entry["source"], False, f"{message}: {entry['defect']}", fix)


def _check_listener(row: dict[str, Any]) -> Diagnosis:
    """Return the result for a listener: it is full, or how many connections it has refused."""
    refused = ", ".join(f"{kind} {count}" for kind, count in row["refused"].items() if count)
    message = (
        f"{row['open']} of {row['limit']} connections, {row['waiting']} of {row['waiting_limit']} "
        f"wait for jobs; refused since the start: {refused or 'none'}"
    )
    check = f"listener {row['listener']}"
    if row["open"] < row["limit"] and not row["refused"]["no_descriptor"]:
        return Diagnosis(check, True, message)
    return Diagnosis(
        check, False, message, "see the daemon's log; raise `connections`, LimitNOFILE"
    )


def _delayed_listings(rows: list[dict[str, Any]]) -> Diagnosis:
    """Return whose listings wait most; that harms nobody else."""
    accounts = [
        f"{row['user']} {row['requests']} ({row['seconds']:.0f} s)" for row in rows[:MAX_DELAYED]
    ]
    message = f"waited while others called, since the start: {', '.join(accounts)}"
    return Diagnosis("listings", True, message)


def _check_descriptors(open: int, limit: int | None) -> Diagnosis:
    message = f"{open} of {'any number' if limit is None else limit}"
    if limit is None or open < MAX_DESCRIPTOR_USE * limit:
        return Diagnosis("file descriptors", True, message)
    return Diagnosis("file descriptors", False, message, "raise LimitNOFILE of the daemon")


def _check_cluster(row: dict[str, Any]) -> Diagnosis:
    check, worker, breaker = f"cluster {row['cluster']}", row["worker"], row["breaker"]
    if row["state"].startswith("down"):
        message = f"{row['state']}, since {breaker['since']}, next try {breaker['next_try']}"
        return Diagnosis(
            check, False, message, "query its manager on this host by the manager's own commands"
        )
    if worker["failures"] >= MAX_WORKER_DEATHS:
        fix = "see the daemon's log; check the cluster's `python` and `library`"
        return Diagnosis(check, False, worker["words"], fix)
    return Diagnosis(check, True, row["state"])


def _check_manager(entry: ClusterSettings, settings: Settings) -> Iterator[Diagnosis]:
    """Check the manager's own configuration, if the manager answers."""
    adapter_type = adapter_class(entry.cluster.adapter)
    try:
        warnings = adapter_type.configuration_warnings(
            adapter_type.Options(**entry.options),
            os.environ | entry.environment,
            settings.site is not None,
        )
    except Unreachable:
        return  # a lasting failure is reported by the check of the daemon
    for text, fix in warnings:
        yield Diagnosis(f"manager of {entry.cluster.name}", False, text, fix)


def _check_fence(settings: ClusterSettings) -> Iterator[Diagnosis]:
    """Check the folder of claims: while it is unusable, the cluster gets no jobs."""
    name, fence_dir = f"claims of {settings.cluster.name}", settings.cluster.fence_dir
    if not fence_dir:
        return
    try:
        check_fence(fence_dir)
    except FenceError as error:
        yield Diagnosis(name, False, f"fence_dir: {error}", error.fix)
    else:
        yield Diagnosis(name, True, fence_dir)


def _check_licence_server(row: dict[str, Any]) -> Diagnosis:
    check, breaker = f"licence server {row['server']}", row["breaker"]
    if breaker["failures"]:
        message = f"{breaker['words']}, since {breaker['since']}, next try {breaker['next_try']}"
        return Diagnosis(check, False, message, f"try `metasched licence probe {row['server']}`")
    if row["lacking"]:
        message = "; ".join(f"does not count {name}: {why}" for name, why in row["lacking"].items())
        return Diagnosis(check, False, message, "see `features`, or the server's own log")
    if not row["licences"]:
        return Diagnosis(check, True, "counts no licence of the configuration")
    return Diagnosis(
        check, True, f"answered at {row['observed']}" if row["observed"] else "has not answered yet"
    )


def _check_manager_licences(row: dict[str, Any]) -> Iterator[Diagnosis]:
    """Compare the manager's own counter of a licence with the ledger."""
    name = row["licence"]
    for counter in row["managers"]:
        check = f"licence {name} on {counter['cluster']}"
        if counter["others"]:
            yield Diagnosis(check, True, f"{counter['others']} are used there outside metasched")
        if row["total"] is not None and counter["total"] != row["total"]:
            yield Diagnosis(
                check, True, f"it gives out {counter['total']}, there are {row['total']}"
            )


def _unconfigured_reservation(row: dict[str, Any]) -> Diagnosis:
    """Return the result for an open reservation on a cluster that is not configured."""
    id, cluster = row["reservation"], row["cluster"]
    message = f"of {row['user']}, {row['state']} from {row['start']}: cluster {cluster}"
    fix = (
        f"put {cluster} back into the configuration and restart the daemon, "
        f"or `metasched reservation cancel {id}`"
    )
    return Diagnosis(f"reservation {id}", False, f"{message} is not configured", fix)


def check_evidence(row: dict[str, Any], settings: Settings) -> Iterator[Diagnosis]:
    """Warn where nothing remembers the end of a job that a Slurm controller has forgotten."""
    fences = {entry.cluster.name: entry.cluster.fence_dir for entry in settings.clusters}
    check = f"records of {row['cluster']}"
    if row["records"].startswith("jobcomp/filetxt"):
        yield Diagnosis(
            check,
            True,
            "warning: by a job name with line breaks any account can write lines of others into "
            "the file of jobcomp/filetxt; set up slurmdbd, or reject such names by job_submit.lua",
        )
    if row["adapter"] != "slurm" or row["records"] or fences.get(row["cluster"]):
        return
    if row["state"].startswith("down"):
        return  # whether it has accounting is not known
    message = (
        "warning: neither accounting nor claims, so that a job which Slurm forgets stays unknown; "
        "set up slurmdbd, or give the cluster a fence_dir"
    )
    yield Diagnosis(check, True, message)


def check_use(row: dict[str, Any], settings: Settings) -> Iterator[Diagnosis]:
    """With fair share, report a cluster whose accounting reports no use or no shares."""
    fair_share, use = settings.fair_share, row.get("use")  # unknown to earlier daemons
    if fair_share is None or use is None or row["state"].startswith("down"):
        return
    check = f"fair share on {row['cluster']}"
    fix = "query its accounting as the daemon's account, see docs/admin/fair-share.md"
    for subject, breaker in (("use", use["breaker"]), ("shares", use["shares"])):
        if breaker["failures"]:
            message = f"its accounting reports no {subject} since {breaker['since']}"
            yield Diagnosis(check, False, f"{message}: {breaker['words']}", fix)
    if use["source"]:
        if not (use["breaker"]["failures"] or use["shares"]["failures"]):
            yield Diagnosis(check, True, f"{use['source']}, use until {use['until'] or 'not yet'}")
    elif fair_share.shares_from == row["cluster"]:
        fix = "set up slurmdbd there, or write the shares into [fair_share]"
        yield Diagnosis(check, False, "it has no accounting, so it reports no shares", fix)
    elif row["adapter"] == "slurm":
        message = "warning: no slurmdbd, so that only jobs of metasched count as use there"
        yield Diagnosis(check, True, message)


def tag_of_unknown(database: Database, row: dict[str, Any]) -> str:
    """Return the tag of an unknown task's live attempt, as its manager has it.

    An attempt in a backup has the name that the database had when it was dispatched.
    """
    live_dispatch = select(attempt.c.sending).where(
        attempt.c.job == row["job"],
        attempt.c.task_index == (row["task"] or 0),
        attempt.c.state == State.UNKNOWN,
    )
    unknown_tag = f"ms-*-{row['job']}-*"
    try:
        engine = database.open_existing()
    except UserError:
        return unknown_tag
    try:
        with engine.connect() as connection:
            dispatch_id = connection.execute(live_dispatch).scalar()
            instances = Instances(read_first_dispatches(connection))
    except DBAPIError:
        return unknown_tag
    finally:
        engine.dispose()
    return unknown_tag if dispatch_id is None else instances.tag_of(row["job"], dispatch_id)


def _unknown_job(row: dict[str, Any], tag: str, down: set[str]) -> Diagnosis:
    """Return the result for a job in state `unknown`."""
    id = row["job"] if row["task"] is None else f"{row['job']}_{row['task']}"
    message = f"unknown on {row['cluster']} (there {row['native_id'] or 'without an id'})"
    if row["cluster"] in down:
        fix = f"wait: its state is known as soon as {row['cluster']} answers"
    else:
        fix = (
            f"look for {tag} in the records of {row['cluster']}, "
            f"then `metasched resolve {id} lost` or `ran`"
        )
    return Diagnosis(f"job {id}", False, message, fix)
