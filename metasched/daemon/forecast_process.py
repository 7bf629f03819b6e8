"""The process that runs snapshots forward, and the daemon's end of its pipe.

A pass of a local policy cannot be interrupted, and a thread would hold the interpreter's lock
meanwhile. So a `PickledProcess` does so.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from metasched.forecast.estimates import Estimates, estimate_starts
from metasched.forecast.run_times import RunTimeModel
from metasched.forecast.snapshot import Snapshot
from metasched.processes.pickled_process import PickledProcess, ProcessLost, answer_requests

# Processor time of a request: after the first no more forward runs begin than the fewest, after
# the second no pass of a policy. Nine runs of 7,000 waiting tasks on two clusters take 12 s
FEWEST_AFTER = 4.0
CPU_SECONDS = 30.0
# Seconds until the process is ended: a pass of `rcbo` beside 2,000 tasks takes 3.5 s after that,
# and the host may be busy
TIME_LIMIT = 300.0
# Bytes of address space. A policy of another package may take memory without end: it is excluded
MEMORY = 2**32


class EndedRunTime(NamedTuple):
    """What `RunTimeModel.add` takes; times in seconds."""

    user: str
    user_class: str
    limit: float
    run_time: float


class ForecastRequest(NamedTuple):
    """Ended tasks to learn from, and a snapshot to run forward."""

    learnt: tuple[EndedRunTime, ...]
    snapshot: Snapshot
    targets: frozenset[int]
    seed: int


class ForecastReply(NamedTuple):
    """The estimates, and the processor seconds that they took."""

    estimates: Estimates | None  # None: too few forward runs ended in time
    used: float


class NoForecast(Exception):
    """The process has ended or does not answer; the run times that it had learnt are lost."""


class ForecastRunner(Protocol):
    """Answers requests, one at a time. Keeps the run times that it has learnt."""

    async def run(self, request: ForecastRequest) -> ForecastReply:
        """Learn, then run forward. Raises NoForecast."""

    async def close(self) -> None:
        """End; a later request begins anew."""


class RequestHandler:
    """Learns from and answers requests, in whatever process."""

    def __init__(self) -> None:
        self._model = RunTimeModel()

    def handle(self, request: ForecastRequest) -> ForecastReply:
        for ended in request.learnt:
            self._model.add(*ended)
        begun = time.process_time()
        estimates = estimate_starts(
            request.snapshot,
            self._model,
            request.seed,
            targets=request.targets,
            may_begin=lambda: time.process_time() - begun < FEWEST_AFTER,
            may_continue=lambda: time.process_time() - begun < CPU_SECONDS,
        )
        return ForecastReply(estimates, time.process_time() - begun)


class ForecastProcess:
    """A `ForecastRunner` in a process of its own, which starts with the first request."""

    def __init__(self) -> None:
        self._process = PickledProcess[ForecastRequest, ForecastReply](
            "metasched.daemon.forecast_process"
        )

    async def run(self, request: ForecastRequest) -> ForecastReply:
        try:
            return await self._process.ask(request, TIME_LIMIT)
        except ProcessLost as error:
            raise NoForecast(str(error)) from error

    async def close(self) -> None:
        await self._process.close()


def main() -> None:
    """Answer requests until the daemon closes the pipe."""
    answer_requests(RequestHandler().handle, MEMORY)


if __name__ == "__main__":
    from metasched.daemon import forecast_process  # its types have this name in the daemon

    forecast_process.main()
