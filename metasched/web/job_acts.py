"""Acts on jobs: cancel, hold, release, requeue, modify, and resolve unknown jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from metasched.api.change_answers import ChangeCount, count_changes
from metasched.api.changes import ActionRequest, act_on_jobs, modify_jobs
from metasched.api.identity import Caller
from metasched.api.jobs import ListedJobs, details
from metasched.api.modifications import JobChanges
from metasched.api.readers import CurrentReaders, Readers
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.selection import JobSelection
from metasched.core.events import UserAction
from metasched.core.transitions import FINAL, STARTED, UNSTARTED
from metasched.daemon.service import Daemon
from metasched.errors import ApiError, ParseError, quote_for_error
from metasched.model.job import State
from metasched.model.units import iso, parse_count, parse_duration, parse_moment, parse_names
from metasched.web.acts import alone, record, require_same
from metasched.web.api_calls import answer_of, turn_of
from metasched.web.forms import CheckedForm
from metasched.web.rendering import duration_text, link, page
from metasched.web.results import lead_to

MAX_JOBS = 100  # of an act
SHOWN = 100  # tasks of a confirmation
MAX_REFERENCE = 64  # characters
NONE = "none"  # removes an attribute

router = APIRouter()

Row = Mapping[str, Any]
References = Annotated[list[str], Query(alias="job", max_length=MAX_JOBS)]


class JobAct(NamedTuple):
    """An act on tasks, in words."""

    label: str
    states: frozenset[State]  # of the tasks that it is offered for
    meaning: str
    for_operators: bool = False


ACTS: Mapping[str, JobAct] = {
    "cancel": JobAct(
        "Cancel",
        frozenset(State) - FINAL,
        "They will not run. Those that run are ended by their cluster, and what they have "
        "computed is lost unless they have stored it.",
    ),
    "hold": JobAct(
        "Hold",
        UNSTARTED | {State.QUEUED},
        "They will not start until somebody releases them. Those that wait on a cluster lose "
        "their place in its queue. Those that run go on.",
    ),
    "release": JobAct(
        "Release", frozenset({State.HELD}), "They wait for their turn again, and then start."
    ),
    "requeue": JobAct(
        "Requeue",
        STARTED | FINAL,
        "They will run again from the start, under the same id; their output files are "
        "overwritten. Those that run are ended first.",
    ),
    "modify": JobAct("Modify", frozenset(State) - FINAL, ""),
    "lost": JobAct(
        "Resolve as lost",
        frozenset({State.UNKNOWN}),
        "You declare that they never started. They are dispatched again. Search the records of "
        "their cluster first: a task that does run there would run twice.",
        for_operators=True,
    ),
    "ran": JobAct(
        "Resolve as ended",
        frozenset({State.UNKNOWN}),
        "You declare that they ran and have ended. They count as completed, or as failed if their "
        "exit code is not 0.",
        for_operators=True,
    ),
}
assert set(ACTS) == {*get_args(UserAction), "modify"}


class Attribute(NamedTuple):
    """An attribute that can be modified."""

    label: str
    hint: str
    parse: Callable[[str], Any]  # ParseError
    written: Callable[[Any], str] = str  # of a parsed value, for `parse` again
    for_operators: bool = False


def _moment(text: str) -> float:
    return parse_moment(text, time.time())


def _written_moment(moment: float) -> str:
    return iso(moment)


def _minutes(text: str) -> float:
    return parse_duration(text, bare_unit=60)


def _number_from_0(text: str) -> int:
    return parse_count(text, 0)


# by the names of `JobChanges`, which are those of a listed task as far as it has them
ATTRIBUTES: Mapping[str, Attribute] = {
    "time_limit": Attribute("Time limit", "2:30:00; a number: minutes", _minutes, duration_text),
    "deadline": Attribute("Deadline", "+3h or 2030-01-31T17:30", _moment, _written_moment),
    "begin": Attribute("Begin", "+3h or 2030-01-31T17:30", _moment, _written_moment),
    "urgency": Attribute("Urgency", "0 to 3", _number_from_0),
    "priority": Attribute("Fixed priority", "1 to 10", parse_count, for_operators=True),
    "name": Attribute("Name", "a line", str),
    "clusters": Attribute(
        "Clusters", "names with commas between", lambda text: list(parse_names(text)), ",".join
    ),
    "account": Attribute("Account", "a name", str),
    "partition": Attribute("Partition", "a name", str),
    "qos": Attribute("QOS", "a name", str),
    "constraint": Attribute("Constraint", "features of nodes", str),
}


def offered_acts(tasks: Sequence[Row], caller: Caller) -> list[tuple[str, str]]:
    """Return name and label of the acts that tasks of a job allow now. Empty for a stranger."""
    if any(row["user"] != caller.user for row in tasks) and not caller.operator:
        return []
    states = {State(row["state"]) for row in tasks}
    return [
        (name, act.label)
        for name, act in ACTS.items()
        if act.states & states and (caller.operator or not act.for_operators)
    ]


@router.get("/acts/jobs/{act}")
async def confirm(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    act: str,
    jobs: References = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Say what an act would do. `modify` without values asks for them first."""
    action = _act(act)
    references = _whole_jobs(jobs) if act == "modify" else _references(jobs)
    tasks, has_more = await _tasks(request, daemon, caller, readers, references)
    if action.for_operators:
        caller.require_operator("resolve jobs")
    values: dict[str, str] = {}
    if act == "modify":
        attributes = {name: request.query_params.get(name, "") for name in ATTRIBUTES}
        values = {name: _normal(name, text) for name, text in attributes.items() if text.strip()}
        if "priority" in values:
            caller.require_operator("set priorities")
    return page(
        request,
        "act_jobs.html",
        act=act,
        label=action.label,
        meaning=action.meaning,
        references=references,
        subject=_subject(references),
        tasks=tasks,
        has_more=has_more,
        wrong=sum(State(row["state"]) not in action.states for row in tasks),
        values=values,
        changes=_changes_in_words(values, tasks),
        attributes={
            name: (attribute, _present(name, tasks))
            for name, attribute in ATTRIBUTES.items()
            if caller.operator or not attribute.for_operators
        },
        seen=_seen(values, tasks) if values else _states(tasks),
    )


@router.post("/acts/jobs/modify")
async def modify(
    request: Request,
    form: CheckedForm,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
) -> Response:
    references = _whole_jobs(form.get("jobs", "").split())
    values = {name: form[name] for name in ATTRIBUTES if form.get(name, "").strip()}
    changes = _parsed(values)
    tasks, _ = await _tasks(request, daemon, caller, readers, references)
    async with alone(_subjects(tasks)):
        tasks, _ = await _tasks(request, daemon, caller, readers, references)
        subject, description = _subject(references), _changes_in_words(values, tasks)
        require_same(form.get("seen", ""), _seen(values, tasks), subject)
        record(service, caller, f"modify {subject}", job=_single(references))
        async with turn_of(request):
            applied = await modify_jobs(
                request, caller, service, readers, JobSelection(tuple(references)), changes
            )
            counts = await count_changes(service.core, *applied)
    notes = [f"{_number(count.tasks)}: {count.note}." for count in counts if count.note]
    text = " ".join([f"Modified {subject}: {'; '.join(description)}.", *notes])
    return lead_to(request, _page_of(references), text)


@router.post("/acts/jobs/{act}")
async def act_on(
    request: Request,
    form: CheckedForm,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    act: UserAction,
) -> Response:
    """Apply an action to tasks, and show the result."""
    references = _references(form.get("jobs", "").split())
    exit_code = _exit_code(form.get("exit_code", "")) if act == "ran" else None
    tasks, _ = await _tasks(request, daemon, caller, readers, references)
    async with alone(_subjects(tasks)):
        tasks, _ = await _tasks(request, daemon, caller, readers, references)
        moved = _moved(form.get("seen", ""), _states(tasks))
        subject = _subject(references)
        record(service, caller, f"{act} {subject}", job=_single(references))
        selection = ActionRequest(tuple(references), exit_code=exit_code)
        async with turn_of(request):
            applied = await act_on_jobs(request, caller, service, readers, act, selection)
            counts = await count_changes(service.core, *applied)
    text = " ".join([f"{ACTS[act].label} {subject}:", *map(_told, counts), *moved])
    return lead_to(request, _page_of(references), text)


async def _tasks(
    request: Request,
    daemon: Daemon,
    caller: Caller,
    readers: Readers,
    references: Sequence[str],
) -> tuple[list[Row], bool]:
    """Return the first tasks of jobs, and whether there are more. ForbiddenError for a stranger."""
    query = ListedJobs(
        job=list(references),
        limit=SHOWN,
    )
    listed = await answer_of(request, details(request, daemon, caller, readers, query))
    caller.require_owner(row["user"] for row in listed.content)
    return listed.content, listed.next_cursor is not None


def _act(name: str) -> JobAct:
    if name not in ACTS:
        raise ApiError(404, f"no act {quote_for_error(name)}; choose one of the page of a job")
    return ACTS[name]


def _references(jobs: Sequence[str]) -> list[str]:
    if not jobs:
        raise ApiError(422, "no job is chosen; tick some in the queue, or open the page of a job")
    if len(jobs) > MAX_JOBS:
        raise ApiError(422, f"more than {MAX_JOBS} jobs; choose fewer at once")
    if any(len(job) > MAX_REFERENCE or not job for job in jobs):
        raise ApiError(422, "a job without a number; choose jobs in the queue")
    return list(dict.fromkeys(jobs))


def _whole_jobs(jobs: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(job.partition("_")[0] for job in _references(jobs)))


def _exit_code(text: str) -> int | None:
    if not text.strip():
        return None
    try:
        return parse_count(text.strip(), 0)
    except ParseError as error:
        raise ApiError(422, f"{error.problem}, exit code; {error.fix}") from None


def _normal(name: str, text: str) -> str:
    """Return a value as it is stored in a form: a time from now on becomes a moment."""
    text = text.strip()
    if text == NONE and name != "name":
        return NONE
    attribute = ATTRIBUTES[name]
    try:
        return attribute.written(attribute.parse(text))
    except ParseError as error:
        raise ApiError(422, f"{error.problem}, {attribute.label}; {error.fix}") from None


def _parsed(values: Mapping[str, str]) -> JobChanges:
    if not values:
        raise ApiError(422, "nothing to change; fill in a field")
    removed: dict[str, Any] = {"urgency": 0, "clusters": []}
    changes = {
        name: removed.get(name)
        if text == NONE and name != "name"
        else ATTRIBUTES[name].parse(_normal(name, text))
        for name, text in values.items()
    }
    try:
        return JobChanges.model_validate(changes)
    except ValidationError as error:
        [first, *_] = error.errors()
        name = str(first["loc"][0])
        label = ATTRIBUTES[name].label
        raise ApiError(
            422, f"{quote_for_error(values[name])}, {label}: {first['msg']}; write another value"
        ) from None


def _value(name: str, row: Row) -> str:
    """Return an attribute of a task, as it is written."""
    value = row.get(name)
    if name == "urgency" or value in (None, [], ""):
        return NONE
    if name in ("deadline", "begin"):
        return str(value)  # in ISO 8601 already
    return ATTRIBUTES[name].written(value)


def _present(name: str, tasks: Sequence[Row]) -> str:
    """Return an attribute of all tasks; "": they differ, or it is hidden."""
    values = {_value(name, row) for row in tasks}
    return values.pop() if len(values) == 1 and name not in ("urgency", "priority") else ""


def _changes_in_words(values: Mapping[str, str], tasks: Sequence[Row]) -> list[str]:
    phrases = []
    for name, text in values.items():
        before = _present(name, tasks)
        phrases.append(
            f"{ATTRIBUTES[name].label.lower()} {before} → {text}"
            if before
            else f"{ATTRIBUTES[name].label.lower()} → {text}"
        )
    return phrases


def _seen(values: Mapping[str, str], tasks: Sequence[Row]) -> str:
    """Return the values that a modification replaces, of each job."""
    seen = (
        f"{row['job']}: "
        + ", ".join(f"{ATTRIBUTES[name].label.lower()} {_value(name, row)}" for name in values)
        for row in tasks
    )
    return "; ".join(dict.fromkeys(seen))


def _states(tasks: Sequence[Row]) -> str:
    return " ".join(f"{_reference(row)}:{row['state']}" for row in tasks)


def _reference(row: Row) -> str:
    return str(row["job"]) if row["task"] is None else f"{row['job']}_{row['task']}"


def _moved(seen: str, present: str) -> list[str]:
    """Return a sentence on the tasks that have another state than on the page of the form."""
    before = dict(part.split(":", 1) for part in seen.split() if part.count(":") == 1)
    after = dict(part.split(":", 1) for part in present.split())
    changes = [
        f"{task} was {before[task]} and became {state}"
        for task, state in after.items()
        if before.get(task, state) != state and before[task] in set(State)
    ]
    if not changes:
        return []
    remainder = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    return [f"Since the page was opened, {', '.join(changes[:3])}{remainder}."]


def _told(count: ChangeCount) -> str:
    """Say what became of equal tasks."""
    tasks = _number(count.tasks)
    if count.note:
        return f"{tasks}: {count.note}."
    if count.before is count.after:
        return f"{tasks} {_are(count.tasks)} {count.after} until the cluster has done it."
    past = "was" if count.tasks == 1 else "were"
    return f"{tasks} {past} {count.before} and {_are(count.tasks)} now {count.after}."


def _number(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def _are(tasks: int) -> str:
    return "is" if tasks == 1 else "are"


def _subject(references: Sequence[str]) -> str:
    """Name the jobs of an act."""
    if len(references) == 1:
        return f"job {references[0]}"
    remainder = f" and {len(references) - 10} more" if len(references) > 10 else ""
    return f"jobs {', '.join(references[:10])}{remainder}"


def _subjects(tasks: Sequence[Row]) -> list[str]:
    return [f"job {row['job']}" for row in tasks]


def _single(references: Sequence[str]) -> int | None:
    """Return the number of the only job."""
    numbers = {reference.partition("_")[0] for reference in references}
    return int(numbers.pop()) if len(numbers) == 1 else None


def _page_of(references: Sequence[str]) -> str:
    return link(f"/jobs/{references[0]}") if len(references) == 1 else link("/queue")
