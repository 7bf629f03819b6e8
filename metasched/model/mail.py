"""The mails that the owner of a job wants. Pure, validated."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from metasched.model.mail_types import MAIL_TYPES
from metasched.model.request_bounds import MAX_NAME, MAX_NAMES, MAX_OPTION_TEXT

# A mail program may read other texts as an option, a file or a command to be run.
ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,189})?")
MAX_ADDRESS = 254  # characters, as in SMTP
ANY_DOMAIN = "*"


class MailRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of mails, and their address. ValueError for an unknown kind or a long address."""

    types: Annotated[
        tuple[Annotated[str, Meta(max_length=MAX_NAME)], ...], Meta(max_length=MAX_NAMES)
    ]
    user: Annotated[str, Meta(max_length=MAX_OPTION_TEXT)] = (
        ""  # address or user name, as written; "": the owner of the job
    )

    def __post_init__(self) -> None:
        for name in self.types:
            if name not in MAIL_TYPES:
                raise ValueError(f"mail type is {name[:63]!r}; it must be of {MAIL_TYPES}")
        if len(self.user) > MAX_ADDRESS:
            raise ValueError(
                f"mail user has {len(self.user)} characters; write at most {MAX_ADDRESS}"
            )


def is_allowed(address: str, owner: str, domains: tuple[str, ...]) -> bool:
    """Return whether mail about a job may go to an address: the owner, or one of these domains."""
    if not ADDRESS.fullmatch(address):
        return False
    name, at, domain = address.partition("@")
    if not at:
        return name == owner
    return ANY_DOMAIN in domains or domain.lower() in domains
