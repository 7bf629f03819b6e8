"""The process of a candidate policy, which decides beside the policy in force."""

from __future__ import annotations

import resource
from typing import NamedTuple

from metasched.model.job import Job
from metasched.model.shadow import ShadowDecision
from metasched.policies.policy import Policy
from metasched.policies.shadow import Candidate, Observation
from metasched.processes.pickled_process import answer_requests

MODULE = "metasched.daemon.shadow_process"
MEMORY = 2**30  # bytes of address space


class ShadowStart(NamedTuple):
    """A candidate, and its initial state; see `policies.shadow.Candidate`."""

    candidate: Policy
    clusters: tuple[str, ...]
    licences: int
    margin_jobs: tuple[Job, ...]
    compares_places: bool


class ObservedBatch(NamedTuple):
    """Observations of the core, in its order."""

    start: ShadowStart | None  # before them; None: the candidate of the last request
    observed: tuple[Observation, ...]


class ShadowReply(NamedTuple):
    """The decisions on observed placements, in their order."""

    decisions: tuple[ShadowDecision, ...]


class ShadowHandler:
    """Answers requests, in whatever process."""

    def __init__(self) -> None:
        self._candidate: Candidate | None = None

    def handle(self, request: ObservedBatch) -> ShadowReply:
        """Return the decisions on the observations. The first request has a `start`."""
        if request.start is not None:
            self._candidate = Candidate(*request.start)
        candidate = self._candidate
        assert candidate is not None
        decisions = map(candidate.decide, request.observed)
        return ShadowReply(tuple(each for each in decisions if each is not None))


def main() -> None:
    """Answer requests until the daemon closes the pipe."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answer_requests(ShadowHandler().handle)


if __name__ == "__main__":
    from metasched.daemon import shadow_process  # its types have this name in the daemon

    shadow_process.main()
