"""The view of the policy in force: each key with its value, default and meaning."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.policy import policy
from metasched.api.request import CurrentCaller, CurrentService
from metasched.config.policy_words import documented_name, key_reference, values_of, written
from metasched.policies.policy import Policy
from metasched.web.rendering import page

router = APIRouter()


@router.get("/policy")
async def show_policy(request: Request, caller: CurrentCaller, service: CurrentService) -> Response:
    answer = await policy(caller, service)
    defaults = values_of(Policy())
    reference = {key.name: key for key in key_reference()}
    keys = []
    for name, value in answer["values"].items():
        key, text = reference[documented_name(name)], written(name, value)
        default = written(name, defaults[name]) if name in defaults else key.default
        keys.append({"name": name, "value": text, "default": default, "key": key})
    return page(request, "policy.html", policy=answer, keys=keys)
