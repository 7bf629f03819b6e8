"""A site whose record is simulated: every task has to run where and when it did."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.db.store import Database
from metasched.laboratory.simulate.recorded_workload import RecordedPeriod, read_period
from tests.harness.polled_site import PolledSite, Request, TaskPlace
from tests.harness.recorded_site import recording


def assert_simulated_as_recorded(
    site: PolledSite, requests: Sequence[Request], database: Database
) -> RecordedPeriod:
    """Run a site, then simulate its record under the same policy; return the record."""
    with recording(site.core, database):
        site.run(requests)
    engine = database.open_existing()
    with engine.connect() as connection:
        period = read_period(connection)
    engine.dispose()
    simulated = {
        (task.job, task.task): TaskPlace(
            period.clusters[each.cluster].name, each.start, each.priority
        )
        for task, each in zip(period.tasks, period.run(period.policy).jobs, strict=True)
    }
    assert simulated == site.places
    return period
