"""Bounds of the rows that sign-ins of browsers make, and deletion of tokens that ended long ago."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, or_, select, update

from metasched.db.schema import token

# Each scope counts by itself: the thief of a token ends no session of a link.
MAX_OPEN = 20  # sessions of an account; the oldest ends
MAX_SIGN_INS = 60  # of an account in `PERIOD`
PERIOD = 3600.0  # seconds
KEPT_FOR = 7 * 86400.0  # seconds for which a token is listed after its end


class TooManySignIns(Exception):
    """An account has signed in too often of late: nothing is stored."""


def check_pace(connection: Connection, user: str, scope: str, now: float) -> None:
    """Raise TooManySignIns if a user has opened too many sessions of a scope until now."""
    opened = select(token.c.created).where(token.c.user == user, token.c.scope == scope)
    newest = opened.order_by(token.c.id.desc()).offset(MAX_SIGN_INS - 1).limit(1)
    bound = connection.execute(newest).scalar()
    if bound is not None and bound > now - PERIOD:
        raise TooManySignIns


def end_oldest(connection: Connection, user: str, scope: str, now: float) -> list[int]:
    """Revoke a user's open sessions of a scope but the newest; return their ids."""
    open_sessions = select(token.c.id).where(
        token.c.user == user,
        token.c.scope == scope,
        token.c.expires > now,
        token.c.revoked.is_(None),
    )
    oldest = open_sessions.order_by(token.c.id.desc()).offset(MAX_OPEN)
    ids = list(connection.execute(oldest).scalars())
    if ids:
        connection.execute(update(token).where(token.c.id.in_(ids)).values(revoked=now))
    return ids


def prune_batch(connection: Connection, now: float, after: int, most: int) -> int | None:
    """Delete tokens that ended long ago among the next `most` above an id; return the last of them.

    None: there are no more. The newest token is kept, since ids continue from it.
    """
    newest = select(func.max(token.c.id)).scalar_subquery()
    next_ids = select(token.c.id).where(token.c.id > after, token.c.id < newest)
    last = connection.execute(
        select(func.max(next_ids.order_by(token.c.id).limit(most).subquery().c.id))
    ).scalar()
    if last is None:
        return None
    before = now - KEPT_FOR
    ended = or_(token.c.expires < before, token.c.revoked < before)
    connection.execute(delete(token).where(token.c.id > after, token.c.id <= last, ended))
    return int(last)
