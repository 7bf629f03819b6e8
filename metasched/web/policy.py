"""The view of the policy in force: its keys, for operators also its versions and a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.identity import Caller
from metasched.api.policy import policy, shadow, versions
from metasched.api.readers import CurrentReaders, Readers
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.config.policy_words import documented_name, key_reference, values_of, written
from metasched.daemon.service import Daemon, SchedulerService
from metasched.errors import ApiError
from metasched.policies.policy import Policy
from metasched.web.api_calls import answer_of
from metasched.web.policy_acts import VERSIONS
from metasched.web.rendering import page

router = APIRouter()


@router.get("/policy")
async def show_policy(
    request: Request,
    caller: CurrentCaller,
    daemon: CurrentDaemon,
    service: CurrentService,
    readers: CurrentReaders,
) -> Response:
    answer = await policy(caller, service)
    defaults = values_of(Policy())
    reference = {key.name: key for key in key_reference()}
    keys = []
    for name, value in answer["values"].items():
        key, text = reference[documented_name(name)], written(name, value)
        default = written(name, defaults[name]) if name in defaults else key.default
        keys.append({"name": name, "value": text, "default": default, "key": key})
    history: list[dict[str, Any]] = []
    if caller.operator:
        listed = await answer_of(request, versions(request, caller, daemon, readers, VERSIONS))
        history = listed.content
    return page(
        request,
        "policy.html",
        policy=answer,
        keys=keys,
        versions=history,
        shadow=await _shadow(request, caller, daemon, service, readers),
    )


async def _shadow(
    request: Request,
    caller: Caller,
    daemon: Daemon,
    service: SchedulerService,
    readers: Readers,
) -> Mapping[str, Any] | None:
    """Return the candidate beside the policy in force; None: none has run, or not for a user."""
    if not caller.operator:
        return None
    try:
        answer = await answer_of(request, shadow(request, caller, daemon, service, readers))
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    row: Mapping[str, Any] = answer.content
    return row
