"""Which tokens count while no database answers, and whose turns their holders use."""

from __future__ import annotations

import asyncio
import os
import pwd
from typing import Any

import pytest

from metasched.api import identity
from metasched.api.identity import Caller, Callers
from metasched.api.lookups import Lookups
from metasched.db.store import StorageFailed
from metasched.model.token_scope import TokenScope, ValidToken


class Database:
    """A ledger with one token, which may be away."""

    def __init__(self, token: ValidToken) -> None:
        self.token, self.away = token, False

    def find_token(self, secret: str, now: float) -> ValidToken | None:
        if self.away:
            raise StorageFailed("away")
        return self.token if secret == "secret" and now < self.token.expires else None


@pytest.mark.parametrize("scope", list(TokenScope))
def test_in_an_outage_a_token_for_metrics_is_good_until_it_expires(
    scope: TokenScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("metasched.api.identity.time.time", lambda: now)
    database: Any = Database(ValidToken("ada", scope, expires=1010.0))

    async def play() -> None:
        nonlocal now
        daemon: Any = type("Daemon", (), {"settings": None})
        callers = Callers(daemon, Lookups("account"))

        async def find(secret: str) -> ValidToken | None:
            return await identity.find_token(secret, callers, lambda: database)

        assert await find("secret") == database.token
        assert await find("other") is None
        database.away = True
        if scope is TokenScope.METRICS:
            assert await find("secret") == database.token
        now = 1010.0
        for secret in ("secret", "other"):
            with pytest.raises(StorageFailed):
                await find(secret)

    asyncio.run(play())


def test_who_holds_a_token_for_metrics_uses_no_turns_of_its_maker() -> None:
    settings: Any = None  # a token for metrics has no rights that depend on them
    caller = identity._resolve_caller(os.geteuid(), TokenScope.METRICS, settings)
    maker = pwd.getpwuid(os.geteuid()).pw_name
    assert caller == Caller(f"metrics of {maker}", by_token=True, scrapes_only=True)
