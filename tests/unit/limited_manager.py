"""A simulated manager that refuses tasks of a user above a limit, for tests of the core."""

from __future__ import annotations

from metasched.core.events import (
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchSkipped,
    DispatchStarted,
)
from metasched.model.job import State
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from tests.unit.core_site import Site, facts


class LimitedManager:
    """A manager that holds at most `limit` tasks of user a; each runs for `seconds`."""

    def __init__(self, site: Site, name: str, limit: int, seconds: float) -> None:
        self.site, self.name, self.limit, self.seconds = site, name, limit, seconds
        self._limited_jobs: set[int] = set()  # jobs of user a
        self.rows: dict[tuple[int, int, int], JobStatus] = {}  # by job, dispatch, task
        self.refusals = 0

    def submit(self, dispatch: Dispatch, now: float) -> list[object]:
        """Answer a dispatch as daemon and manager would; return the actions that follow."""
        tasks = self.site.core.tasks_of_dispatch(dispatch.job, dispatch.dispatch_id)
        if not tasks or self.site.core.decided_before_refusal(tasks[0]):
            skipped = DispatchSkipped(now, ((dispatch.job, dispatch.dispatch_id),))
            return list(self.site.step(skipped))
        self.site.step(DispatchStarted(now, dispatch.job, dispatch.dispatch_id))
        if tasks[0].job.user == "a":
            self._limited_jobs.add(dispatch.job)
        held = sum(
            row.state is State.RUNNING and key[0] in self._limited_jobs
            for key, row in self.rows.items()
        )
        if dispatch.job in self._limited_jobs and held + len(dispatch.indices) > self.limit:
            self.refusals += 1
            event = DispatchRejected(
                now, dispatch.job, dispatch.dispatch_id, "AssocMaxSubmitJobLimit", True, "user"
            )
            return list(self.site.step(event))
        for index in dispatch.indices:
            tag = tag_of("cafe", dispatch.job, dispatch.dispatch_id)
            self.rows[dispatch.job, dispatch.dispatch_id, index] = JobStatus(
                tag, index, f"{dispatch.dispatch_id}_{index}", State.RUNNING, started=now
            )
        natives = {index: f"{dispatch.dispatch_id}_{index}" for index in dispatch.indices}
        return list(
            self.site.step(DispatchAccepted(now, dispatch.job, dispatch.dispatch_id, natives))
        )

    def poll(self, now: float) -> list[object]:
        for key, row in self.rows.items():
            if row.state is State.RUNNING and now >= (row.started or 0) + self.seconds:
                self.rows[key] = JobStatus(
                    row.tag,
                    row.task,
                    row.native_id,
                    State.COMPLETED,
                    started=row.started,
                    ended=now,
                    exit_code=0,
                )
        return list(self.site.seen(self.name, facts(100), *self.rows.values(), at=now))
