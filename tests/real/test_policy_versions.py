"""Versions of the policy in real databases: with their event or not at all, and no number twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import OperationalError

from metasched.api.explanations import compared_load
from metasched.config.reading import load_settings
from metasched.core.events import DaemonStarted
from metasched.core.placement import BY_FORECAST, BY_OBSERVED_WORK
from metasched.core.scheduler import Core
from metasched.daemon.late_settings import settings_after_wait
from metasched.daemon.policy_versions import settle_policy
from metasched.db import policy_versions
from metasched.db.ledger import Ledger
from metasched.db.schema import event, policy_version
from metasched.db.store import Database, StorageFailed
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.cluster import Cluster
from metasched.model.job import Job
from metasched.model.policy_version import PolicyChange, PolicyVersion, text_digest
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.harness.recorded_site import record

NOW = 1_000_000.0


def version(number: int, **fields: object) -> PolicyVersion:
    values = {
        "number": number,
        "time": NOW,
        "change": PolicyChange.ACTIVATED,
        "by": "ada",
        "reason": "",
        "file": "x.toml",
        "text": f"age = {number}\n",
        "site_digest": "",
        "previous": number - 1 or None,
        **fields,
    }
    return PolicyVersion(**values)  # type: ignore[arg-type]


def start(ledger: Ledger, policy: PolicyVersion | None) -> None:
    """Start a daemon with a policy, as the scheduler service does."""
    core = Core()
    ledger.restore(core, 100)
    number, digest = (0, "") if policy is None else (policy.number, policy.digest)
    clusters = (Cluster(name="left", adapter="local"),)
    started = DaemonStarted(
        *(NOW, "cafe", Policy(), clusters), policy_version=number, policy_digest=digest
    )
    ledger.record_start(started, core.step(started), policy)


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    opened = Ledger(database.open())
    yield opened
    opened.close()


def test_versions_are_read_as_they_were_stored(ledger: Ledger) -> None:
    assert ledger.policy_in_force() is None
    start(ledger, version(1, change=PolicyChange.FILE, file="", text=""))
    start(ledger, version(2, reason="é\n", text='# "é"\n'))
    start(ledger, version(2, by="eve"))  # of a restart: nothing changes
    assert ledger.policy_in_force() == version(2, reason="é\n", text='# "é"\n')
    assert ledger.policy_versions(lambda version: version.number) == [2, 1]
    assert ledger.policy_version(1) == version(1, change=PolicyChange.FILE, file="", text="")
    assert ledger.policy_version(7) is None
    history = ledger.policy_history()
    assert [history.version_at(id) for id in (0, 1, 2, 3, 4)] == [None, 1, 2, 2, 2]


@pytest.mark.parametrize("column", [{"text": "age = 9\n"}, {"event": 1}])
def test_a_version_that_is_not_that_of_its_event_is_damage(
    ledger: Ledger, column: dict[str, object]
) -> None:
    start(ledger, version(1, change=PolicyChange.FILE, file="", text=""))
    start(ledger, version(2))
    with ledger._engine.connect() as connection:
        assert policy_versions.find_mismatches(connection) == []
        changed = update(policy_version).where(policy_version.c.number == 2).values(column)
        connection.execute(changed)
        [problem] = policy_versions.find_mismatches(connection)
        assert problem.startswith("policy version 2 is not that of event ")
        connection.rollback()


def test_the_record_says_by_which_load_each_task_was_placed(database: Database) -> None:
    """Forecasts begin once enough jobs have ended; until then observed work decides."""
    jobs = [
        Job(id=n, submitted=60.0 * n, estimated=500.0, time_limit=500.0, cpus=2, user="ada")
        for n in range(1, 121)
    ]
    simulation = Simulation(
        Workload("w", tuple(WorkloadEntry(job, 200.0, job.id) for job in jobs)),
        [SimulatedCluster(name=name, cpus=4) for name in ("left", "right")],
        Policy(load="forecast", pull=False),
        lambda _: make_policy("easy"),
    )
    record(simulation, database)
    ledger = Ledger(database.open())
    causes = [ledger.decisions_of_task(job.id, 0).cause for job in jobs]
    ledger.close()
    assert causes[0] == BY_OBSERVED_WORK
    assert causes[-1] == BY_FORECAST
    assert {compared_load(cause) for cause in causes} == {"observed", "forecast"}


def test_old_versions_are_deleted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_versions, "MAX_VERSIONS", 3)
    for number in range(1, 6):
        start(ledger, version(number))
    assert ledger.policy_versions(lambda version: version.number) == [5, 4, 3]
    assert ledger.policy_history().version_at(2) is None


def test_a_standby_that_cannot_read_its_files_keeps_the_newest_version(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "metasched.toml"
    config.write_text(
        '[policy]\nfile = "policy.toml"\n[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\n'
    )
    policy = tmp_path / "policy.toml"
    policy.write_text("age = 100\n")
    settings = load_settings(config)
    changed = "age = 200\n"
    start(ledger, version(1, change=PolicyChange.FILE, site_digest=text_digest(changed)))
    start(ledger, version(2, site_digest=text_digest(changed)))
    for text in (changed, "age = \n"):  # as another daemon has read it, and with a mistake
        policy.write_text(text)
        late = settle_policy(settings_after_wait(settings, ledger), ledger.policy_in_force())
        assert late.policy_version == version(2, site_digest=text_digest(changed))
        assert late.policy.age == 2
    assert "the configuration that was read at the start stays in force" in caplog.text
    policy.write_text("age = 300\n")  # since then: a restart takes it, too
    late = settle_policy(settings_after_wait(settings, ledger), ledger.policy_in_force())
    assert late.policy.age == 300


@pytest.fixture
def fail_at() -> Iterator[Callable[[int | None], None]]:
    """Return a function that lets the nth statement from now on fail, or the commit; None: none."""
    left: list[int | None] = [None]

    def step(*_: object) -> None:
        if left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                raise OperationalError("killed", {}, Exception("killed"))

    for name in ("before_cursor_execute", "commit"):
        sqlalchemy_event.listen(Engine, name, step)
    yield lambda steps: left.__setitem__(0, steps)
    for name in ("before_cursor_execute", "commit"):
        sqlalchemy_event.remove(Engine, name, step)


def test_a_daemon_that_dies_at_any_statement_stores_both_or_nothing(
    database: Database, fail_at: Callable[[int | None], None]
) -> None:
    ledger = Ledger(database.open())
    start(ledger, version(1))
    crashes = 0
    for steps in count():
        core = Core()
        ledger.restore(core, 100)
        started = DaemonStarted(
            *(NOW, "cafe", Policy(), (Cluster(name="left", adapter="local"),)), policy_version=2
        )
        outcome = core.step(started)
        fail_at(steps)
        try:
            ledger.record_start(started, outcome, version(2))
        except StorageFailed:
            crashes += 1
        else:
            break
        finally:
            fail_at(None)
            ledger.close()
            ledger = Ledger(database.open())
        with ledger._engine.connect() as connection:
            starts = connection.execute(select(func.count()).select_from(event)).scalar()
            versions = connection.execute(select(policy_version.c.number)).scalars().all()
        assert (starts, versions) == (1, [1]), steps
    assert crashes >= 4  # epoch, version, event, commit
    assert ledger.policy_in_force() == version(2)
    assert ledger.policy_history().version_at(2) == 2
    ledger.close()
