"""Tokens that jobs make for calls of the daemon. Pure.

A token is `TAG.TASK.KEY.SECRET`. The key is the secret part of the name of the dispatch's claims
folder, which only its script names. The job makes the secret when it starts.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import PurePath

from metasched.model.tags import MAX_ID_DIGITS, is_claim_folder

_TOKEN = re.compile(
    rf"(ms-[^.]{{1,80}})\.(0|[1-9][0-9]{{0,{MAX_ID_DIGITS - 1}}})\.([0-9a-f]{{32}})\.[0-9a-f]{{64}}"
)
_PREFIX = "ms-"  # that of a user's token is ms_


@dataclass(frozen=True)
class JobToken:
    """A token, as a caller has sent it."""

    tag: str
    task: int  # index of the task in its job's array
    key: str = field(repr=False)
    digest: str  # SHA-256 of the whole token


def is_job_token(text: str) -> bool:
    """Return whether a token is a job's, valid or not."""
    return text.startswith(_PREFIX)


def parse_job_token(text: str) -> JobToken | None:
    """Return a token of a job; None for other text."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    return JobToken(match[1], int(match[2]), match[3], hashlib.sha256(text.encode()).hexdigest())


def key_of(fence: str) -> str:
    """Return the key in the tokens of a dispatch with this folder of claims; "": it has none."""
    return PurePath(fence).name.rpartition("-")[2] if is_claim_folder(fence) else ""
