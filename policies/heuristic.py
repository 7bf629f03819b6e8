"""What a heuristic of the classification is: sites add their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from metasched.model.job import MAX_PRIORITY, Job


class Heuristic(ABC):
    """One view of how urgent a job is; a site adds its own by writing a subclass.

    `name` is what weights and `explain` call it. `max_priority` is set by the classifier that
    takes the heuristic in; a heuristic serves one classifier.
    """

    name: ClassVar[str]
    max_priority: int = MAX_PRIORITY

    @abstractmethod
    def contribution(self, job: Job) -> float:
        """How urgent the job is, 1..max_priority, higher first. Asking changes nothing."""

    def remember(self, job: Job) -> None:  # noqa: B027 - most heuristics have no memory
        """Take note of a job that has just been classified."""
