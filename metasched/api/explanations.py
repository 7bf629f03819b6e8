"""Route that explains the state of a job and its obstacles on each cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.answers import encoded
from metasched.api.expected_starts import smaller_requests
from metasched.api.licences import describe_holders, licence_holders
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.selection import find_visible_job
from metasched.api.shares import standing_row
from metasched.client.job_answers import (
    Explanation,
    MissingLicence,
    NodeFitRow,
    SiteRatingsRow,
    TuningRow,
    UsageRow,
    VerdictRow,
)
from metasched.core.dispatch_answers import NO_ANSWER
from metasched.core.placement import BY_FORECAST, BY_OBSERVED_WORK, WAITED_FOR_LICENCES
from metasched.core.share_standings import Standing
from metasched.core.task_state_machine import HELD_AFTER_BACKUP
from metasched.core.tasks import Task
from metasched.core.transitions import FINAL, QUEUED_OR_HELD
from metasched.daemon.forecaster import QUEUED, TaskEstimate
from metasched.daemon.manager_start_times import ExpectedStart
from metasched.daemon.service import SchedulerService
from metasched.db.job_pages import TaskFilter
from metasched.db.policy_versions import DecisionsOfTask
from metasched.db.tuning import RecordedChange
from metasched.model.cluster import Cluster
from metasched.model.job import MANAGER_REASON, Job, Reason, State
from metasched.model.units import iso
from metasched.policies.eligible import UnmappedNameError, translate_job
from metasched.policies.exclusions import describe_fit

router = APIRouter()

_WAITING = QUEUED_OR_HELD | {State.DISPATCHING, State.PENDING}


class _Reading(NamedTuple):
    """Stored data of a job and of the task to explain."""

    job_row: dict[str, Any]
    tuned: list[RecordedChange]
    row: dict[str, Any]  # of the task
    counts: Counter[str]  # tasks by state
    cause: str  # of the last change
    decisions: DecisionsOfTask


@router.get("/jobs/{job}/explain", response_model=Explanation)
async def explain(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    job: str,
) -> Response:
    """Explain the state of a task; of an array, of the task that waits first."""

    def read() -> _Reading:
        job_id, index = find_visible_job(daemon.ledger, caller, job)
        job_row = daemon.ledger.job_row(job_id)
        assert job_row is not None
        task_filter, counts = TaskFilter([(job_id, index)]), Counter[str]()
        candidates: list[dict[str, Any]] = []  # a task of each page and each run
        runs = daemon.ledger.selected_runs(task_filter)
        for page in daemon.ledger.status_pages(task_filter, with_runs=False):
            counts.update(task["state"] for task in page.rows)
            candidates += sorted(page.rows, key=_order_of_explanation)[:1]
        for run in runs:
            counts[run.row["state"]] += len(run.indices)
            candidates.append({**run.row, "task_index": run.indices[0]})
        row = min(candidates, key=_order_of_explanation)
        cause = daemon.ledger.last_cause(job_id, row["task_index"])
        ledger = daemon.ledger
        decisions = ledger.decisions_of_task(job_id, row["task_index"])
        return _Reading(job_row, ledger.tuning_in_force(job_id), row, counts, cause, decisions)

    job_row, tuned, row, counts, cause, decisions = await readers.run(
        request, ReadingKind.NAMED, read
    )
    job_id = row["job"]
    task = service.core.find_task((job_id, row["task_index"]))
    clusters: list[VerdictRow] = []
    licences: list[MissingLicence] = []
    if task is not None:
        chosen_cluster = task.attempt.cluster if task.attempt else None
        clusters = cluster_verdicts(service, task, chosen_cluster)
        cause = service.core.describe_dependencies(task) or cause
        if (shortage := service.core.licence_obstacle(task, now := time.time())) is not None:
            row |= {"reason": str(shortage.reason)}
            licences = licence_holders(service.core, task, now, caller.may_list)
            cause = "; ".join((shortage.text, *describe_holders(licences)))
        if (limit := service.core.limit_shortage(task)) is not None:
            row |= {"reason": str(limit.reason)}
            cause = limit.text
    standing: Standing | None = None
    if task is not None and task.state is State.QUEUED and row["reason"] == Reason.PRIORITY:
        standing = service.core.fair_share.standing_of(task.job)
    task_id = job_id, row["task_index"]
    expectation, estimate = service.expected_start(task_id), service.estimate(task_id)
    estimated_at = estimate.made if estimate else expectation.reported_at if expectation else None
    obstacle = ""
    if row["state"] == State.PENDING:
        obstacle = service.forecaster.obstacle(row["cluster"])
    elif row["state"] == State.QUEUED and estimate is None:
        obstacle = service.forecaster.obstacle(QUEUED, job_id)
    sooner = "" if task is None else smaller_requests(service, task, estimate)
    several = counts.total() > 1
    summary = f"{_describe_counts(counts)}; task {row['task_index']}: " if several else ""
    explanation: Explanation = {
        "job": job_id,
        "task": row["task_index"] if row["array"] else None,
        "state": row["state"],
        "reason": row["reason"],
        "text": summary
        + _describe_state(row, clusters, cause)
        + _describe_doubt(task, cause)
        + _describe_account(clusters)
        + _describe_gres(job_row, row, clusters)
        + _describe_licences(job_row, row)
        + _describe_standing(standing)
        + describe_expectation(expectation, estimate, obstacle)
        + sooner,
        "expected_start": iso(shown_start(expectation, estimate)),
        "expected_early": iso(estimate.start.early) if estimate else None,
        "expected_late": iso(estimate.start.late) if estimate else None,
        "expected_told": iso(estimated_at),
        "priority": job_row["priority"],
        "parts": msgspec.json.decode(job_row["priority_parts"]),
        "ratings": ratings_row(_current_job(job_row)),
        "policy": {
            "priority": decisions.priority,
            "placement": decisions.placement,
            "load": compared_load(decisions.cause),
        },
        "tuning": [_tuning_row(recorded) for recorded in tuned],
        "clusters": clusters,
        "licences": licences,
        "fair_share": standing_row(standing) if standing else None,
        "usage": _usage(row) if row["state"] in FINAL and row["started"] else None,
    }
    return encoded(explanation)


def ratings_row(job: Job) -> SiteRatingsRow | None:
    """Return what heuristics of the site said of a job; None: none was asked."""
    if job.ratings is None:
        return None
    return {
        "placements": {name: dict(rated) for name, rated in job.ratings.placements.items()},
        "run_times": dict(job.ratings.run_times),
        "excluded": dict(job.ratings.excluded),
    }


def compared_load(cause: str) -> str | None:
    """Return the kind of load that a dispatch compared; None: none, or no forecast's load."""
    if cause.startswith(BY_FORECAST):
        return "forecast"
    return "observed" if cause.startswith(BY_OBSERVED_WORK) else None


def _tuning_row(recorded: RecordedChange) -> TuningRow:
    """Return the change that set a parameter's values before the job was submitted."""
    change = recorded.change
    return {
        "parameter": change.parameter,
        "before": list(change.before),
        "after": list(change.after),  # []: no longer tuned
        "distance": change.distance,  # None: changed by a start with another policy
        "expected": change.expected,
        "time": iso(recorded.time),
    }


def _usage(row: dict[str, Any]) -> UsageRow:
    """Return what an ended task used, as its manager reported it; None: not reported."""
    return {
        "elapsed": row["ended"] - row["started"] if row["ended"] else None,  # seconds
        "cpu_seconds": row["cpu_seconds"],
        "max_memory": row["max_memory"],  # MiB
        "nodes": row["node"] or "",
    }


def _order_of_explanation(row: dict[str, Any]) -> tuple[bool, bool, int]:
    """Order the tasks of an array: open tasks first, of these the queued and held tasks."""
    is_waiting = State(row["state"]) in QUEUED_OR_HELD
    return row["state"] in FINAL, not is_waiting, row["task_index"]


def _describe_counts(counts: Counter[str]) -> str:
    """Describe the number of tasks in each state."""
    parts = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    return f"Of {counts.total()} tasks are {parts}"


def shown_start(expectation: ExpectedStart | None, estimate: TaskEstimate | None) -> float | None:
    """Return the start that is shown (epoch seconds): metasched's estimate, else the manager's."""
    if estimate is not None:
        return estimate.start.median
    return None if expectation is None else expectation.start


def describe_expectation(
    expectation: ExpectedStart | None, estimate: TaskEstimate | None, obstacle: str
) -> str:
    """Describe the expected start in a sentence that follows another."""
    if estimate is not None:
        early, median, late = map(iso, estimate.start)
        where = f" on {estimate.cluster}" if estimate.cluster else ""
        return (
            f" It is expected to start{where} at {median}, "
            f"with 80% probability between {early} and {late}."
        )
    if expectation is not None:
        return (
            f" {expectation.cluster} expects it to start at {iso(expectation.start)} "
            f"(reported at {iso(expectation.reported_at)})."
        )
    return f" Its start is not estimated: {obstacle}." if obstacle else ""


def _describe_account(clusters: Sequence[VerdictRow]) -> str:
    """Describe the account charged on the chosen cluster in a sentence that follows another."""
    for cluster in clusters:
        if cluster["chosen"] and cluster["account"]:
            return f" It is charged to account {cluster['account']} on {cluster['cluster']}."
    return ""


def _current_job(job_row: dict[str, Any]) -> Job:
    """Decode a job as it was modified last."""
    return msgspec.json.decode(job_row["modified_spec"] or job_row["spec"], type=Job)


def _describe_gres(
    job_row: dict[str, Any], row: dict[str, Any], clusters: Sequence[VerdictRow]
) -> str:
    """Describe the alternative of its generic resources that a task gets, in a sentence."""
    state, choice = State(row["state"]), row["gres_choice"]
    if choice is not None and state not in QUEUED_OR_HELD:
        job = _current_job(job_row)
        verb = "requested" if state in FINAL else "requests"
        gres = _counts(job.gres_choices[choice])
        return f" Of its alternatives it {verb} {gres} on {row['cluster']}."
    choices = [c for c in clusters if c["gres"]]
    texts = ", ".join(f"{c['gres']} on {c['cluster']}" for c in choices if c["eligible"])
    return f" Of its alternatives it would request {texts}." if texts else ""


def _describe_licences(job_row: dict[str, Any], row: dict[str, Any]) -> str:
    """Describe the alternative of its licences that a task has leased, in a sentence."""
    if row["licence_choice"] is None or State(row["state"]) in QUEUED_OR_HELD:
        return ""
    job = _current_job(job_row)
    verb = "had" if State(row["state"]) in FINAL else "has"
    licences = _counts(job.licence_choices[row["licence_choice"]])
    return f" Of its alternative licences it {verb} {licences}."


def _describe_standing(standing: Standing | None) -> str:
    """Describe where a user stands by fair share in a sentence that follows another."""
    if standing is None:
        return ""
    account = f" in account {standing.account}" if standing.account else ""
    return (
        f" User {standing.user}{account} has {standing.used_share:.1%} of all use by a share of "
        f"{standing.share:.1%}, and place {standing.place} in the order of fair share."
    )


def _describe_state(row: dict[str, Any], clusters: Sequence[VerdictRow], cause: str) -> str:
    """Describe the state of a task and its cause in a sentence."""
    location = f"on {row['cluster']}" if row["cluster"] else "in metasched"
    match State(row["state"]):
        case State.HELD if cause == HELD_AFTER_BACKUP:
            return f"It is held: {cause}."
        case State.HELD if row["reason"].startswith(MANAGER_REASON):
            return f"It is held, {cause}; change it, or release it with `metasched release`."
        case State.HELD:
            return "It is held; release it with `metasched release`."
        case State.QUEUED if row["reason"] == "begin_time":
            return "It waits for its begin time."
        case State.QUEUED if row["reason"] == "dependency":
            return f"It waits for other jobs: {cause}."
        case State.QUEUED if cause == WAITED_FOR_LICENCES:
            return "It waits for its licences."
        case State.QUEUED if row["reason"] in ("licence_busy", "licence_unknown"):
            return f"It waits for its licences: {cause}."
        case State.QUEUED if row["reason"] in ("limit_user", "limit_class"):
            return f"It waits until tasks within its limits have ended: {cause}."
        case State.QUEUED if row["reason"] == "limit_array":
            return f"It waits until fewer tasks of its array ({row['array']}) are active."
        case State.QUEUED:
            reasons = "; ".join(f"{c['cluster']}: {c['text']}" for c in clusters if c["text"])
            return f"It waits {location}: {reasons or cause}."
        case State.DISPATCHING:
            return f"It is being dispatched to {row['cluster']} ({cause})."
        case State.PENDING:
            manager_reason = row["reason"].removeprefix(MANAGER_REASON) or "no reason reported yet"
            return f"It waits in the queue {location}: {manager_reason}."
        case State.UNKNOWN:
            return f"Its state {location} is unknown: {cause}."
        case State.RUNNING | State.SUSPENDED:
            return f"It is {row['state']} {location} since {iso(row['started'])}."
        case final_state:
            return f"It has ended {location}: {final_state}{f' ({cause})' if cause else ''}."


def _describe_doubt(task: Task | None, cause: str) -> str:
    """Describe what a task awaits whose dispatch got no answer, in a sentence after another."""
    attempt = None if task is None else task.attempt
    if attempt is None or not attempt.awaits_look:
        return ""
    if attempt.state is not State.UNKNOWN and not cause.startswith(NO_ANSWER):
        return ""  # its command is under way
    return (
        f" Its dispatch got no answer and may still arrive. Once {attempt.cluster} has answered "
        "and had time to handle what waits there, a second look decides whether it is sent again."
    )


def cluster_verdicts(
    service: SchedulerService, task: Task, chosen_cluster: str | None
) -> list[VerdictRow]:
    """Return eligibility, load and obstacle of each cluster for a task."""
    clusters = {cluster.name: cluster for cluster in service.core.clusters}
    return [
        {
            "cluster": verdict.cluster,
            "eligible": verdict.obstacle is None,
            "reason": verdict.obstacle.reason if verdict.obstacle else None,
            "text": verdict.obstacle.text if verdict.obstacle else "",
            "load": verdict.load,
            "count": verdict.pending_jobs,
            "chosen": verdict.cluster == chosen_cluster,
            "account": verdict.account,
            "gres": _chosen_gres(service, task, clusters[verdict.cluster]),
            "nodes": _node_fit(service, task, clusters[verdict.cluster]),
        }
        for verdict in service.core.assess_clusters(task)
    ]


def _chosen_gres(service: SchedulerService, task: Task, cluster: Cluster) -> str | None:
    """Return which of its alternative generic resources a job gets there; None: it has none."""
    info, _ = service.core.cluster_status(cluster.name)
    if not task.job.gres_alternatives:
        return None
    attempt = task.attempt
    if attempt and attempt.cluster == cluster.name and attempt.gres_choice is not None:
        return _counts(task.job.gres_choices[attempt.gres_choice])
    if info is None:
        return None
    try:
        return _counts(translate_job(task.job, cluster, info).gres)
    except UnmappedNameError:
        return None


def _counts(resources: Mapping[str, int]) -> str:
    """Write counts as in `gpu:a100:2,disk:1`."""
    return ",".join(f"{name}:{count}" for name, count in resources.items())


def _node_fit(service: SchedulerService, task: Task, cluster: Cluster) -> NodeFitRow | None:
    """Return which nodes of a cluster cannot hold a waiting task; None: it has no nodes there."""
    info, unreachable_reason = service.core.cluster_status(cluster.name)
    if unreachable_reason or task.state not in _WAITING:
        return None
    fit = describe_fit(task.job, cluster, info)
    if fit is None:
        return None
    return {
        "partition": fit.partition,
        "count": fit.nodes,
        "excluded": [asdict(exclusion) for exclusion in fit.exclusions],
        "other_partitions": list(fit.other_partitions),
        "text": fit.text,
    }
