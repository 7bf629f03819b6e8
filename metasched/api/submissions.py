"""Route that submits jobs: all jobs of a request, or none."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Annotated

from fastapi import APIRouter, Body, Request
from fastapi.responses import Response
from msgspec import structs

from metasched.adapters.launcher_client import LauncherClient
from metasched.api.answers import encoded
from metasched.api.expected_starts import (
    deadline_warning,
    eligible_clusters,
    start_if_submitted,
)
from metasched.api.explanations import cluster_verdicts, ratings_row
from metasched.api.identity import Caller
from metasched.api.modifications import MAX_EPOCH
from metasched.api.notifications import apply_mail
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.slurm_options import apply_slurm_options
from metasched.api.struct_body import StructBody, StructRoute
from metasched.api.submission_keys import CurrentSubmissionKey, earlier_answer
from metasched.client.job_answers import PriorityPart, SubmittedJob, SubmittedJobs
from metasched.client.options import MAX_NAME_LENGTH
from metasched.client.schemas import JobRequest, SubmitRequest
from metasched.core.dependency_status import TargetSummary
from metasched.core.events import JobSubmitted
from metasched.core.tasks import Task
from metasched.daemon.reserved_jobs import apply_reservation
from metasched.daemon.service import SchedulerService
from metasched.db.ledger import StoredJob, encode
from metasched.db.schema import digest
from metasched.db.submission_keys import Receipt
from metasched.errors import ApiError, ParseError
from metasched.forecast.estimates import StartEstimate
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.arrays import parse_array
from metasched.model.dependencies import (
    Dependency,
    DependencyTarget,
    count_terms,
    parse_dependency,
)
from metasched.model.job import Job, Payload
from metasched.model.output_paths import (
    DEFAULT,
    DEFAULT_OF_ARRAY,
    check_pattern,
    expand_job_fields,
    varies_by_task,
)
from metasched.model.request_bounds import MAX_OPTION_TEXT, MAX_SCRIPT, MAX_SUBMITTED_TERMS
from metasched.model.units import MAX_NUMBER, iso
from metasched.plug_ins.host import Ratings
from metasched.policies.classify import cannot_meet_deadline
from metasched.policies.heuristic import ClusterTraits
from metasched.policies.plug_in_ratings import rated_job

log = logging.getLogger("metasched")

MAX_JOBS_WITH_START = 100  # jobs of a submission with an expected start in the answer; look-ups

router = APIRouter(route_class=StructRoute)

# texts of options that do not count for MAX_OPTION_TEXT
_LIMITED_ELSEWHERE = {"arguments", "array", "comment", "dependency", "name"}

# Threads that check users' directories at a time. They are not those of other requests: a file
# system that hangs then delays submissions alone.
MAX_DIRECTORY_CHECKS = 32


@router.post("/jobs", response_model=SubmittedJobs)
async def submit(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    key: CurrentSubmissionKey,
    submission: Annotated[SubmitRequest, StructBody(), Body()],
) -> Response:
    """Validate all jobs, then store, classify and assign them in a single transaction."""
    if (answer := earlier_answer(service, key, time.time())) is not None:
        return encoded(answer)  # before the checks: they may come out otherwise now
    texts, sizes = _check_sizes(submission)
    if (launcher_path := service.settings.launcher) is not None:
        # a thread per user at a time: file systems of their directories may be slow
        async with request.app.state.launcher_locks[caller.user]:
            await asyncio.get_running_loop().run_in_executor(
                request.app.state.directory_checks,
                _check_may_submit,
                LauncherClient(launcher_path, ""),
                caller.user,
                submission,
            )
        # again, now that nothing else comes between this look and the transaction
        if (answer := earlier_answer(service, key, time.time())) is not None:
            return encoded(answer)
    now = time.time()
    requests, passed_on = zip(
        *(apply_slurm_options(job, service.settings.clusters) for job in submission.jobs),
        strict=True,
    )
    requests, mail_warnings = zip(
        *(apply_mail(service.settings.mail, caller.user, job) for job in requests), strict=True
    )
    ratings: list[Ratings] = [{} for _ in requests]
    if service.plug_ins.plug_ins:
        drafts = [
            _accept(service, caller, job, submission, sizes, now, takes_id=False).job
            for job in requests
        ]
        ratings = await service.plug_ins.ask(drafts, _cluster_traits(service), caller.user)
        # as above
        if (answer := earlier_answer(service, key, time.time())) is not None:
            return encoded(answer)
        now = time.time()
    with service.ledger.kept_ids():
        accepted = [
            _rated(service, _accept(service, caller, job, submission, sizes, now), rated)
            for job, rated in zip(requests, ratings, strict=True)
        ]
        new_tasks = [(stored.job, len(stored.job.indices)) for stored in accepted]
        if (refusal := service.core.limits.admission_refusal(new_tasks)) is not None:
            raise ApiError(403, refusal)
        targets = dependency_targets(service, caller.user, [stored.job for stored in accepted])
    warnings = [
        option_warnings
        + unsent_mail
        + deadline_warnings(stored.job)
        + _shared_output_warnings(stored)
        for stored, option_warnings, unsent_mail in zip(
            accepted, passed_on, mail_warnings, strict=True
        )
    ]
    if submission.strict and (warning := next((w[0] for w in warnings if w), None)):
        raise ApiError(422, f"{warning}; fix it, or leave out --strict")
    if submission.dry_run:
        return encoded(
            {
                "jobs": [
                    _dry_run(service, stored.job, job_warnings)
                    for stored, job_warnings in zip(accepted, warnings, strict=True)
                ]
            }
        )
    digests = {client_digest: digest(text) for client_digest, text in texts.items()}

    @cache  # of the step: the answer is stored with the key
    def answer_now() -> SubmittedJobs:
        accepted_jobs = zip(accepted, warnings, strict=True)
        with_start = len(accepted) <= MAX_JOBS_WITH_START
        return {
            "jobs": [_answer_row(service, stored.job, w, with_start) for stored, w in accepted_jobs]
        }

    await service.apply_events(
        *(
            JobSubmitted(now, stored.job, job_targets)
            for stored, job_targets in zip(accepted, targets, strict=True)
        ),
        stored=[
            replace(job, script=digests[job.script], environment=digests[job.environment])
            for job in accepted
        ],
        new_texts={digests[client_digest]: text for client_digest, text in texts.items()},
        receipt=None if key is None else Receipt(key, now, answer_now),
    )
    return encoded(answer_now())


def _answer_row(
    service: SchedulerService, job: Job, warnings: list[str], with_start: bool
) -> SubmittedJob:
    """Return the row of an accepted job in the answer to a submission."""
    tasks = service.core.open_tasks.get(job.id)
    first_task = next(iter(tasks.values())) if tasks else None
    start = _start_of(service, job, first_task) if first_task and with_start else None
    return {
        "job": job.id,
        "priority": first_task.priority if first_task else None,
        "cluster": first_task.attempt.cluster if first_task and first_task.attempt else None,
        "tasks": len(job.indices) if job.array else None,
        "warnings": _with_deadline(warnings, job, start),
        "expected_start": start and iso(start.median),
        "expected_early": start and iso(start.early),
        "expected_late": start and iso(start.late),
    }


def _start_of(service: SchedulerService, job: Job, task: Task) -> StartEstimate | None:
    """Return when the first task of a job that the core has accepted is expected to start."""
    try:
        clusters = [task.attempt.cluster] if task.attempt else eligible_clusters(service, task)
        return start_if_submitted(service, job, clusters)
    except Exception:  # with an error here, the core would be ahead of the database
        log.exception("the expected start of job %d is unknown; please report it", job.id)
        return None


def _with_deadline(warnings: list[str], job: Job, start: StartEstimate | None) -> list[str]:
    """Return the warnings, with a warning if the queues endanger the deadline of a job."""
    warning = deadline_warning(job, start)
    return warnings if warning is None else [*warnings, warning]


def _check_may_submit(launcher: LauncherClient, user: str, submission: SubmitRequest) -> None:
    """Raise ApiError if the site refuses jobs of the user, or the user cannot enter a directory."""
    try:
        for directory in {job.directory for job in submission.jobs}:
            launcher.check_access(user, directory)
    except Refused as error:
        remedy = "choose a directory that you can enter"
        if not error.reason.startswith("directory "):
            remedy = "ask the site"
        raise ApiError(403, f"{error.reason}; {remedy}") from None
    except Unreachable as error:
        raise ApiError(503, f"{error.reason}; nothing changed, try again soon") from None


def _accept(
    service: SchedulerService,
    owner: Caller,
    request: JobRequest,
    submission: SubmitRequest,
    sizes: Mapping[str, int],
    now: float,
    takes_id: bool = True,
) -> StoredJob:
    """Return the job for a request of `owner`. `sizes`: bytes of its texts, by their names.

    Its id is 0 unless it `takes_id`, and in a dry run. Raise ApiError if it is invalid, or can
    never run on this site.
    """
    user = owner.user
    request = apply_reservation(service, user, request, now, owner.visible_owner)
    for field_name, text_digest, texts in (
        ("script", request.script, submission.scripts),
        ("environment", request.environment, submission.environments),
    ):
        if text_digest not in texts:
            raise ApiError(422, f"{field_name} {text_digest} is not in the request; send its text")
    if not request.directory.startswith("/"):
        raise ApiError(422, f"directory {request.directory!r} is not absolute; give the whole path")
    _check_texts(request)
    cluster_names = [cluster.name for cluster in service.core.clusters]
    for cluster, native_options in request.native.items():
        if cluster not in cluster_names:
            raise ApiError(
                422, f"--native {cluster}: no such cluster; use {', '.join(cluster_names)}"
            )
        try:
            shlex.split(native_options)
        except ValueError as error:
            raise ApiError(
                422, f"--native {cluster}: {error} in {native_options!r}; close it"
            ) from None
    try:
        tasks = _count_tasks(request, service.settings.max_array_tasks)
        job_id = 0
        if takes_id and not submission.dry_run:
            job_id = service.ledger.next_job(tasks)
        if request.dependency is not None:
            dependency = _with_tasks(service, parse_dependency(request.dependency), user)
            request = structs.replace(request, dependency=dependency or request.dependency)
        default_output = DEFAULT if request.array is None else DEFAULT_OF_ARRAY
        output_path, error_path = (
            None if path is None else _expand_output_path(path, request, job_id, user)
            for path in (request.output or default_output, request.error)
        )
    except ParseError as error:
        raise ApiError(422, f"{error.problem}, in the request; {error.fix}") from None
    assert output_path is not None
    try:
        job = Job(
            **request.spec_values,
            id=job_id,
            submitted=now,
            estimated=request.time_limit or default_time_limit(service, request.partition),
            cpus=request.tasks * request.cpus_per_task,
            user=user,
            user_class=owner.user_class,
            groups=owner.limited_groups,
            group=owner.group,
            owner_priority=request.urgency,
            writes=(output_path, error_path) if error_path else (output_path,),
            stored_bytes=sizes[request.script]
            + sizes[request.environment]
            + sum(len(argument.encode()) for argument in request.arguments),
        )
    except ValueError as error:
        raise ApiError(422, f"{error}, in the request; change it") from None
    if (refusal := service.core.rejection_reason(job)) is not None:
        raise ApiError(403, refusal)
    payload = Payload(
        script="",
        arguments=request.arguments,
        directory=request.directory,
        output=output_path,
        error=error_path,
        umask=request.umask,
    )
    return StoredJob(
        job=job, script=request.script, environment=request.environment, payload=payload
    )


def _cluster_traits(service: SchedulerService) -> list[ClusterTraits]:
    """Return the clusters as heuristics of the site see them."""
    infos = {c.name: service.core.cluster_status(c.name)[0] for c in service.core.clusters}
    return [
        ClusterTraits(c.name, c.adapter, c.benchmark, info.cpus if (info := infos[c.name]) else 0)
        for c in service.core.clusters
    ]


def _rated(service: SchedulerService, stored: StoredJob, ratings: Ratings) -> StoredJob:
    """Return an accepted job with its ratings by heuristics of the site."""
    if not ratings:
        return stored
    return replace(stored, job=rated_job(stored.job, ratings, service.settings.policy))


def _with_tasks(service: SchedulerService, dependency: Dependency, user: str) -> str:
    """Return a dependency with tasks in the place of their own numbers; "" if it has no numbers."""
    targets = dependency.targets
    service.store_group()  # a target may be in it
    selectors = service.ledger.replace_task_numbers([(t.job, t.index) for t in targets], user)
    by_number = {
        target: DependencyTarget(*selector)
        for target, selector in zip(targets, selectors, strict=True)
        if selector != (target.job, target.index)
    }
    if not by_number:
        return ""
    terms = (
        replace(term, target=by_number.get(term.target, term.target)) if term.target else term
        for term in dependency.terms
    )
    return ("?" if dependency.any_term else ",").join(map(str, terms))


def _count_tasks(request: JobRequest, max_tasks: int) -> int:
    """Return the number of tasks of a job.

    Raise ParseError for an invalid array range, ApiError if the array is too large.
    """
    tasks = 1 if request.array is None else len(parse_array(request.array).indices)
    if tasks > max_tasks:
        raise ApiError(
            403, f"an array of {tasks} tasks, the site allows {max_tasks}; submit it in parts"
        )
    return tasks


def dependency_targets(
    service: SchedulerService, user: str, jobs: Sequence[Job]
) -> list[tuple[TargetSummary, ...]]:
    """Return the present states of the jobs that each of a user's `jobs` depends on.

    One look-up for all of them. Raise ApiError if the user has no such job, or a task depends on a
    task that does not exist.
    """
    if all(job.dependency is None for job in jobs):
        return [()] * len(jobs)
    service.store_group()  # a target may have ended in it
    # only the targets stay in memory: the terms of all jobs together may be many
    targets = [
        [] if job.dependency is None else parse_dependency(job.dependency).targets for job in jobs
    ]
    summaries = service.ledger.target_summaries(set(chain.from_iterable(targets)), user)
    for target in chain.from_iterable(targets):
        # the response must not reveal that another user's job exists
        if target not in summaries:
            message = f"no job {target} of yours to wait for; see `metasched status --all`"
            raise ApiError(404, message)
    _check_counterparts(service, jobs)
    return [tuple(summaries[target] for target in of_job) for of_job in targets]


def _check_counterparts(service: SchedulerService, jobs: Sequence[Job]) -> None:
    """Raise ApiError if a task of an array would wait for a task that does not exist."""
    of_arrays = {
        (job.array, term.target.job): term
        for job in jobs
        if job.array and job.dependency and "aftercorr" in job.dependency
        for term in parse_dependency(job.dependency).terms
        if term.dependency_type == "aftercorr" and term.target and term.target.index is None
    }
    ranges = service.ledger.array_ranges({target_job for _, target_job in of_arrays})
    unmatched: dict[tuple[str, str], list[int]] = {}  # by both ranges
    for (array, target_job), term in of_arrays.items():
        if (target_range := ranges.get(target_job)) is None:
            continue
        if (array, target_range) not in unmatched:
            unmatched[array, target_range] = sorted(
                set(parse_array(array).indices).difference(parse_array(target_range).indices)
            )
        if missing := unmatched[array, target_range]:
            raise ApiError(
                422,
                f"{term}: job {target_job} has no task {missing[0]}, --dependency; "
                "give both the same tasks",
            )


def _shared_output_warnings(stored: StoredJob) -> list[str]:
    """Warn if the tasks of an array overwrite each other's output."""
    for path in stored.job.writes:
        if (
            len(stored.job.indices) > 1
            and not varies_by_task(path)
            and not path.startswith("/dev/")
        ):
            return [f"all tasks write to the same file, {path}: put %a into its name"]
    return []


def _check_sizes(submission: SubmitRequest) -> tuple[dict[str, str], dict[str, int]]:
    """Return the texts of a submission and their bytes, by name. ApiError if any is too large.

    This is all that happens to each job before the user's rights are known.
    """
    if not submission.jobs:
        raise ApiError(422, "no job in the request; send one or more")
    for job in submission.jobs:
        _check_size(job)
    terms = sum(count_terms(job.dependency) for job in submission.jobs if job.dependency)
    if terms > MAX_SUBMITTED_TERMS:
        problem = f"{terms} jobs to wait for in the request, at most {MAX_SUBMITTED_TERMS}"
        raise ApiError(422, f"{problem}; submit fewer jobs at once")
    texts = dict(submission.scripts)
    texts |= {name: encode(variables) for name, variables in submission.environments.items()}
    sizes = {name: len(text.encode()) for name, text in texts.items()}
    for name, size in sizes.items():
        if size > MAX_SCRIPT:
            kind = "scripts" if name in submission.scripts else "environments"
            raise ApiError(
                413, f"{size} bytes, {kind}.{name}, at most {MAX_SCRIPT}; let it read a file"
            )
    return texts, sizes


def _check_size(request: JobRequest) -> None:
    """Raise ApiError if the options of a job are too long: they stay in memory while it is open."""
    values = structs.asdict(request)
    texts = (
        text for key in values.keys() - _LIMITED_ELSEWHERE for text in _strings_in(values[key])
    )
    if (size := sum(map(len, texts))) > MAX_OPTION_TEXT:
        raise ApiError(
            422, f"options of {size} characters together, at most {MAX_OPTION_TEXT}; shorten them"
        )


def _check_texts(request: JobRequest) -> None:
    """Raise ApiError for values that the database or a manager cannot store."""
    for key, value in structs.asdict(request).items():
        for text in _strings_in(value):
            if "\0" in text:
                raise ApiError(422, f"{key} holds bytes that are not text; leave them out")
    if len(request.name) > MAX_NAME_LENGTH or any(ord(c) < 32 for c in request.name):
        raise ApiError(
            422, f"name: control characters or over {MAX_NAME_LENGTH} characters; give another"
        )
    for key in ("tasks", "cpus_per_task", "nodes", "memory", "memory_per_cpu", "time_limit"):
        if (getattr(request, key) or 1) > MAX_NUMBER:
            raise ApiError(422, f"{key} is more than {MAX_NUMBER}; request less")
    for key in ("begin", "deadline"):
        if not 0 <= (getattr(request, key) or 0) < MAX_EPOCH:
            raise ApiError(422, f"{key} is out of range; give another time")
    if not 0 <= request.umask <= 0o777:
        raise ApiError(422, f"umask {request.umask} is out of range; give 0 to 511")


def _strings_in(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from (str(element) for pair in value.items() for element in pair)
        case tuple() | list():
            yield from map(str, value)


def default_time_limit(service: SchedulerService, partition: str | None) -> float:
    """Return the time limit of a job that gives none: of its partition, else of the policy."""
    if partition is not None:
        for cluster in service.core.clusters:
            info, _ = service.core.cluster_status(cluster.name)
            name = cluster.maps.get("partition", {}).get(partition, partition)
            if info and (partition_info := info.partition(name)) and partition_info.default_time:
                return partition_info.default_time
    return service.settings.policy.default_time


def _expand_output_path(pattern: str, request: JobRequest, job_id: int, user: str) -> str:
    check_pattern(pattern)
    array = request.array is not None
    return expand_job_fields(pattern, job_id, array, request.name, user, request.directory)


def deadline_warnings(job: Job) -> list[str]:
    """Warn if the deadline of a job has passed or cannot be met."""
    if job.deadline is not None and job.deadline <= job.submitted:
        return [f"the deadline {iso(job.deadline)} has passed"]
    if cannot_meet_deadline(job):
        return [f"the deadline {iso(job.deadline)} cannot be met: the time limit ends after it"]
    return []


def _dry_run(service: SchedulerService, job: Job, warnings: list[str]) -> SubmittedJob:
    """Return the outcome that a submission would have now."""
    priority = service.core.classifier.peek(job)
    task = Task(job, 0, priority, 0.0)
    eligible = eligible_clusters(service, task)
    chosen_cluster = (
        service.core.choose_cluster(job, priority, eligible) if eligible and not job.held else None
    )
    start = start_if_submitted(service, job, [chosen_cluster] if chosen_cluster else eligible)
    return {
        "job": None,
        "priority": priority,
        "cluster": chosen_cluster,
        "warnings": _with_deadline(warnings, job, start),
        "expected_start": start and iso(start.median),
        "expected_early": start and iso(start.early),
        "expected_late": start and iso(start.late),
        "why": {
            "parts": [
                PriorityPart(
                    heuristic=part.heuristic, contribution=part.contribution, weight=part.weight
                )
                for part in service.core.classifier.contributions(job)
            ],
            "ratings": ratings_row(job),
            "clusters": cluster_verdicts(service, task, chosen_cluster),
            "licence_choice": _free_choice(service, job),
        },
    }


def _free_choice(service: SchedulerService, job: Job) -> str | None:
    """Return the first of a job's alternative licences that is free now; None: none is."""
    for choice in job.licence_choices:
        statuses = {name: service.core.licences.status(name, time.time()) for name in choice}
        if all((statuses[name].free or 0) >= count for name, count in choice.items()):
            return ",".join(f"{name}:{count}" for name, count in choice.items())
    return None
