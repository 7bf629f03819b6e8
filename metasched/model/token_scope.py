"""What a token allows."""

from dataclasses import dataclass
from enum import StrEnum


class TokenScope(StrEnum):
    """Scopes of tokens."""

    USER = "user"  # the rights of an ordinary user, for calls from other hosts
    METRICS = "metrics"  # to read metrics, and nothing else


@dataclass(frozen=True)
class ValidToken:
    """A token that was valid when it was looked up."""

    user: str  # account that created it
    scope: TokenScope
    expires: float  # epoch seconds
