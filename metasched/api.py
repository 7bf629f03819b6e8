"""The HTTP API on the unix socket; the kernel says who is calling."""

import asyncio
import math
import secrets
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from fastapi import Body, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from metasched import licence_rows
from metasched.adapters.base import Refused, Unreachable
from metasched.adapters.launching import Launcher
from metasched.arrays import parse_array, parse_tasks
from metasched.breaker import Breaker
from metasched.daemon import RESTART, Daemon, Engine
from metasched.db.ledger import StorageFailed, StorageUncertain, Stored, digest, encode
from metasched.dependencies import Fate, parse_dependency
from metasched.events import (
    Asked,
    CoreEvent,
    Drained,
    LicenceSet,
    LicencesReleased,
    Modified,
    Requeued,
    Resumed,
    Submitted,
    Task,
    Wish,
)
from metasched.identity import Caller, Forbidden, Unknown, caller
from metasched.licences import MOST as MOST_LICENCES
from metasched.model import Job, Payload, State
from metasched.modify import LATEST, OURS, Changes, different, must_be_sent_anew
from metasched.modify import told as told_of
from metasched.patterns import (
    DEFAULT,
    DEFAULT_OF_ARRAY,
    check,
    differs,
    filled,
    first_node,
    settled,
)
from metasched.policies.classify import too_late
from metasched.probes.watch import Watch
from metasched.submit import LONGEST_NAME, Submission
from metasched.submit import Request as JobRequest
from metasched.transitions import BEGUN, FINAL, UNSTARTED, WITH_US
from metasched.units import MOST, Unreadable, iso

RECENT = 3600.0  # seconds for which ended jobs are listed without being asked for
LONGEST_WAIT = 60.0  # seconds
AGAIN = {"Retry-After": f"{2 * RESTART:.0f}"}
LONGEST_TOKEN = 366 * 86400.0  # seconds


class Wrong(Exception):
    """A request that changes nothing; `status` 4xx, the message says what, where, what to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Lifetime:
    """How long a token is good for."""

    seconds: float


@dataclass(frozen=True)
class Choice:
    """Which jobs a command is about: by id, or all open ones of a user or in a state."""

    jobs: tuple[str, ...] = ()
    user: str | None = None
    state: str | None = None
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


@dataclass(frozen=True)
class Drain:
    """How a cluster is drained: why, and whether jobs that wait there may stay."""

    reason: str = ""
    keep_pending: bool = False
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


@dataclass(frozen=True)
class Total:
    """How many of a licence there are; None: as configured."""

    total: int | None
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


def make_app(daemon: Daemon) -> FastAPI:
    """The application; what must last is the daemon's."""
    entering: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def who(request: Request) -> Caller:
        return await caller(request, daemon.settings, daemon.ledger)

    async def engine() -> Engine:
        if daemon.engine is None:
            raise Wrong(503, f"{daemon.trouble}; nothing changed, try again soon")
        return daemon.engine

    app = FastAPI(title="metasched", version=version("metasched"))
    Who = Annotated[Caller, Depends(who)]
    Running = Annotated[Engine, Depends(engine)]

    @app.exception_handler(Wrong)
    async def _wrong(_: Request, error: Wrong) -> JSONResponse:
        again = AGAIN if error.status == 503 else None
        return JSONResponse({"error": str(error)}, error.status, again)

    @app.exception_handler(Unknown)
    async def _unknown(_: Request, error: Unknown) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 401)

    @app.exception_handler(Forbidden)
    async def _forbidden(_: Request, error: Forbidden) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 403)

    @app.exception_handler(StorageFailed)
    async def _storage(_: Request, error: StorageFailed) -> JSONResponse:
        told = f"the database is away or takes no write ({error}); nothing changed, try again soon"
        return JSONResponse({"error": told}, 503, AGAIN)

    @app.exception_handler(StorageUncertain)
    async def _uncertain(_: Request, error: StorageUncertain) -> JSONResponse:
        told = f"the database was gone before it said whether it took this ({error})"
        mend = "look with `metasched status` whether it is done"
        return JSONResponse({"error": f"{told}; {mend}"}, 504)

    @app.exception_handler(Exception)
    async def _defect(_: Request, error: Exception) -> JSONResponse:
        told = f"a defect in the daemon ({type(error).__name__}); its log tells more, report it"
        return JSONResponse({"error": told}, 500)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        told = f"{error.detail}: {request.method} {request.scope['path']}; see /docs"
        return JSONResponse({"error": told}, error.status_code)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"] if step != "body")
        return JSONResponse({"error": f"{first['msg']}, {place or 'body'}; see /docs"}, 422)

    @app.get("/health")
    async def health(who: Who, running: Running) -> dict[str, Any]:
        return {
            "instance": running.core.instance,
            "version": version("metasched"),
            "started": iso(daemon.started),
            "user": who.user,
            "operator": who.operator,
        }

    @app.post("/jobs")
    async def submit(
        who: Who, running: Running, submission: Annotated[Submission, Body()]
    ) -> dict[str, Any]:
        if (path := running.settings.launcher) is not None:
            # one thread for each user, whose directories may be slow to answer
            async with entering[who.user]:
                await asyncio.to_thread(_may_submit, Launcher(path, ""), who.user, submission)
        return _submit(running, who.user, submission)

    @app.get("/jobs")
    def status(
        who: Who,
        job: Annotated[list[str] | None, Query()] = None,
        user: str | None = None,
        state: str | None = None,
        since: float | None = None,
        all: bool = False,
    ) -> Response:
        wanted = _ids(job) if job else None
        if wanted is not None:
            who.may_see(_owners(daemon, wanted))
        elif user is not None:
            who.may_see([user])
        elif not who.sees_all:
            user = who.user
        rows = daemon.ledger.status(
            wanted,
            user=user,
            states=_states(state),
            since=since,
            ended_since=None if all or wanted else time.time() - RECENT,
        )
        # written here, in a thread: it would be checked and written by the one that sends jobs
        told = msgspec.json.encode([_row(row) for row in rows])
        return Response(told, media_type="application/json")

    @app.get("/jobs/wait")
    async def wait(
        who: Who,
        running: Running,
        job: Annotated[list[str], Query()],
        timeout: Annotated[float, Query(ge=0)] = 30.0,
    ) -> list[dict[str, Any]]:
        wanted = _ids(job)
        who.may_see(_owners(daemon, wanted))
        async for _change in _changes(daemon, min(timeout, LONGEST_WAIT)):
            if daemon.engine is not running or not any(
                running.core.is_open(id, index) for id, index in wanted
            ):
                break
        return [_row(row) for row in daemon.ledger.status(wanted)]

    @app.post("/jobs/modify")
    async def modify(
        who: Who,
        running: Running,
        choice: Annotated[Choice, Body()],
        changes: Annotated[Changes, Body()],
    ) -> dict[str, Any]:
        return {"jobs": _modify(daemon, running, who, choice, changes)}

    @app.post("/jobs/{wish}")
    async def ask(
        who: Who,
        running: Running,
        wish: Wish,
        choice: Annotated[Choice, Body()],
    ) -> dict[str, Any]:
        return {"jobs": _ask(daemon, running, who, wish, choice)}

    @app.get("/jobs/{job}/story")
    def story(who: Who, job: str) -> dict[str, Any]:
        id, index = _known(daemon, who, job)
        return {
            "job": id,
            "events": [
                {
                    "time": iso(line["time"]),
                    "task": line["task_index"] if line["array"] else None,
                    "attempt": line["attempt"] or None,
                    "event": line["what"],
                    "from": line["before"],
                    "to": line["after"],
                    "cluster": line["cluster"],
                    "reason": line["reason"],
                    "cause": line["cause"],
                }
                for line in daemon.ledger.story(id, index)
            ],
        }

    @app.get("/jobs/{job}/explain")
    async def explain(who: Who, running: Running, job: str) -> dict[str, Any]:
        return _explain(daemon, running, who, *_known(daemon, who, job))

    @app.get("/jobs/{job}/output")
    def output(who: Who, job: str) -> dict[str, Any]:
        return _output(daemon, *_known(daemon, who, job))

    @app.get("/clusters")
    async def clusters(_: Who, running: Running) -> list[dict[str, Any]]:
        return [_cluster(running, c.name, c.adapter) for c in running.core.clusters]

    @app.post("/clusters/{name}/drain")
    async def drain(
        who: Who, running: Running, name: str, how: Annotated[Drain, Body()]
    ) -> dict[str, Any]:
        who.must_operate("drain clusters")
        adapter = _adapter(running, name)
        if len(how.reason) > LONGEST_NAME or not how.reason.isprintable():
            raise Wrong(422, f"reason: unprintable or more than {LONGEST_NAME}; write a line")
        running.take(Drained(time.time(), name, who.user, how.reason, how.keep_pending))
        return _cluster(running, name, adapter)

    @app.post("/clusters/{name}/resume")
    async def resume(who: Who, running: Running, name: str) -> dict[str, Any]:
        who.must_operate("resume clusters")
        adapter = _adapter(running, name)
        if running.core.drain(name) is not None:
            running.take(Resumed(time.time(), name, who.user))
        return _cluster(running, name, adapter)

    @app.get("/licences")
    async def licences(_: Who, running: Running) -> list[dict[str, Any]]:
        return licence_rows.rows(running.core, time.time())

    @app.get("/licences/servers")
    async def licence_servers(_: Who, running: Running) -> list[dict[str, Any]]:
        return [_licence_server(watch) for watch in running.watches]

    @app.post("/licences/release")
    async def release_licences(
        who: Who, running: Running, choice: Annotated[Choice, Body()]
    ) -> dict[str, Any]:
        who.must_operate("take back licences")
        return {"jobs": _release_licences(daemon, running, who, choice)}

    @app.post("/licences/{name}/total")
    async def set_licence(
        who: Who, running: Running, name: str, how: Annotated[Total, Body()]
    ) -> dict[str, Any]:
        who.must_operate("set how many licences there are")
        tokens = running.core.licences
        if (why := tokens.refusal({name: 0})) is not None:
            raise Wrong(404, why)
        if how.total is not None and not 0 <= how.total <= MOST_LICENCES:
            raise Wrong(422, f"{how.total} of a licence; give 0 to {MOST_LICENCES}")
        now = time.time()
        running.take(LicenceSet(now, name, how.total, who.user))
        return licence_rows.row(running.core, tokens.standing(name, now))

    @app.post("/tokens")
    async def create_token(
        who: Who, _: Running, wanted: Annotated[Lifetime, Body()]
    ) -> dict[str, Any]:
        if who.by_token:
            raise Forbidden("a token makes no tokens; call with MUNGE or from the daemon's host")
        if daemon.settings.tcp is None or not daemon.settings.tcp.tokens:
            raise Forbidden("no tokens are taken here; the site allows them in [tcp]")
        if not 0 < wanted.seconds <= LONGEST_TOKEN:
            raise Wrong(422, f"a token lasts up to {LONGEST_TOKEN / 86400:g} days; ask for that")
        secret, now = f"ms_{secrets.token_urlsafe(32)}", time.time()
        id = daemon.ledger.add_token(who.user, secret, now, now + wanted.seconds)
        return {"id": id, "token": secret, "expires": iso(now + wanted.seconds)}

    @app.get("/tokens")
    async def tokens(who: Who) -> list[dict[str, Any]]:
        rows = daemon.ledger.tokens(None if who.operator else who.user)
        times = ("created", "expires", "revoked")
        return [row | {name: iso(row[name]) for name in times} for row in rows]

    @app.post("/tokens/{id}/revoke")
    async def revoke_token(who: Who, _: Running, id: int) -> dict[str, Any]:
        rows = daemon.ledger.tokens(None if who.operator else who.user)
        if id not in {row["id"] for row in rows}:
            raise Wrong(404, f"you have no token {id}; see `metasched token list`")
        daemon.ledger.revoke_token(id, time.time())
        return {"id": id}

    return app


# Submitting


def _may_submit(launcher: Launcher, user: str, submission: Submission) -> None:
    """Wrong if the site lets the user have no jobs, or not in one of their directories."""
    try:
        for directory in {job.directory for job in submission.jobs}:
            launcher.enter(user, directory)
    except Refused as error:
        raise Wrong(403, f"{error.reason}; choose a directory that is yours to enter") from None
    except Unreachable as error:
        raise Wrong(503, f"{error.reason}; nothing changed, try again soon") from None


def _submit(engine: Engine, user: str, submission: Submission) -> dict[str, Any]:
    """Accept all jobs or none: check everything, then store, classify and assign in one go."""
    if not submission.jobs:
        raise Wrong(422, "no job in the request; send one or more")
    now = time.time()
    owner = (user, engine.settings.class_of(user))
    new = [_accepted(engine, owner, request, submission, now) for request in submission.jobs]
    fates = [_fates(engine, stored.job) for stored in new]
    warnings = [_warnings(stored.job) + _shared(stored) for stored in new]
    if submission.strict and (told := next((w[0] for w in warnings if w), None)):
        raise Wrong(422, f"{told}; mend it, or leave out --strict")
    if submission.dry_run:
        return {
            "jobs": [_trial(engine, stored.job, w) for stored, w in zip(new, warnings, strict=True)]
        }
    texts = dict(submission.scripts)
    texts |= {d: encode(e) for d, e in submission.environments.items()}
    keyed = {given: digest(text) for given, text in texts.items()}
    engine.take(
        *(Submitted(now, s.job, known) for s, known in zip(new, fates, strict=True)),
        stored=[replace(s, script=keyed[s.script], environment=keyed[s.environment]) for s in new],
        texts={keyed[given]: text for given, text in texts.items()},
    )
    answers = []
    for stored, said in zip(new, warnings, strict=True):
        tasks = engine.core.tasks_of(stored.job.id)
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
            estimated=request.time_limit or _default_time(engine, request.partition),
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


def _fates(engine: Engine, job: Job) -> tuple[Fate, ...]:
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


def _default_time(engine: Engine, partition: str | None) -> float:
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


def _warnings(job: Job) -> list[str]:
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
            "clusters": _clusters_for(engine, trial, chosen),
        },
    }


# Changing


def _chosen(daemon: Daemon, who: Caller, wish: str, choice: Choice) -> list[dict[str, Any]]:
    """The rows of the chosen tasks: by id, else open ones (to requeue: lately ended ones, too).

    An unknown id, or another's, is refused as a whole.
    """
    if not (choice.jobs or choice.user or choice.state):
        raise Wrong(422, f"nothing to {wish}; name jobs, --user or --state")
    wanted = _ids(choice.jobs) if choice.jobs else None
    since: float | None = time.time() - RECENT if wish == "requeue" else math.inf
    user = choice.user
    if wanted is not None:
        who.may_touch(_owners(daemon, wanted))
        since = None
    elif user is not None:
        who.may_touch([user])
    elif not who.operator:
        user = who.user
    return daemon.ledger.status(wanted, user=user, states=_states(choice.state), ended_since=since)


def _ask(
    daemon: Daemon,
    engine: Engine,
    who: Caller,
    wish: Wish,
    choice: Choice,
) -> list[dict[str, Any]]:
    """Carry out a wish on every chosen task; unknown ids change nothing at all."""
    if wish in ("lost", "ran"):
        who.must_operate("resolve jobs")
    rows = _chosen(daemon, who, wish, choice)
    now = time.time()
    indices: dict[int, list[int]] = {}
    for row in rows:
        indices.setdefault(row["job"], []).append(row["task_index"])
    notes = [_note(wish, State(row["state"])) for row in rows]
    events: list[CoreEvent] = []
    for job, of in indices.items():
        events.append(Asked(now, wish, job, tuple(of), who.user))
        if wish == "requeue":
            tasks, last = daemon.ledger.ended(job, of)
            if tasks:
                asked, priority = daemon.ledger.asked(job)
                waits = any(again.attempts == 0 for again in tasks)
                fates = _fates(engine, asked) if waits else ()
                events.append(Requeued(now, asked, priority, last, tasks, who.user, fates))
    if events:
        engine.take(*events)
    return _answers(daemon, rows, notes)


def _answers(
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


def _modify(
    daemon: Daemon, engine: Engine, who: Caller, choice: Choice, changes: Changes
) -> list[dict[str, Any]]:
    """Change every chosen job, or none at all if one of those named cannot be changed."""
    if not changes.model_fields_set:
        raise Wrong(422, "nothing to change; give --time, --deadline or another option")
    if alone := next((word for word in choice.jobs if "_" in word), None):
        raise Wrong(422, f"{alone} is a task; name the whole job {alone.partition('_')[0]}")
    most = engine.settings.policy.max_priority
    if changes.priority is not None and changes.priority > most:
        raise Wrong(422, f"priority {changes.priority} is too high; it goes from 1 to {most}")
    if changes.priority is not None:
        who.must_operate("set priorities")
    rows = _chosen(daemon, who, "modify", choice)
    now, events = time.time(), []
    states: dict[int, set[State]] = {}
    for row in rows:
        states.setdefault(row["job"], set()).add(State(row["state"]))
    told: dict[int, str] = {}
    for id in states:
        states[id] -= FINAL
        job, _ = daemon.ledger.asked(id)
        default = _default_time(engine, changes.partition or job.partition)
        try:
            new = changes.of(job, default)
        except ValueError as error:
            raise Wrong(422, f"{error}, job {id}; give another") from None
        ours = not (different(job, new) - OURS)
        if not states[id]:
            told[id] = "it has ended; requeue it first"
        elif states[id] <= BEGUN and not ours:
            told[id] = "it is running; only deadline, urgency, priority and name can be changed"
        elif (why := engine.core.refusal(new)) is not None:
            raise Wrong(403, f"job {id}: {why}")
        else:
            anew = must_be_sent_anew(job, new, now)
            words = told_of(job, new) or f"priority {changes.priority or 'as classified'}"
            events.append(Modified(now, new, words, anew, changes.priority, who.user))
            told[id] = "; ".join(_warnings(new)) if ours else ""
            continue
        if choice.jobs:
            raise Wrong(403, f"job {id}: {told[id]}")
    if events:
        engine.take(*events)
    return _answers(daemon, rows, [told[row["job"]] for row in rows])


def _note(wish: str, state: State) -> str:
    """What a wish will do to a task in that state, where it is not plain."""
    if wish == "requeue":
        if state in UNSTARTED | WITH_US:
            return f"it is {state} and has not begun; nothing to requeue"
        if state is State.UNKNOWN:
            return "nobody knows whether it runs; resolve it first"
        return "" if state in FINAL else "it runs again as soon as it has been ended"
    if state in FINAL:
        return f"it has ended ({state}); nothing to {wish}"
    if wish == "hold" and state not in UNSTARTED | {State.QUEUED, State.HELD}:
        return f"it is {state}; only what has not begun can be held"
    if wish == "release" and state is not State.HELD:
        return "it is with its cluster; a hold under way is taken back"
    if wish == "cancel" and state is State.UNKNOWN:
        return "it is cancelled when its cluster shows it again; resolve it if that never will"
    if wish in ("lost", "ran") and state is not State.UNKNOWN:
        return f"it is {state}; only what is unknown needs to be resolved"
    return ""


def _release_licences(
    daemon: Daemon, engine: Engine, who: Caller, choice: Choice
) -> list[dict[str, Any]]:
    """Take back what the chosen tasks have leased that are unknown; of others a note."""
    now, answers = time.time(), []
    indices: dict[int, list[int]] = {}
    for row in _chosen(daemon, who, "release", choice):
        place = (row["job"], row["task_index"])
        lease = engine.core.licences.leases.get(place)
        unknown = row["state"] == State.UNKNOWN
        if lease is None:
            note = "it has no licences"
        elif unknown:
            note = ""
            indices.setdefault(place[0], []).append(place[1])
        else:
            note = f"it is {row['state']}; only what is unknown can lose its licences"
        answers.append(
            {
                "job": row["job"],
                "task": row["task_index"] if row["array"] else None,
                "released": dict(lease.tokens) if lease is not None and unknown else {},
                "note": note,
            }
        )
    events = [LicencesReleased(now, id, tuple(of), who.user) for id, of in indices.items()]
    if events:
        engine.take(*events)
    return answers


# Explaining


def _explain(
    daemon: Daemon, engine: Engine, who: Caller, id: int, index: int | None
) -> dict[str, Any]:
    stored = daemon.ledger.of_job(id)
    assert stored is not None
    rows = daemon.ledger.status([(id, index)])
    # of a whole array the first task that has not ended, and of these one that waits
    row = min(rows, key=lambda r: (r["state"] in FINAL, State(r["state"]) not in WITH_US))
    task = engine.core.tasks.get((id, row["task_index"]))
    clusters: list[dict[str, Any]] = []
    licences: list[dict[str, Any]] = []
    cause = daemon.ledger.story(id, row["task_index"])[-1]["cause"]
    if task is not None:
        chosen = task.attempt.cluster if task.attempt else None
        clusters = _clusters_for(engine, task, chosen)
        cause = engine.core.waits_for(task) or cause
        if (lacking := engine.core.lacking(task, now := time.time())) is not None:
            row |= {"reason": str(lacking.reason)}
            licences = licence_rows.lacking(
                engine.core, task, now, lambda user: who.sees_all or user == who.user
            )
            cause = "; ".join((lacking.text, *licence_rows.told(licences)))
    whole = f"{_counted(rows)}; task {row['task_index']}: " if len(rows) > 1 else ""
    return {
        "job": id,
        "task": row["task_index"] if row["array"] else None,
        "state": row["state"],
        "reason": row["reason"],
        "text": whole + _why(row, clusters, cause),
        "priority": stored["priority"],
        "parts": msgspec.json.decode(stored["parts"]),
        "clusters": clusters,
        "licences": licences,
    }


def _counted(rows: Sequence[dict[str, Any]]) -> str:
    """How many tasks are in which state, in words."""
    counts = Counter(row["state"] for row in rows)
    told = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    return f"Of {len(rows)} tasks are {told}"


def _why(row: dict[str, Any], clusters: Sequence[dict[str, Any]], cause: str) -> str:
    """Why a task is where it is, in a sentence."""
    where = f"on {row['cluster']}" if row["cluster"] else "with us"
    match State(row["state"]):
        case State.HELD:
            return "It is held; release it to let it go."
        case State.QUEUED if row["reason"] == "begin_time":
            return "It waits for its begin time."
        case State.QUEUED if row["reason"] == "dependency":
            return f"It waits for other jobs: {cause}."
        case State.QUEUED if row["reason"] in ("licence_busy", "licence_unknown"):
            return f"It waits for its licences: {cause}."
        case State.QUEUED if row["reason"] == "limit_array":
            return f"It waits until fewer tasks of its array ({row['array']}) are under way."
        case State.QUEUED:
            told = "; ".join(f"{c['cluster']}: {c['text']}" for c in clusters if c["text"])
            return f"It waits {where}: {told or cause}."
        case State.DISPATCHING:
            return f"It is being sent to {row['cluster']} ({cause})."
        case State.PENDING:
            word = row["reason"].removeprefix("manager:") or "it has just arrived"
            return f"It waits in the queue {where}: {word}."
        case State.UNKNOWN:
            return f"Nobody can say how it is {where}: {cause}."
        case State.RUNNING | State.SUSPENDED:
            return f"It is {row['state']} {where} since {iso(row['started'])}."
        case ended:
            return f"It has ended {where}: {ended}{f' ({cause})' if cause else ''}."


def _clusters_for(engine: Engine, task: Task, chosen: str | None) -> list[dict[str, Any]]:
    return [
        {
            "cluster": v.cluster,
            "eligible": v.unfit is None,
            "reason": v.unfit.reason if v.unfit else None,
            "text": v.unfit.text if v.unfit else "",
            "load": v.load,
            "count": v.count,
            "chosen": v.cluster == chosen,
        }
        for v in engine.core.verdicts(task)
    ]


def _adapter(engine: Engine, name: str) -> str:
    """The adapter of a cluster. Wrong if there is no such cluster."""
    found = {cluster.name: cluster.adapter for cluster in engine.core.clusters}
    if name not in found:
        raise Wrong(404, f"no cluster {name[:60]!r}; there are {', '.join(found)}")
    return found[name]


def _cluster(engine: Engine, name: str, adapter: str) -> dict[str, Any]:
    facts, silent = engine.core.view(name)
    drain = engine.core.drain(name)
    link = engine.links[name]
    state = f"down: {link.breaker.words or silent}" if silent else str(drain or "up")
    return {
        "cluster": name,
        "adapter": adapter,
        "access": link.access,
        "state": state,
        "cpus": facts.cpus if facts else 0,
        "used": facts.used if facts else 0,
        "pending": facts.pending if facts else 0,
        "records": facts.records if facts else "",
        "load": engine.core.dispatch.load(name),
        "count": engine.core.dispatch.count(name),
        "drained": drain
        and {
            "by": drain.by,
            "since": iso(drain.time),
            "reason": drain.reason,
            "keep_pending": drain.keep_pending,
        },
        "breaker": _breaker(link.breaker),
        "worker": _breaker(link.deaths),
    }


def _licence_server(watch: Watch) -> dict[str, Any]:
    return {
        "server": watch.settings.name,
        "kind": watch.settings.kind,
        "licences": [pool.name for pool in watch.pools],
        "observed": iso(watch.observed),
        "lacking": watch.lacking,
        "breaker": _breaker(watch.breaker),
    }


def _breaker(breaker: Breaker) -> dict[str, Any]:
    return {
        "state": breaker.state(time.monotonic()),
        "failures": breaker.failures,
        "since": iso(breaker.since),
        "next_try": iso(breaker.next_try),
        "words": breaker.words,
    }


def _output(daemon: Daemon, id: int, index: int | None) -> dict[str, Any]:
    """Where one task writes. Wrong if it must be named first, or its node is not known yet."""
    stored = daemon.ledger.of_job(id)
    assert stored is not None
    payload = msgspec.json.decode(stored["payload"])
    paths = {"output": payload["output"], "error": payload["error"]}
    if index is None and any(path and differs(path) for path in paths.values()):
        first = daemon.ledger.status([(id, None)])[0]["task_index"]
        raise Wrong(422, f"job {id} has a file for each task; name one, as {id}_{first}")
    ran_on = [first_node(nodes) for nodes in daemon.ledger.nodes(id, index or 0)]
    node = (ran_on and ran_on[-1]) or "%N"
    return {kind: path and filled(path, index or 0, node) for kind, path in paths.items()}


# Words


def _ids(words: Sequence[str]) -> list[tuple[int, int | None]]:
    """`17`, `17_3` and `17_[3-4]` as (17, None), (17, 3) and (17, 3), (17, 4)."""
    found: list[tuple[int, int | None]] = []
    for word in words:
        try:
            job, indices = parse_tasks(word)
        except Unreadable as error:
            raise Wrong(422, str(error)) from None
        found += [(job, None)] if indices is None else [(job, index) for index in indices]
    return found


def _owners(daemon: Daemon, wanted: Sequence[tuple[int, int | None]]) -> set[str]:
    """Whose the jobs are. Wrong if one was never stored."""
    if missing := daemon.ledger.unknown(wanted):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise Wrong(404, f"no job {', '.join(missing[:3])}{more}; see `metasched status --all`")
    return daemon.ledger.owners(id for id, _ in wanted)


def _known(daemon: Daemon, who: Caller, word: str) -> tuple[int, int | None]:
    """The job that a word names, if the caller may look into it."""
    wanted = _ids([word])
    if len(wanted) > 1:
        raise Wrong(422, f"{word} are several tasks; name one, as {wanted[0][0]}_{wanted[0][1]}")
    who.may_touch(_owners(daemon, wanted))
    return wanted[0]


def _states(word: str | None) -> list[str]:
    if word is None:
        return []
    for state in word.split(","):
        if state not in set(State):
            raise Wrong(422, f"unknown state {state!r}; there are {', '.join(State)}")
    return word.split(",")


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `status --json`."""
    return {
        "job": row["job"],
        "array": row["array"],
        "task": row["task_index"] if row["array"] else None,
        "name": row["name"],
        "user": row["user"],
        "state": row["state"],
        "reason": row["reason"],
        "priority": row["priority"],
        "cluster": row["cluster"],
        "native_id": row["native_id"],
        "submitted": iso(row["submitted"]),
        "started": iso(row["started"]),
        "ended": iso(row["ended"]),
        "exit_code": _exit_code(row["exit_code"], row["signal"]),
    }


def _exit_code(code: int | None, signal: int | None) -> int | None:
    """As a shell gives it: 128 + the signal that ended it."""
    return 128 + signal if signal else code


async def _changes(daemon: Daemon, timeout: float) -> AsyncIterator[None]:
    """Now, then after each stored change, until the time-out or the daemon's end.

    At most ten times a second.
    """
    deadline = time.monotonic() + timeout
    while True:
        running = daemon.engine
        changed = running.changed if running else asyncio.Event()
        yield
        left = deadline - time.monotonic()
        if left <= 0 or daemon.stopping:
            return
        try:
            async with asyncio.timeout(left):
                await changed.wait()
        except TimeoutError:
            continue
        await asyncio.sleep(0.1)
