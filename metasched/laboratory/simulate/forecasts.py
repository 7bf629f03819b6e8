"""Forecasts in a simulation whose policy places jobs by them: those that a daemon would make."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from metasched.core.events import Outcome, StartsForecast
from metasched.core.forecast_state import forecast_state, starts_forecast
from metasched.core.scheduler import Core
from metasched.forecast.estimates import MIN_DRAWS, MIN_LEARNT, estimate_starts
from metasched.forecast.run_times import RunTimeModel
from metasched.policies.local.queueing import LocalPolicy

# Seconds of the simulation between two forecasts. A daemon pauses for 19 times as long as a
# forecast takes, 10 s at least.
INTERVAL = 300.0


class SimulatedForecaster:
    """Learns from ends, and makes forecasts when they are due."""

    def __init__(
        self, core: Core, policies: Mapping[str, Callable[[], LocalPolicy]], seed: int
    ) -> None:
        """`policies` make the local policy of each cluster, by its name."""
        self._core, self._policies, self._seed = core, policies, seed
        self._model, self._learnt, self._made = RunTimeModel(), 0, -math.inf

    def learn(self, outcome: Outcome) -> None:
        """Learn from the tasks that have ended in a step."""
        for task, attempt in outcome.closed_attempts:
            if attempt.started is not None and attempt.ended is not None:
                job = task.job
                seconds = attempt.ended - attempt.started
                self._model.add(job.user, job.user_class, job.time_limit or job.estimated, seconds)
                self._learnt += 1

    def forecast(self, now: float) -> StartsForecast | None:
        """Return the forecast that is due now, or None."""
        if self._learnt < MIN_LEARNT or now < self._made + INTERVAL:
            return None
        self._made = now
        state = forecast_state(self._core, self._policies, {}, now)
        estimates = estimate_starts(
            state.snapshot,
            self._model,
            f"{self._seed}/{now}",
            draws=MIN_DRAWS,
            targets=frozenset(),
        )
        if estimates is None:
            return None
        return starts_forecast(state, estimates, state.clusters, now)
