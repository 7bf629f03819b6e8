"""Loads of `load = "forecast"`: how long a job would wait on each cluster. Pure.

A forecast has the starts of probes (`forecast.snapshot`), so a look-up is enough at a decision. It
is older than the decision: the work that was sent to a cluster since counts in addition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

from metasched.core.cluster_view import ClusterView, limit_on
from metasched.core.events import StartsForecast
from metasched.model.job import Job

MAX_AGE = 900.0  # seconds; an older forecast decides nothing
# Seconds from one forecast to the next: at least, since each is stored, and at most
MIN_INTERVAL, MAX_INTERVAL = 20.0, 300.0


class _Sent(NamedTuple):
    """A task that was dispatched."""

    time: float  # epoch seconds
    cluster: str
    cpus: int
    seconds: float  # until its limit


class ForecastLoads:
    """The last forecast, and the work dispatched since its snapshot."""

    def __init__(self) -> None:
        self._forecast: StartsForecast | None = None
        self._sent: deque[_Sent] = deque()  # since the snapshot, in order
        self._sent_cpus: dict[str, int] = {}  # sums of `_sent` by cluster
        self._sent_work: dict[str, float] = {}  # processor seconds, likewise

    def is_news(self, event: StartsForecast) -> bool:
        """Return whether decisions may differ with a forecast, and it is not too soon for another.

        The same waits are news after dispatches: the work that was sent may have ended since.
        """
        last = self._forecast
        if last is None or event.made < last.made:  # none is in use, or the clock was set back
            return True
        age = event.made - last.made
        is_same = (event.waits, event.free_cpus) == (last.waits, last.free_cpus)
        return age >= (MAX_INTERVAL if is_same and not self._sent else MIN_INTERVAL)

    def replace(self, event: StartsForecast) -> None:
        """Take over a new forecast. It includes tasks that were dispatched before its snapshot."""
        self._forecast = event
        while self._sent and self._sent[0].time <= event.made:
            sent = self._sent.popleft()
            self._sent_cpus[sent.cluster] -= sent.cpus
            self._sent_work[sent.cluster] -= sent.cpus * sent.seconds
        if not self._sent:
            self._clear_sent()

    def drop(self) -> None:
        """Forget the forecast; its times are void once the clock was set."""
        self._forecast = None
        self._clear_sent()

    def _clear_sent(self) -> None:
        """Forget the dispatched work; sums of floats begin anew."""
        self._sent.clear()
        self._sent_cpus.clear()
        self._sent_work.clear()

    def record_dispatch(self, view: ClusterView, job: Job, now: float) -> None:
        """Record the dispatch of a task; without a forecast that is in use nothing is kept."""
        if self._forecast is None or now - self._forecast.made > MAX_AGE:
            self.drop()
            return
        sent = _Sent(now, view.name, job.cpus, limit_on(job, view))
        self._sent.append(sent)
        self._sent_cpus[view.name] = self._sent_cpus.get(view.name, 0) + sent.cpus
        self._sent_work[view.name] = self._sent_work.get(view.name, 0.0) + sent.cpus * sent.seconds

    def waits(
        self, job: Job, views: Iterable[ClusterView], candidates: Collection[str], now: float
    ) -> list[float] | None:
        """Return the seconds that a job would wait on each cluster, in their order.

        0 for other clusters than `candidates`. None if the forecast is old, or has no start on a
        candidate: then waits cannot be compared. O(clusters x probes).
        """
        forecast = self._forecast
        if forecast is None or not 0 <= now - forecast.made <= MAX_AGE:
            return None
        waits = list[float]()
        for view in views:
            if view.name not in candidates:
                waits.append(0.0)
                continue
            wait = self._wait(forecast, job, view, now)
            if wait is None:
                return None
            waits.append(wait)
        return waits

    def _wait(
        self, forecast: StartsForecast, job: Job, view: ClusterView, now: float
    ) -> float | None:
        info = view.info
        probed = _probed_wait(forecast, view.name, job.cpus, limit_on(job, view))
        if probed is None or info is None or not info.cpus:
            return None
        wait = max(forecast.made + probed - now, 0.0)
        sent_cpus = self._sent_cpus.get(view.name, 0)
        if wait == 0.0 and job.cpus + sent_cpus <= forecast.free_cpus.get(view.name, 0):
            return 0.0
        return wait + max(self._sent_work.get(view.name, 0.0), 0.0) / info.cpus


def _probed_wait(forecast: StartsForecast, cluster: str, cpus: int, limit: float) -> float | None:
    """Return the wait of the next larger and longer probe, from the snapshot on; None: unknown."""
    column = next((i for i, longest in enumerate(forecast.limits) if limit <= longest), None)
    sizes = forecast.waits.get(cluster)
    if column is None or sizes is None:
        return None
    size = min((size for size in sizes if size >= cpus), default=None)
    return None if size is None else sizes[size][column]
