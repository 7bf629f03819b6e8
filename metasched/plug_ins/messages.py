"""The frames of JSON between the daemon and the process of the plug-ins."""

from __future__ import annotations

import msgspec

from metasched.model.job import Job
from metasched.policies.heuristic import ClusterTraits
from metasched.policies.plug_in_ratings import PlugIn, Rating


class Question(msgspec.Struct, frozen=True):
    """Jobs to be rated. Without jobs, the plug-ins are loaded only."""

    id: str  # random; an answer has the same, else it was written before the question
    plug_ins: tuple[PlugIn, ...]
    jobs: tuple[Job, ...] = ()
    clusters: tuple[ClusterTraits, ...] = ()


class PlugInAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ratings of a plug-in for all jobs of a question; a frame for each plug-in, in its order.

    So a plug-in that ends the process is the first plug-in without an answer.
    """

    id: str  # of the question
    ratings: tuple[Rating, ...] = ()  # of each job
    error: str = ""  # why it cannot be loaded
