"""What a token allows."""

from enum import StrEnum


class TokenScope(StrEnum):
    """Scopes of tokens."""

    USER = "user"  # the rights of an ordinary user, for calls from other hosts
    METRICS = "metrics"  # to read metrics, and nothing else
