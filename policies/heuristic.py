"""The interface of a classification heuristic; sites add their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from metasched.model.job import MAX_PRIORITY, Job


class Heuristic(ABC):
    """A rating of the urgency of a job; a site adds its own as a subclass.

    An instance serves a single classifier.
    """

    name: ClassVar[str]  # in weights and in `explain`
    max_priority: int = MAX_PRIORITY  # set by the classifier

    @abstractmethod
    def contribution(self, job: Job) -> float:
        """Return the urgency of the job, 1..max_priority, higher first. No state changes."""

    def remember(self, job: Job) -> None:  # noqa: B027 - optional: most heuristics keep no state
        """Take the classified job into account for later jobs."""
