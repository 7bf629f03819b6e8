"""Scopes of access tokens: the requests that a token allows."""

from dataclasses import dataclass
from enum import StrEnum


class TokenScope(StrEnum):
    """Scopes of tokens."""

    USER = "user"  # the rights of an ordinary user, for calls from other hosts
    METRICS = "metrics"  # to read metrics, and nothing else
    LINK = "link"  # to open a session once, for the account itself
    SESSION = "session"  # of a browser, with the account's own rights
    USER_SESSION = "user_session"  # of a browser, with the rights of the token that opened it


# the scope of a browser's session, by the scope of the credential that opens it
OPENED_SESSIONS = {
    TokenScope.LINK: TokenScope.SESSION,
    TokenScope.USER: TokenScope.USER_SESSION,
}


@dataclass(frozen=True)
class ValidToken:
    """A token that was valid when it was looked up."""

    user: str  # account that created it
    scope: TokenScope
    expires: float  # epoch seconds
