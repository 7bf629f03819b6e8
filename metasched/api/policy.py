"""Routes that show the policy in force and its versions, and that put a policy in force."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from metasched.api.answers import encoded
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.client.site_answers import (
    PlugInRow,
    PolicyRow,
    PolicyVersionRow,
    ShadowCountsRow,
    ShadowRow,
)
from metasched.config.policy_file import MAX_POLICY_BYTES
from metasched.config.policy_words import values_of
from metasched.daemon.policy_activation import activate, undo
from metasched.daemon.service import Daemon, SchedulerService
from metasched.daemon.shadow import NOT_RUNNING, ShadowState
from metasched.daemon.shadow_acts import start_shadow, stop_shadow
from metasched.db.ledger import Ledger
from metasched.db.policy_versions import MAX_VERSIONS
from metasched.errors import ApiError, UserError
from metasched.model.audit import MAX_CAUSE_LENGTH, MAX_NAME_LENGTH
from metasched.model.policy_version import PolicyVersion
from metasched.model.request_texts import Reason, Word
from metasched.model.shadow import Shadow, ShadowCounts
from metasched.model.units import iso

router = APIRouter()

MAX_MOVES = 100  # pairs of clusters in an answer
MAX_DIFFERENCES = 20  # decisions in an answer
_START_SHADOW = "start one by `metasched policy shadow FILE`"


class _Act(BaseModel):
    """The reason of an act, and the version that the caller believes to be in force."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason = ""
    # version in force that the caller has seen; null: any
    expected: Annotated[int, Field(ge=1)] | None = None


class ShadowRequest(BaseModel):
    """A request to run a candidate: the contents of its file, and where its author has it."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=MAX_POLICY_BYTES)]
    file: Word
    reason: Reason = ""


class Undo(_Act):
    """A request to put the previous policy in force."""


class Activation(_Act):
    """A request to put a policy in force: the contents of its file, and where its author has it."""

    text: Annotated[str, Field(max_length=MAX_POLICY_BYTES)]
    file: Word


@router.get("/policy")
async def policy(caller: CurrentCaller, service: CurrentService) -> PolicyRow:
    """Return the policy in force; only operators see who put it there."""
    settings = service.settings
    version = settings.policy_version
    assert version is not None  # a service runs
    origin = settings.policy_origin
    return {
        "version": version.number,
        "since": iso(version.time),
        "values": values_of(settings.policy),
        "change": version.change.value,
        "by": version.by if caller.operator else None,
        "reason": version.reason if caller.operator else None,
        "file": version.file if caller.operator else None,
        "site_file": origin.path if caller.operator else None,
        "differs_from_site_file": version.text != origin.text,
        "plug_ins": _plug_in_rows(service) if caller.operator else None,
    }


@router.get("/policy/versions", response_model=list[PolicyVersionRow])
async def versions(
    request: Request,
    caller: CurrentCaller,
    daemon: CurrentDaemon,
    readers: CurrentReaders,
    limit: Annotated[int, Query(ge=1, le=MAX_VERSIONS)] = MAX_VERSIONS,
) -> Response:
    """List the versions of the policy, the newest first. For operators."""
    caller.require_operator("see the versions of the policy")

    def read() -> Response:
        return encoded(daemon.ledger.policy_versions(_version_row, limit))

    return await readers.run(request, ReadingKind.LISTING, read)


@router.get("/policy/versions/{number}", response_model=PolicyVersionRow)
async def version(
    request: Request,
    caller: CurrentCaller,
    daemon: CurrentDaemon,
    readers: CurrentReaders,
    number: int,
) -> Response:
    """Return a version with its text. For operators."""
    caller.require_operator("see the versions of the policy")

    def read() -> Response:
        stored = None
        if 0 < number < 1 << 62:
            stored = daemon.ledger.policy_version(number)
        if stored is None:
            raise ApiError(404, f"no policy version {number}; see `metasched policy history`")
        return encoded(_version_row(stored) | {"text": stored.text})

    return await readers.run(request, ReadingKind.NAMED, read)


@router.get("/policy/shadow", response_model=ShadowRow)
async def shadow(
    request: Request,
    caller: CurrentCaller,
    daemon: CurrentDaemon,
    service: CurrentService,
    readers: CurrentReaders,
) -> Response:
    """Return the candidate that runs or ran last, and how its decisions differ. For operators."""
    caller.require_operator("see the candidate policy")
    state = service.shadow.state

    def read() -> Response:
        candidate = daemon.ledger.shadow()
        if candidate is None:
            raise ApiError(404, f"no candidate has run; {_START_SHADOW}")
        return encoded(_shadow_row(daemon.ledger, candidate, state))

    return await readers.run(request, ReadingKind.LISTING, read)


@router.post("/policy/shadow")
async def run_shadow(
    caller: CurrentCaller, daemon: CurrentDaemon, request: ShadowRequest
) -> ShadowRow:
    """Run a candidate beside the policy in force; its decisions are compared, never executed.

    The comparison of an earlier candidate is deleted. The same text as that of the candidate that
    runs changes nothing.
    """
    caller.require_operator("run a candidate policy")
    _require_line("reason", request.reason, MAX_NAME_LENGTH)
    _require_file(request.file)
    try:
        started = await start_shadow(
            daemon, request.text, request.file, request.reason, caller.user
        )
    except UserError as error:
        raise ApiError(409, str(error)) from None
    return await _shadow_answer(daemon, started)


@router.delete("/policy/shadow")
async def end_shadow(caller: CurrentCaller, daemon: CurrentDaemon) -> ShadowRow:
    """End the candidate; its comparison stays until another candidate runs."""
    caller.require_operator("end the candidate policy")
    try:
        ended = await stop_shadow(daemon, caller.user)
    except UserError as error:
        raise ApiError(409, str(error)) from None
    return await _shadow_answer(daemon, ended)


@router.post("/policy/activate")
async def activate_policy(
    caller: CurrentCaller, daemon: CurrentDaemon, activation: Activation
) -> PolicyVersionRow:
    """Put a policy in force. The same text as that in force changes nothing."""
    caller.require_operator("activate a policy")
    _require_line("reason", activation.reason, MAX_NAME_LENGTH)
    _require_file(activation.file)
    try:
        version = await activate(
            daemon,
            activation.text,
            activation.file,
            activation.reason,
            caller.user,
            activation.expected,
        )
    except UserError as error:
        raise ApiError(409, str(error)) from None
    return _version_row(version)


@router.post("/policy/undo")
async def undo_policy(
    caller: CurrentCaller, daemon: CurrentDaemon, request: Undo
) -> PolicyVersionRow:
    """Put the previous policy in force, as a new version."""
    caller.require_operator("undo a policy")
    _require_line("reason", request.reason, MAX_NAME_LENGTH)
    try:
        version = await undo(daemon, request.reason, caller.user, request.expected)
    except UserError as error:
        raise ApiError(409, str(error)) from None
    return _version_row(version)


def _plug_in_rows(service: SchedulerService) -> list[PlugInRow]:
    return [
        {
            "table": state.plug_in.kind.value,
            "heuristic": state.plug_in.name,
            "problem": state.problem,
            "excluded": state.excluded,
        }
        for state in service.plug_ins.states()
    ]


def _require_file(file: str) -> None:
    _require_line("file", file, MAX_CAUSE_LENGTH)
    if not file:
        raise ApiError(422, "file: empty; write where its author has it")


def _require_line(name: str, text: str, most: int) -> None:
    if len(text) > most or not text.isprintable():
        raise ApiError(422, f"{name}: unprintable or over {most} characters; write a line")


def _version_row(version: PolicyVersion) -> PolicyVersionRow:
    """Return a row of `policy history --json`."""
    return {
        "version": version.number,
        "time": iso(version.time),
        "change": version.change.value,
        "by": version.by,
        "reason": version.reason,
        "file": version.file,
        "digest": version.digest,
        "previous": version.previous,
        "copy_of": version.copy_of,
        "text": None,
    }


async def _shadow_answer(daemon: Daemon, candidate: Shadow) -> ShadowRow:
    """Return a candidate after an act; its comparison has a hundred thousand rows at most."""
    service = daemon.service
    state = NOT_RUNNING if service is None else service.shadow.state
    return await asyncio.to_thread(_shadow_row, daemon.ledger, candidate, state)


def _shadow_row(ledger: Ledger, candidate: Shadow, state: ShadowState) -> ShadowRow:
    """Return what `policy shadow --json` prints. For a thread: it reads the database."""
    if candidate.ended is not None:
        state = NOT_RUNNING
    comparison = ledger.shadow_comparison(candidate.number)
    differences = ledger.shadow_differences(candidate.number, MAX_DIFFERENCES)
    return {
        "file": candidate.file,
        "digest": candidate.digest,
        "by": candidate.by,
        "reason": candidate.reason,
        "since": iso(candidate.since),
        "ended": iso(candidate.ended),
        "end": candidate.end_reason,
        "obstacle": state.obstacle,
        "place_obstacle": state.place_obstacle,
        "problem": state.problem,
        "waiting": state.waiting,
        "dropped": state.dropped,
        "all": _counts_row(comparison.all),
        "with_deadline": _counts_row(comparison.with_deadline),
        "by_class": [
            {"user_class": name, **_counts_row(each)} for name, each in comparison.by_class.items()
        ],
        "moves": [
            {"live": live, "candidate": chosen, "tasks": tasks}
            for (live, chosen), tasks in islice(comparison.moves.items(), MAX_MOVES)
        ],
        "differences": [
            {
                "time": iso(decision.time),
                "job": decision.job,
                "task": decision.task_index if in_array else None,
                "user_class": decision.user_class,
                "live_priority": decision.live_priority,
                "priority": decision.priority,
                "live_cluster": decision.live_cluster,
                "cluster": decision.cluster,
            }
            for decision, in_array in differences
        ],
    }


def _counts_row(counts: ShadowCounts) -> ShadowCountsRow:
    return {
        "tasks": counts.tasks,
        "same_priority": counts.same_priority,
        "higher_priority": counts.higher_priority,
        "lower_priority": counts.lower_priority,
        "choices": counts.choices,
        "same_cluster": counts.same_cluster,
        "differing": counts.differing,
    }
