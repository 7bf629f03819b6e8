"""Routes that show the policy in force and its versions, and that put another one in force."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from metasched.api.answers import encoded
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.site_answers import PlugInRow, PolicyRow, PolicyVersionRow
from metasched.config.policy_file import MAX_POLICY_BYTES
from metasched.config.policy_words import values_of
from metasched.daemon.policy_activation import activate, undo
from metasched.daemon.service import SchedulerService
from metasched.db.policy_versions import MAX_VERSIONS
from metasched.errors import ApiError, UserError
from metasched.model.audit import MAX_CAUSE_LENGTH, MAX_NAME_LENGTH
from metasched.model.policy_version import PolicyVersion
from metasched.units import iso

router = APIRouter()


class _Act(BaseModel):
    """Why, and what the caller believes to be in force."""

    model_config = ConfigDict(extra="forbid")

    reason: str = ""
    # version in force that the caller has seen; null: any
    expected: Annotated[int, Field(ge=1)] | None = None


class Undo(_Act):
    """A request to put the policy before the present one in force."""


class Activation(_Act):
    """A request to put a policy in force: the contents of its file, and where its author has it."""

    text: Annotated[str, Field(max_length=MAX_POLICY_BYTES)]
    file: str


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
        found = None
        if 0 < number < 1 << 62:
            found = daemon.ledger.policy_version(number)
        if found is None:
            raise ApiError(404, f"no policy version {number}; see `metasched policy history`")
        return encoded(_version_row(found) | {"text": found.text})

    return await readers.run(request, ReadingKind.NAMED, read)


@router.post("/policy/activate")
async def activate_policy(
    caller: CurrentCaller, daemon: CurrentDaemon, activation: Activation
) -> PolicyVersionRow:
    """Put a policy in force. The same text as that in force changes nothing."""
    caller.require_operator("activate a policy")
    _require_line("reason", activation.reason, MAX_NAME_LENGTH)
    _require_line("file", activation.file, MAX_CAUSE_LENGTH)
    if not activation.file:
        raise ApiError(422, "file: empty; write where its author has it")
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
    """Put the policy before the present one in force, as a new version."""
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
