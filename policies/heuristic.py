"""The interfaces of heuristics; a site adds its own as plug-ins.

A plug-in is registered as an entry point, named in the policy file, and run in a process of its own
(`metasched.plug_ins`). It is created with the `parameters` of the policy file as keywords. It is
pure: no clock, no I/O, no random draw, nothing remembered between two jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from metasched.model.job import MAX_PRIORITY, Job


class Heuristic(ABC):
    """A rating of the urgency of a job.

    An instance serves a single classifier.
    """

    name: str  # in weights and in `explain`; of a plug-in that of its entry point
    max_priority: int = MAX_PRIORITY  # set by the classifier

    @abstractmethod
    def contribution(self, job: Job) -> float | None:
        """Return the urgency of the job, 0..max_priority, higher first. No state changes.

        None: the heuristic has no part in the mean.
        """

    def remember(self, job: Job) -> None:  # noqa: B027 - optional: most heuristics keep no state
        """Take the classified job into account for later jobs. Not called of a plug-in."""


class ClusterTraits(msgspec.Struct, frozen=True):
    """The data of a cluster for a heuristic of the placement: nothing that changes with load."""

    name: str
    adapter: str
    benchmark: float = 1.0  # speed of a processor relative to the other clusters
    cpus: int = 0  # processors; 0: not reported yet


class PlacementHeuristic(ABC):
    """A rating of how well a cluster suits a job."""

    @abstractmethod
    def rating(self, job: Job, cluster: ClusterTraits) -> float:
        """Return 0..1, 1: the best cluster."""


class RunTimeEstimator(ABC):
    """An expectation of how long a job runs, of a job with a time limit."""

    @abstractmethod
    def seconds(self, job: Job) -> float:
        """Return the expected run time in seconds, at least 0.001. At most the limit counts."""
