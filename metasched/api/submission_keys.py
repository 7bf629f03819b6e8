"""Idempotency keys: a submission that a client repeats is accepted once.

The header `Idempotency-Key` names a submission. Its key is stored in the transaction of its jobs,
with a digest of the body and the answer. Other routes take no key: a client repeats none of them.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any

from fastapi import Depends, Header, Request

from metasched.api.identity import Caller
from metasched.daemon.service import SchedulerService
from metasched.db.submission_keys import KEY_LIFETIME, SubmissionKey
from metasched.errors import ApiError

KEY_PATTERN = "[A-Za-z0-9._:-]{1,128}"
_DESCRIPTION = (
    "Names this submission among those of the user. A repetition with the same body within "
    f"{KEY_LIFETIME / 3600:g} h gets the same answer and submits nothing; another body gets 409."
)


async def _get_submission_key(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(description=_DESCRIPTION, json_schema_extra={"pattern": f"^{KEY_PATTERN}$"}),
    ] = None,
) -> SubmissionKey | None:
    """Return the key of a request, or None without. ApiError for an invalid key."""
    if idempotency_key is None:
        return None
    repeated = len(request.headers.getlist("idempotency-key")) > 1
    if repeated or re.fullmatch(KEY_PATTERN, idempotency_key) is None:
        raise ApiError(
            400,
            "not a single key, header Idempotency-Key; "
            "give 1 to 128 letters, digits and . _ : - once",
        )
    body_digest = hashlib.sha256(await request.body()).hexdigest()
    caller: Caller = request.state.caller
    return SubmissionKey(caller.user, idempotency_key, body_digest)


CurrentSubmissionKey = Annotated[SubmissionKey | None, Depends(_get_submission_key)]


def earlier_answer(service: SchedulerService, key: SubmissionKey | None, now: float) -> Any:
    """Return the answer to the earlier submission that this submission repeats, or None.

    Raise ApiError if the key was used for another body.
    """
    if key is None or (earlier := service.ledger.find_submission(key, now - KEY_LIFETIME)) is None:
        return None
    service.store_group()  # that submission may wait for its commit
    body_digest, answer = earlier
    if body_digest != key.body_digest:
        raise ApiError(
            409,
            f"another submission has used key {key.key}, header Idempotency-Key; "
            "repeat it unchanged, or give a new key",
        )
    return answer
