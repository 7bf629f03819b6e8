"""Sessions of browsers in both databases: how many there may be, and when their rows go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import inspect, select

from metasched.core.scheduler import Core
from metasched.db.ledger import Ledger
from metasched.db.pruning import PruningPass
from metasched.db.schema import audit
from metasched.db.sessions import KEPT_FOR, MAX_OPEN, MAX_SIGN_INS, PERIOD, TooManySignIns
from metasched.db.store import Database
from metasched.model.token_scope import TokenScope

NOW = 1_800_000_000.0
LIFETIME = 12 * 3600.0


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    opened = Ledger(database.open())
    opened.restore(Core(), 100)
    yield opened
    opened.close()


def ids(ledger: Ledger) -> list[int]:
    return [row["id"] for row in ledger.tokens(None, 0, 1000)]


def prune(ledger: Ledger, now: float) -> None:
    pruning = PruningPass(0.0, now=now)
    while ledger.prune_portion(pruning):
        pass


def test_the_oldest_session_ends_when_there_are_too_many(ledger: Ledger) -> None:
    """Whoever has a token ends no session of a link, and no session of another account."""
    for user in ("ada", "bob"):
        ledger.add_token(user, f"link of {user}", NOW, NOW + 300, TokenScope.LINK)
        assert ledger.open_session(f"link of {user}", f"by link {user}", NOW, LIFETIME) == user
    ledger.add_token("ada", "token", NOW, NOW + LIFETIME)
    for number in range(MAX_OPEN + 2):
        assert ledger.open_session("token", f"s{number}", NOW + number, LIFETIME) == "ada"
    now = NOW + MAX_OPEN + 2
    is_open = [bool(ledger.find_token(f"s{number}", now)) for number in range(MAX_OPEN + 2)]
    assert is_open == [False] * 2 + [True] * MAX_OPEN
    for secret in ("by link ada", "by link bob", "token"):
        assert ledger.find_token(secret, now) is not None
    ended = [row["id"] for row in ledger.tokens("ada", 0, 1000) if row["scope"] == "user_session"]
    with ledger._write_transaction() as connection:
        revoked = select(audit.c.cause).where(audit.c.kind == "token_revoked").order_by(audit.c.id)
        causes = connection.execute(revoked).scalars().all()
    assert causes == [f"token {id}" for id in ended[:2]]
    ledger.close_session("s5", now)  # those that have ended do not count
    assert ledger.open_session("token", "next", now, LIFETIME) == "ada"
    assert ledger.find_token("s2", now) is not None


def test_sign_ins_of_an_account_are_paced(ledger: Ledger) -> None:
    ledger.add_token("ada", "token", NOW, NOW + LIFETIME)
    ledger.add_token("bob", "of bob", NOW, NOW + LIFETIME)
    for number in range(MAX_SIGN_INS):
        ledger.open_session("token", f"s{number}", NOW + number, LIFETIME)
    stored = ids(ledger)
    ledger.add_token("ada", "link", NOW, NOW + LIFETIME, TokenScope.LINK)
    with pytest.raises(TooManySignIns):
        ledger.open_session("token", "more", NOW + PERIOD - 1, LIFETIME)
    assert ids(ledger)[:-1] == stored
    assert ledger.open_session("link", "by link", NOW + 60, LIFETIME) == "ada"
    assert ledger.open_session("of bob", "s of bob", NOW + 60, LIFETIME) == "bob"
    assert ledger.open_session("token", "more", NOW + PERIOD + 1, LIFETIME) == "ada"
    with pytest.raises(TooManySignIns):
        ledger.open_session("token", "again", NOW + PERIOD, LIFETIME)


def test_tokens_that_ended_a_week_ago_are_deleted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasched.db.pruning.RECORDS_PER_PORTION", 2)
    expired = [ledger.add_token("ada", f"e{n}", NOW, NOW + 300, TokenScope.LINK) for n in range(3)]
    valid = ledger.add_token("ada", "valid", NOW, NOW + 2 * KEPT_FOR)
    revoked = [ledger.add_token("ada", f"r{n}", NOW, NOW + 2 * KEPT_FOR) for n in range(3)]
    ledger.open_session("r0", "session", NOW, LIFETIME)
    for id in revoked:
        ledger.revoke_token(id, NOW + 400, "ada")
    newest = ledger.add_token("ada", "newest", NOW, NOW + 1)
    everything = ids(ledger)
    prune(ledger, NOW + 300 + KEPT_FOR)
    assert ids(ledger) == everything
    prune(ledger, NOW + 400 + KEPT_FOR)
    assert ids(ledger) == sorted(set(everything) - set(expired))
    prune(ledger, NOW + 401 + KEPT_FOR)
    assert ids(ledger) == [valid, newest]
    assert ledger.find_token("valid", NOW + KEPT_FOR) is not None
    # no id is given twice: audit records name it
    assert ledger.add_token("ada", "next", NOW, NOW + 1) == newest + 1


def test_sessions_of_a_token_have_an_index(ledger: Ledger) -> None:
    """A revocation reads no more rows than those of the token."""
    with ledger._write_transaction() as connection:
        assert "ix_token_parent" in {i["name"] for i in inspect(connection).get_indexes("token")}
