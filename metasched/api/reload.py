"""The route that lets the daemon read its configuration again."""

from __future__ import annotations

from fastapi import APIRouter

from metasched.api.request import CurrentCaller, CurrentDaemon
from metasched.client.site_answers import ReloadRow
from metasched.daemon.reload import reload
from metasched.errors import ApiError, UserError

router = APIRouter()


@router.post("/reload")
async def reload_configuration(caller: CurrentCaller, daemon: CurrentDaemon) -> ReloadRow:
    """Take over the daemon's own files; a request names none."""
    caller.require_operator("reload the configuration")
    try:
        reloaded = await reload(daemon, caller.user)
    except UserError as error:
        raise ApiError(409, str(error)) from None
    return {
        "changes": list(reloaded.changes),
        "restart_needed": list(reloaded.restart_keys),
        "findings": [finding.as_json() for finding in reloaded.findings],
    }
