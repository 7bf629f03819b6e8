"""Jobs are submitted: all of a request or none."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request

from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.launcher_client import Launcher
from metasched.api.explanations import clusters_for
from metasched.api.modifications import LATEST
from metasched.api.request import Running, Who
from metasched.api.reservations import within
from metasched.client.job_request import LONGEST_NAME
from metasched.client.schemas import Request as JobRequest
from metasched.client.schemas import Submission
from metasched.core.events import Submitted
from metasched.core.tasks import Task
from metasched.daemon.service import Engine
from metasched.db.ledger import Stored, encode
from metasched.db.schema import digest
from metasched.errors import Unreadable, Wrong
from metasched.model.arrays import parse_array
from metasched.model.dependencies import Fate, parse_dependency
from metasched.model.job import Job, Payload
from metasched.model.output_paths import DEFAULT, DEFAULT_OF_ARRAY, check, differs, settled
from metasched.policies.classify import too_late
from metasched.units import MOST, iso

router = APIRouter()


@router.post("/jobs")
async def submit(
    request: Request, who: Who, running: Running, submission: Annotated[Submission, Body()]
) -> dict[str, Any]:
    """Accept all jobs or none: check everything, then store, classify and assign in one go."""
    if (path := running.settings.launcher) is not None:
        # one thread for each user, whose directories may be slow to answer
        async with request.app.state.entering[who.user]:
            await asyncio.to_thread(_may_submit, Launcher(path, ""), who.user, submission)
    if not submission.jobs:
        raise Wrong(422, "no job in the request; send one or more")
    now = time.time()
    owner = (who.user, running.settings.class_of(who.user))
    new = [_accepted(running, owner, request, submission, now) for request in submission.jobs]
    fates = [fates_of(running, stored.job) for stored in new]
    warnings = [warnings_of(stored.job) + _shared(stored) for stored in new]
    if submission.strict and (told := next((w[0] for w in warnings if w), None)):
        raise Wrong(422, f"{told}; mend it, or leave out --strict")
    if submission.dry_run:
        return {
            "jobs": [
                _trial(running, stored.job, w) for stored, w in zip(new, warnings, strict=True)
            ]
        }
    texts = dict(submission.scripts)
    texts |= {d: encode(e) for d, e in submission.environments.items()}
    keyed = {given: digest(text) for given, text in texts.items()}
    running.take(
        *(Submitted(now, s.job, known) for s, known in zip(new, fates, strict=True)),
        stored=[replace(s, script=keyed[s.script], environment=keyed[s.environment]) for s in new],
        texts={keyed[given]: text for given, text in texts.items()},
    )
    answers = []
    for stored, said in zip(new, warnings, strict=True):
        tasks = running.core.tasks_of(stored.job.id)
        first = tasks[0] if tasks else None
        answers.append(
            {
                "job": stored.job.id,
                "priority": first.priority if first else None,
                "cluster": first.attempt.cluster if first and first.attempt else None,
                "tasks": len(stored.job.indices) if stored.job.array else None,
                "warnings": said,
            }
        )
    return {"jobs": answers}


def _may_submit(launcher: Launcher, user: str, submission: Submission) -> None:
    """Wrong if the site lets the user have no jobs, or not in one of their directories."""
    try:
        for directory in {job.directory for job in submission.jobs}:
            launcher.enter(user, directory)
    except Refused as error:
        raise Wrong(403, f"{error.reason}; choose a directory that is yours to enter") from None
    except Unreachable as error:
        raise Wrong(503, f"{error.reason}; nothing changed, try again soon") from None


def _accepted(
    engine: Engine,
    owner: tuple[str, str],
    request: JobRequest,
    submission: Submission,
    now: float,
) -> Stored:
    """The job that a request of `owner` (user, class) makes.

    Wrong if it makes no sense or can never run here.
    """
    user, user_class = owner
    request = within(engine, user, request, now)
    for kind, given, texts in (
        ("script", request.script, submission.scripts),
        ("environment", request.environment, submission.environments),
    ):
        if given not in texts:
            raise Wrong(422, f"{kind} {given} is not in the request; send its text")
    if not request.directory.startswith("/"):
        raise Wrong(422, f"directory {request.directory!r} is not absolute; give the whole path")
    _check_texts(request)
    names = [cluster.name for cluster in engine.core.clusters]
    for cluster, words in request.native.items():
        if cluster not in names:
            raise Wrong(422, f"--native {cluster}: no such cluster; there are {', '.join(names)}")
        try:
            shlex.split(words)
        except ValueError as error:
            raise Wrong(422, f"--native {cluster}: {error} in {words!r}; close it") from None
    id = 0 if submission.dry_run else engine.ledger.next_job()
    try:
        _check_array(request, engine.settings.max_array_tasks)
        if request.dependency is not None:
            parse_dependency(request.dependency)
        default = DEFAULT if request.array is None else DEFAULT_OF_ARRAY
        out, err = (
            None if path is None else _settled(path, request, id, user)
            for path in (request.output or default, request.error)
        )
    except Unreadable as error:
        raise Wrong(422, f"{error.what}, in the request; {error.mend}") from None
    assert out is not None
    try:
        job = Job(
            id=id,
            submitted=now,
            estimated=request.time_limit or default_time(engine, request.partition),
            cpus=request.tasks * request.cpus_per_task,
            tasks=request.tasks,
            deadline=request.deadline,
            user=user,
            user_class=user_class,
            owner_priority=request.urgency,
            name=request.name,
            nodes=request.nodes,
            memory=request.memory,
            memory_per_cpu=request.memory_per_cpu,
            gres=request.gres,
            exclusive=request.exclusive,
            time_limit=request.time_limit,
            begin=request.begin,
            held=request.held,
            requeue=request.requeue,
            account=request.account,
            partition=request.partition,
            qos=request.qos,
            constraint=request.constraint,
            clusters=request.clusters,
            native=request.native,
            licences=request.licences,
            array=request.array,
            dependency=request.dependency,
            kill_on_invalid_dep=request.kill_on_invalid_dep,
            reservation=request.reservation,
            directory=request.directory,
            writes=(out, err) if err else (out,),
        )
    except ValueError as error:
        raise Wrong(422, f"{error}, in the request; change it") from None
    if (why := engine.core.refusal(job)) is not None:
        raise Wrong(403, why)
    payload = Payload(
        script="",
        arguments=request.arguments,
        directory=request.directory,
        output=out,
        error=err,
        umask=request.umask,
    )
    return Stored(job=job, script=request.script, environment=request.environment, payload=payload)


def _check_array(request: JobRequest, most: int) -> None:
    """Unreadable if the range of an array is none; Wrong if the site allows no such number."""
    if request.array is not None and (tasks := len(parse_array(request.array).indices)) > most:
        raise Wrong(403, f"an array of {tasks} tasks, the site allows {most}; submit it in parts")


def fates_of(engine: Engine, job: Job) -> tuple[Fate, ...]:
    """What has become of the jobs that one depends on.

    Wrong if its owner has no such job, or one of its tasks would wait for a task that is none.
    """
    if job.dependency is None:
        return ()
    dependency = parse_dependency(job.dependency)
    fates = {target: engine.ledger.fate(target) for target in dependency.targets}
    for target, found in fates.items():
        # another user's job is as good as none: the answer must not tell that it is there
        if found is None or engine.ledger.owner(target.job) != job.user:
            told = f"no job {target} of yours to wait for; see `metasched status --all`"
            raise Wrong(404, told)
    for term in dependency.terms:
        if term.kind == "aftercorr" and term.target and job.array and term.target.index is None:
            theirs = engine.ledger.indices(term.target.job)
            if theirs and (alone := sorted(set(job.indices) - set(theirs))):
                raise Wrong(
                    422,
                    f"{term}: job {term.target.job} has no task {alone[0]}, --dependency; "
                    "give both the same tasks",
                )
    return tuple(found for found in fates.values() if found is not None)


def _shared(stored: Stored) -> list[str]:
    """A warning if the tasks of an array write over each other's output."""
    for path in stored.job.writes:
        if len(stored.job.indices) > 1 and not differs(path) and not path.startswith("/dev/"):
            return [f"all tasks write to one file, {path}: put %a into its name"]
    return []


def _check_texts(request: JobRequest) -> None:
    """Wrong for what no database, no manager and no terminal can carry."""
    for key, value in vars(request).items():
        for text in _texts(value):
            if "\0" in text or not (text.isascii() or text == _utf8(text)):
                raise Wrong(422, f"{key} holds bytes that are no text; leave them out")
    if len(request.name) > LONGEST_NAME or any(ord(c) < 32 for c in request.name):
        raise Wrong(
            422, f"name: control characters or more than {LONGEST_NAME}; write a shorter one"
        )
    for key in ("tasks", "cpus_per_task", "nodes", "memory", "memory_per_cpu", "time_limit"):
        if (getattr(request, key) or 1) > MOST:
            raise Wrong(422, f"{key} is more than {MOST}; ask for less")
    for key in ("begin", "deadline"):
        if not 0 <= (getattr(request, key) or 0) < LATEST:
            raise Wrong(422, f"{key} is no time of this world; give another")
    if not 0 <= request.umask <= 0o777:
        raise Wrong(422, f"umask {request.umask} makes no sense; give 0 to 511")


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from (str(word) for pair in value.items() for word in pair)
        case tuple() | list():
            yield from map(str, value)


def _utf8(text: str) -> str:
    return text.encode(errors="replace").decode()


def default_time(engine: Engine, partition: str | None) -> float:
    """Seconds of a job without a limit: its partition's default, else the policy's."""
    if partition is not None:
        for cluster in engine.core.clusters:
            facts, _ = engine.core.view(cluster.name)
            name = cluster.maps.get("partition", {}).get(partition, partition)
            if facts and (found := facts.partition(name)) and found.default_time:
                return found.default_time
    return engine.settings.policy.default_time


def _settled(pattern: str, request: JobRequest, id: int, user: str) -> str:
    check(pattern)
    array = request.array is not None
    return settled(pattern, id, array, request.name, user, request.directory)


def warnings_of(job: Job) -> list[str]:
    if job.deadline is not None and job.deadline <= job.submitted:
        return [f"the deadline {iso(job.deadline)} has passed"]
    if too_late(job):
        return [f"the deadline {iso(job.deadline)} cannot be met: the job may run until after it"]
    return []


def _trial(engine: Engine, job: Job, warnings: list[str]) -> dict[str, Any]:
    """What a submission would do now."""
    priority = engine.core.classifier.peek(job)
    trial = Task(job, 0, priority, 0.0)
    fit = [v.cluster for v in engine.core.verdicts(trial) if v.unfit is None]
    chosen = engine.core.dispatch.choose(job, priority, fit) if fit and not job.held else None
    return {
        "job": None,
        "priority": priority,
        "cluster": chosen,
        "warnings": warnings,
        "why": {
            "parts": [part._asdict() for part in engine.core.classifier.parts(job)],
            "clusters": clusters_for(engine, trial, chosen),
        },
    }
