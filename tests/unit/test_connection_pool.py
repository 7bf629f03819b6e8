"""All connections to the database in use: a failure that may pass, not a defect."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import QueuePool

from metasched.db.ledger import Ledger
from metasched.db.pruning import PruningPass
from metasched.db.queries import Queries
from metasched.db.store import StorageFailed


@pytest.fixture
def engine() -> Engine:
    return create_engine(
        "sqlite://", poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01
    )


def test_a_query_without_a_connection_fails_for_now(engine: Engine) -> None:
    with engine.connect(), pytest.raises(StorageFailed, match="all connections to it are in use"):
        Queries(engine).check_readable()


def test_so_does_the_removal_of_old_jobs(engine: Engine) -> None:
    """The writing connection of the ledger is the only one."""
    ledger = Ledger(engine)
    with pytest.raises(StorageFailed, match="all connections to it are in use"):
        ledger.prune_portion(PruningPass(0.0))
    ledger.close()
