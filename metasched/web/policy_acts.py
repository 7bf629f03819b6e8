"""Acts of operators on the policy: put a stored version in force, or undo the last change."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from metasched.api.policy import Activation, Undo, activate_policy, undo_policy, version
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.config.policy_file import parse_policy
from metasched.config.policy_words import differences, values_of, written
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError, ParseError, UserError
from metasched.model.policy_version import PolicyVersion
from metasched.model.units import parse_count
from metasched.web.acts import alone, record, require_same
from metasched.web.api_calls import answer_of
from metasched.web.forms import CheckedForm
from metasched.web.rendering import link, page
from metasched.web.results import lead_to

VERSIONS = 20  # that the page of the policy lists
_SUBJECT = "policy"

router = APIRouter()

Number = Annotated[int, Query(alias="version", ge=1, le=1 << 60)]


@router.get("/acts/policy-undo")
async def confirm_undo(
    request: Request,
    caller: CurrentCaller,
    daemon: CurrentDaemon,
    service: CurrentService,
    readers: CurrentReaders,
) -> Response:
    caller.require_operator("undo a policy")
    current = _in_force(service)
    if current.previous is None:
        raise ApiError(409, f"there is no policy before version {current.number}; nothing to undo")
    before = await answer_of(request, version(request, caller, daemon, readers, current.previous))
    return _confirm(
        request,
        service,
        f"Undo policy version {current.number}",
        f"Version {current.previous} is put in force again, as a new version.",
        before.content,
    )


@router.post("/acts/policy-undo")
async def undo(
    request: Request,
    form: CheckedForm,
    caller: CurrentCaller,
    daemon: CurrentDaemon,
    service: CurrentService,
) -> Response:
    caller.require_operator("undo a policy")
    async with alone([_SUBJECT]):
        number = _require_seen(form, service)
        record(service, caller, f"undo policy version {number}")
        body = Undo(reason=form.get("reason", "").strip(), expected=number)
        del service  # the next one takes its place
        row = await undo_policy(caller, daemon, body)
    return _told(request, row)


@router.get("/acts/policy-activate")
async def confirm_activation(
    request: Request,
    caller: CurrentCaller,
    daemon: CurrentDaemon,
    service: CurrentService,
    readers: CurrentReaders,
    number: Number,
) -> Response:
    caller.require_operator("activate a policy")
    answer = await answer_of(request, version(request, caller, daemon, readers, number))
    return _confirm(
        request,
        service,
        f"Activate policy version {number}",
        f"The text of version {number} is put in force, as a new version.",
        answer.content,
    )


@router.post("/acts/policy-activate")
async def activate(
    request: Request,
    form: CheckedForm,
    caller: CurrentCaller,
    daemon: CurrentDaemon,
    service: CurrentService,
    readers: CurrentReaders,
) -> Response:
    caller.require_operator("activate a policy")
    try:
        number = parse_count(form.get("version", ""))
    except ParseError as error:
        raise ApiError(422, f"{error.problem}, version; {error.fix}") from None
    answer = await answer_of(request, version(request, caller, daemon, readers, number))
    async with alone([_SUBJECT]):
        expected = _require_seen(form, service)
        record(service, caller, f"activate policy version {number}")
        body = Activation(
            text=answer.content["text"],
            file=answer.content["file"] or f"policy version {number}",
            reason=form.get("reason", "").strip(),
            expected=expected,
        )
        del service  # the next one takes its place
        row = await activate_policy(caller, daemon, body)
    return _told(request, row)


def _in_force(service: SchedulerService) -> PolicyVersion:
    current = service.settings.policy_version
    assert current is not None  # a service runs
    return current


def _require_seen(form: dict[str, str], service: SchedulerService) -> int:
    """Return the version in force. ApiError if the form was made for another version."""
    number = _in_force(service).number
    require_same(form.get("seen", ""), str(number), "the version of the policy in force")
    return number


def _confirm(
    request: Request, service: SchedulerService, title: str, meaning: str, row: dict[str, Any]
) -> Response:
    """Show the keys that differ between a version and the policy in force, and ask."""
    subject = f"policy version {row['version']}"
    try:
        values = values_of(parse_policy(row["text"], subject))
    except UserError as error:
        raise ApiError(409, f"{subject} is no policy of this release: {error}") from None
    rows = differences(values_of(service.settings.policy), values)
    if not rows:
        raise ApiError(
            409, f"{subject} has the values that are in force; there is nothing to change"
        )
    return page(
        request,
        "act_site.html",
        back=link("/policy"),
        title=title,
        meaning=[meaning, "Running jobs go on, and jobs keep their priorities."],
        fields={"seen": str(_in_force(service).number), "version": str(row["version"])},
        inputs=("reason",),
        is_severe=True,
        differences=[
            (
                each.name,
                written(each.name, each.before),
                written(each.name, each.after),
                each.effect,
            )
            for each in rows
        ],
    )


def _told(request: Request, row: Any) -> Response:
    text = f"Policy version {row['version']} is in force"
    if row["copy_of"] is not None:
        text += f", as version {row['copy_of']}"
    return lead_to(request, link("/policy"), f"{text}.")
