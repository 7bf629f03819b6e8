"""The running daemon, by its own answers: clusters, licences, reservations, unknown jobs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from metasched.client.client import Client
from metasched.client.native_ids import first_id_problem
from metasched.client.site_answers import AlteredRow, ClusterRow, DescriptorsRow, HealthRow
from metasched.config.settings import ClusterSettings, Settings
from metasched.daemon.doctor.cluster_checks import check_records
from metasched.daemon.doctor.findings import Finding, found, from_error, passed
from metasched.db.backends import database_at
from metasched.db.instances import read_first_dispatches, read_key
from metasched.db.schema import attempt
from metasched.db.store import Database
from metasched.errors import UserError
from metasched.model.host_lists import name_nodes
from metasched.model.job import State
from metasched.model.notice import MAIL
from metasched.model.tags import Instances
from metasched.version import RELEASE, release_name

MAX_WORKER_DEATHS = 3  # in a row, from which a cluster is reported
MAX_DESCRIPTOR_USE = 0.95  # of the daemon's descriptors, from which it is reported
MAX_LISTED_JOBS = 5  # unknown jobs that are listed singly
MAX_DELAYED = 3  # accounts whose listings waited longest
UNBEGUN_SPAN = 3600.0  # seconds in which nodes that could not begin jobs are reported
MAX_LISTING_AGE = 600.0  # seconds; an idle daemon lists each cluster once a minute


def check_daemon(settings: Settings) -> Iterator[Finding]:
    client = Client(settings.socket)
    try:
        health, clusters = client.health(), client.clusters()
        servers, licences = client.licence_servers(), client.licences()
        unknown, reservations = client.jobs(state="unknown"), client.reservations()
    except UserError as error:
        yield from_error("daemon-unreachable", "daemon", str(error))
        return
    release = release_name(health["version"], health["commit"])
    message = f"version {release} since {health['started']}"
    if release == RELEASE:
        yield passed("daemon", message)
    else:
        fix = "restart the daemon, or use its own commands"
        yield found("daemon-version", "daemon", f"{message}, this command is {RELEASE}", fix)
    if mail_error := health["mail"]:
        fix = "run it by hand as the daemon's account; its output is in the daemon's log"
        yield found("mail-failed", "mail", f"mails are not sent: {mail_error}", fix)
    for row in health["notifications"]:  # of an operator
        if row["name"] != MAIL:
            yield check_webhook(row)
    yield from _check_files(health["configuration"], settings)
    for entry in health["quarantine"]:
        yield _quarantine_entry(entry)
    for row in health["connections"]:  # of an operator
        yield _check_listener(row)
    if (descriptors := health["descriptors"]) is not None:
        yield _check_descriptors(descriptors)
    for row in health["withdrawals"]:  # of an operator
        yield _futile_withdrawal(row)
    if delayed := health["delayed"]:  # of an operator
        yield _delayed_listings(delayed)
    for altered in health["altered"]:  # of an operator
        yield check_altered(altered)
    yield _check_ids(health, clusters)
    yield from _check_heuristics(client)
    for cluster in clusters:
        yield _check_cluster(cluster)
        yield from check_refusals(cluster)
        yield from check_local_policy(cluster)
        yield from check_evidence(cluster, settings)
        yield from check_listing_age(cluster)
        yield from check_use(cluster, settings)
    yield from _check_nodes(client)
    for server in servers:
        yield _check_licence_server(server)
    for licence in licences:
        yield from _check_manager_licences(licence)
    names = {row["cluster"] for row in clusters}
    for reservation in reservations:
        if reservation["closed"] is None and reservation["cluster"] not in names:
            yield _unconfigured_reservation(reservation)
    down = {row["cluster"] for row in clusters if row["state"].startswith("down")}
    for job in unknown[:MAX_LISTED_JOBS]:
        yield _unknown_job(job, tag_of_unknown(database_at(settings.database_url), job), down)
    if len(unknown) > MAX_LISTED_JOBS:
        remaining = f"{len(unknown) - MAX_LISTED_JOBS} more"
        yield found(
            "job-unknown", "unknown jobs", remaining, "see `metasched status --state unknown`"
        )


def _check_ids(health: HealthRow, clusters: list[ClusterRow]) -> Finding:
    """Return whether the drop-in commands can be used; they need not."""
    first_id = health["first_id"]
    problem, fix = first_id_problem(first_id, clusters)
    if not problem:
        return passed("drop-in commands", f"ids from {first_id} are those of no cluster")
    kind = "drop-in-off" if first_id == 1 else "drop-in-ids"
    return found(kind, "drop-in commands", f"cannot be used: {problem}", fix)


def _check_nodes(client: Client) -> Iterator[Finding]:
    """Warn of nodes that could not begin jobs in the last hour."""
    since = time.time() - UNBEGUN_SPAN
    try:
        rows, _ = client.events(kind="job_unbegun", since=since, newest=True)
    except UserError as error:
        yield from_error("daemon-unreachable", "nodes", str(error))
        return
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[row["cluster"] or "", str(row["details"]["nodes"])] += row["count"]
    for (cluster, hosts), count in sorted(counts.items()):
        jobs = "1 job" if count == 1 else f"{count} jobs"
        text = f"{name_nodes(hosts)} of cluster {cluster} could not begin {jobs} in the last hour"
        yield found("node-begins-no-jobs", f"nodes of {cluster}", text)


def _check_heuristics(client: Client) -> Iterator[Finding]:
    try:
        policy = client.policy()
    except UserError as error:
        yield from_error("daemon-unreachable", "policy", str(error))
        return
    for row in policy["plug_ins"] or ():  # of an operator
        yield check_heuristic(row)


def check_heuristic(row: Mapping[str, Any]) -> Finding:
    check = f"heuristic {row['heuristic']}"
    if row["problem"]:
        return found("heuristic-excluded", check, row["problem"])
    if row["excluded"]:
        message = f"excluded for {row['excluded']} jobs since the start; the log has reasons"
        return found("heuristic-excluded", check, message)
    return passed(check, f"[{row['table']}.{row['heuristic']}] is asked")


def check_refusals(row: Mapping[str, Any]) -> Iterator[Finding]:
    check = f"refusals of {row['cluster']}"
    if row["refusing"]:
        yield found("cluster-refuses", check, f"it refuses all jobs: {row['refusing']}")
    elif row["refused_users"]:
        message = f"it refuses all jobs of users: {row['refused_users']}"
        yield found("cluster-refuses", check, message)


def check_local_policy(row: Mapping[str, Any]) -> Iterator[Finding]:
    policy = row["local_policy"]
    if policy is None or not policy["excluded_passes"]:
        return
    check, passes = f"local policy of {row['cluster']}", policy["excluded_passes"]
    message = f"FCFS decided {passes} passes in its place since the start of the daemon"
    if policy["excluded"]:
        message += ", and still does"
    yield found("local-policy-excluded", check, message)


def check_altered(row: AlteredRow) -> Finding:
    check, jobs = f"jobs of {row['cluster']}", row["jobs"]
    count = "a job" if jobs == 1 else f"{jobs} jobs"
    if row["kind"] == "copy":
        return found("tag-copied", check, f"{count} with a copied tag: {row['first']}")
    message = f"{count} with another {row['kind']} than was sent: {row['first']}"
    return found("job-altered", check, message)


def check_webhook(row: Mapping[str, Any]) -> Finding:
    check = f"webhook {row['name']}"
    count = row["waiting"]
    waiting = "1 group of events waits" if count == 1 else f"{count} groups of events wait"
    if not row["failures"]:
        return passed(check, waiting)
    message = f"{row['last_error']}; {waiting}, next try {row['next_try']}"
    return found("webhook-failed", check, message)


def _quarantine_entry(entry: dict[str, Any]) -> Finding:
    """Return the result for a source that failed, or a row that is set aside."""
    if "tag" not in entry:
        message = f"{entry['words']}, since {entry['since']}, next try {entry['next_try']}"
        return found("daemon-defect", entry["source"], message)
    owner = f" of {entry['owner']}" if entry["owner"] else ""
    message = f"the row of {entry['tag']}, task {entry['task']}{owner} is set aside"
    fix = "look at that job in its manager; its state in metasched is unknown"
    return found("daemon-defect", entry["source"], f"{message}: {entry['defect']}", fix)


def _check_listener(row: Mapping[str, Any]) -> Finding:
    """Return the result for a listener: it is full, or how many connections it has refused."""
    refused = ", ".join(f"{kind} {count}" for kind, count in row["refused"].items() if count)
    message = (
        f"{row['open']} of {row['limit']} connections, {row['waiting']} of {row['waiting_limit']} "
        f"wait for jobs; refused since the start: {refused or 'none'}"
    )
    check = f"listener {row['listener']}"
    if row["open"] < row["limit"] and not row["refused"]["no_descriptor"]:
        return passed(check, message)
    fix = "see the daemon's log; raise `connections`, LimitNOFILE"
    return found("daemon-connections", check, message, fix)


def _futile_withdrawal(row: Mapping[str, Any]) -> Finding:
    said = f"the manager said: {row['reason']}" if row["reason"] else "the manager reports no error"
    message = f"job {row['job']} is still on {row['cluster']} after {row['tries']} requests; {said}"
    return found("withdrawal-futile", f"withdrawal of job {row['job']}", message)


def _delayed_listings(rows: list[dict[str, Any]]) -> Finding:
    """Return the accounts whose listings wait most; that harms no other account."""
    accounts = [
        f"{row['user']} {row['requests']} ({row['seconds']:.0f} s)" for row in rows[:MAX_DELAYED]
    ]
    message = f"waited while others called, since the start: {', '.join(accounts)}"
    return found("daemon-delayed", "listings", message)


def _check_descriptors(use: DescriptorsRow) -> Finding:
    open, limit = use["open"], use["limit"]
    message = f"{open} of {'any number' if limit is None else limit}"
    if limit is None or open < MAX_DESCRIPTOR_USE * limit:
        return passed("file descriptors", message)
    fix = "raise LimitNOFILE of the daemon"
    return found("daemon-descriptors", "file descriptors", message, fix)


def _check_cluster(row: Mapping[str, Any]) -> Finding:
    check, worker, breaker = f"cluster {row['cluster']}", row["worker"], row["breaker"]
    if row["state"].startswith("down"):
        message = f"{row['state']}, since {breaker['since']}, next try {breaker['next_try']}"
        fix = "query its manager on this host by the manager's own commands"
        return found("cluster-down", check, message, fix)
    if worker["failures"] >= MAX_WORKER_DEATHS:
        fix = "see the daemon's log; check the cluster's `python` and `library`"
        return found("worker-dies", check, worker["words"], fix)
    return passed(check, row["state"])


def _check_licence_server(row: Mapping[str, Any]) -> Finding:
    check, breaker = f"licence server {row['server']}", row["breaker"]
    if breaker["failures"]:
        message = f"{breaker['words']}, since {breaker['since']}, next try {breaker['next_try']}"
        fix = f"try `metasched licence probe {row['server']}`"
        return found("licence-server-unreachable", check, message, fix)
    if row["lacking"]:
        message = "; ".join(f"does not count {name}: {why}" for name, why in row["lacking"].items())
        fix = "see `features`, or the server's own log"
        return found("licence-missing", check, message, fix)
    if not row["licences"]:
        return passed(check, "counts no licence of the configuration")
    return passed(
        check, f"answered at {row['observed']}" if row["observed"] else "has not answered yet"
    )


def _check_manager_licences(row: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the manager's own counter of a licence with the ledger."""
    name = row["licence"]
    for counter in row["managers"]:
        check = f"licence {name} on {counter['cluster']}"
        if counter["others"]:
            text = f"{counter['others']} are used there outside metasched"
            yield found("licence-outside", check, text)
        if row["total"] is not None and counter["total"] != row["total"]:
            text = f"it gives out {counter['total']}, there are {row['total']}"
            yield found("licence-outside", check, text)


def _unconfigured_reservation(row: Mapping[str, Any]) -> Finding:
    """Return the result for an open reservation on a cluster that is not configured."""
    id, cluster = row["reservation"], row["cluster"]
    message = f"of {row['user']}, {row['state']} from {row['start']}: cluster {cluster}"
    fix = (
        f"put {cluster} back into the configuration and restart the daemon, "
        f"or `metasched reservation cancel {id}`"
    )
    return found("reservation-cluster", f"reservation {id}", f"{message} is not configured", fix)


def check_evidence(row: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    """Warn where nothing remembers the end of a job that its manager has forgotten."""
    if row["state"].startswith("down"):
        return  # whether it has accounting is not known
    if (entry := _configured(row, settings)) is not None:
        yield from check_records(entry, row["records"])


def _configured(row: Mapping[str, Any], settings: Settings) -> ClusterSettings | None:
    """Return the settings of a cluster of the daemon; None: doctor's file does not have it."""
    return next((e for e in settings.clusters if e.cluster.name == row["cluster"]), None)


def check_listing_age(row: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn of a cluster that is up, though its last listing is old."""
    listed = row["listed"]
    if not listed or row["state"].startswith("down"):
        return
    age = time.time() - datetime.fromisoformat(listed).timestamp()
    if age > MAX_LISTING_AGE:
        text = f"listed {age / 60:.0f} minutes ago, though it counts as up"
        yield found("listing-old", f"listing of {row['cluster']}", text)


def _check_files(read: dict[str, Any] | None, settings: Settings) -> Iterator[Finding]:
    """Compare the files that the daemon has read with those that this command has read."""
    if read is None:  # not an operator
        return
    read_digests: dict[str, str] = read["digests"]
    own = {str(path): digest for path, digest in settings.files.items()}
    path = str(settings.config_path) if settings.config_path else None
    if read["file"] != path:
        text = f"it reads {read['file'] or 'no file'}, doctor reads {path or 'none'}"
        fix = f"metasched doctor --config {read['file']}" if read["file"] else "restart it"
        yield found("daemon-other-file", "daemon's file", text, fix)
    elif changed := sorted(
        name for name in own | read_digests if own.get(name) != read_digests.get(name)
    ):
        text = f"{', '.join(changed)}: changed since the daemon read it"
        yield found("daemon-changed-file", "daemon's file", text)
    else:
        yield passed("daemon's file", f"{path or 'none'}, as the daemon has read it")


def check_use(row: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    """With fair share, report a cluster whose accounting reports no use or no shares."""
    fair_share, use = settings.fair_share, row["use"]
    if fair_share is None or row["state"].startswith("down"):
        return
    check = f"fair share on {row['cluster']}"
    fix = "query its accounting as the daemon's account, see docs/admin/fair-share.md"
    for subject, breaker in (("use", use["breaker"]), ("shares", use["shares"])):
        if breaker["failures"]:
            message = f"its accounting reports no {subject} since {breaker['since']}"
            yield found("fair-share-use", check, f"{message}: {breaker['words']}", fix)
    if use["source"]:
        if not (use["breaker"]["failures"] or use["shares"]["failures"]):
            yield passed(check, f"{use['source']}, use until {use['until'] or 'not yet'}")
    elif fair_share.shares_from == row["cluster"]:
        fix = "set up its accounting (Slurm: slurmdbd), or write the shares into [fair_share]"
        yield found("fair-share-use", check, "it has no accounting, so it reports no shares", fix)
    elif (entry := _configured(row, settings)) and entry.capabilities.needs_accounting:
        text = "no accounting, so that only jobs of metasched count as use there"
        yield found("fair-share-partial", check, text)


def tag_of_unknown(database: Database, row: Mapping[str, Any]) -> str:
    """Return the tag of an unknown task's live attempt, as its manager has it.

    An attempt in a backup has the name that the database had when it was dispatched.
    """
    live_dispatch = select(attempt.c.dispatch_id).where(
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
            instances = Instances(read_first_dispatches(connection), read_key(connection))
    except DBAPIError:
        return unknown_tag
    finally:
        engine.dispose()
    return unknown_tag if dispatch_id is None else instances.tag_of(row["job"], dispatch_id)


def _unknown_job(row: Mapping[str, Any], tag: str, down: set[str]) -> Finding:
    """Return the result for a job in state `unknown`."""
    id = row["job"] if row["task"] is None else f"{row['job']}_{row['task']}"
    message = f"unknown on {row['cluster']} (there {row['native_id'] or 'without an id'})"
    if row["cluster"] in down:
        fix = f"wait: its state is known as soon as {row['cluster']} answers"
    elif not row["native_id"]:
        fix = (
            f"wait for a second look at {row['cluster']}, since its dispatch may still arrive; "
            f"if it is unknown after 10 min, look there for {tag}, then resolve it"
        )
    else:
        fix = (
            f"look for {tag} in the records of {row['cluster']}, "
            f"then `metasched resolve {id} lost` or `ran`"
        )
    return found("job-unknown", f"job {id}", message, fix)
