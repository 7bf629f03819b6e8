"""A candidate policy beside the policy in force: its decisions in the same state. Pure.

The core hands on the inputs of a decision; `Candidate` decides anew from them. It never sees
the consequences of its own decisions: loads and queues are those of the policy in force.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from metasched.model.job import Job
from metasched.model.shadow import ShadowDecision
from metasched.policies.configured import make_classifier, make_load_ordering
from metasched.policies.dispatch import LoadArrays
from metasched.policies.plug_in_ratings import plug_ins_of
from metasched.policies.policy import Policy
from metasched.policies.tuned_strategies import make_optimisers

MAX_JOBS = 20_000  # classified jobs that may still be dispatched; older jobs are classified anew
MAX_OBSERVED_PER_STEP = 200  # a step may dispatch thousands of tasks of an array


class ObservedClassification(NamedTuple):
    """A job that was submitted or modified."""

    job: Job
    is_new: bool
    given: int | None = None  # priority that an operator gave it


class ObservedPlacement(NamedTuple):
    """A task that was dispatched from the queue of metasched, and what that was decided from."""

    time: float  # epoch seconds
    job: Job  # with the licences of its dispatch
    task_index: int
    priority: int
    cluster: str
    eligible: tuple[str, ...]
    loads: LoadArrays | None  # None: there was nothing to choose from


Observation = ObservedClassification | ObservedPlacement


def comparison_obstacle(live: Policy, candidate: Policy) -> str:
    """Return why the decisions of a candidate cannot be compared with those of a policy, or ""."""
    if candidate.max_priority != live.max_priority:
        return (
            f"max_priority is {candidate.max_priority}, that in force {live.max_priority}: "
            "their priorities cannot be compared"
        )
    if set(plug_ins_of(candidate)) != set(plug_ins_of(live)):
        return "it has other heuristics of the site than the policy in force; only these are asked"
    if candidate.run_times != live.run_times:
        return "it weighs the estimators of run times otherwise; jobs have the estimates in force"
    return ""


def place_obstacle(live: Policy, candidate: Policy) -> str:
    """Return why the clusters that a candidate chooses cannot be compared, or ""."""
    for name, policy in (("the candidate", candidate), ("the policy in force", live)):
        if policy.send == "late":
            return f"{name} binds late: a cluster depends on the order of all jobs"
    if candidate.load != live.load:
        return f'the policy in force has load = "{live.load}", and other loads are not known'
    return ""


class Candidate:
    """Decides as a candidate would have, from the observations of the core."""

    def __init__(
        self,
        candidate: Policy,
        clusters: Sequence[str],
        licences: int,
        margin_jobs: Sequence[Job],
        compares_places: bool,
    ) -> None:
        """`clusters`: in the order of the site; the others as of `make_classifier`."""
        self._classifier = make_classifier(candidate, licences, margin_jobs)
        self._classifier.optimisers = make_optimisers(
            self._classifier, candidate.self_optimising, {}
        )
        self._load_ordering = make_load_ordering(candidate, clusters)
        self._compares_places = compares_places
        self._priorities = OrderedDict[int, int]()  # by job
        self._remembered = {job.id for job in margin_jobs}

    def decide(self, observed: Observation) -> ShadowDecision | None:
        """Return the decision beside that of the policy in force; None: no task was dispatched."""
        if isinstance(observed, ObservedClassification):
            self._classify(observed)
            return None
        job, eligible = observed.job, observed.eligible
        priority = self._priorities.get(job.id)
        if priority is None:
            priority = self._classifier.peek(job)
        cluster: str | None = None
        if len(eligible) == 1:
            cluster = eligible[0]
        elif self._compares_places and observed.loads is not None:
            ordering = self._load_ordering
            ordering.take_arrays(observed.loads)
            everywhere = len(eligible) == len(ordering.clusters)
            cluster = ordering.choose(job, priority, None if everywhere else eligible)
        return ShadowDecision(
            time=observed.time,
            job=job.id,
            task_index=observed.task_index,
            user_class=job.user_class,
            deadline=job.deadline is not None,
            eligible=len(eligible),
            live_priority=observed.priority,
            priority=priority,
            live_cluster=observed.cluster,
            cluster=cluster,
        )

    def _classify(self, observed: ObservedClassification) -> None:
        job = observed.job
        self._priorities[job.id] = observed.given or self._classifier.peek(job)
        if observed.is_new and job.id not in self._remembered:
            self._classifier.remember(job)
        if len(self._priorities) > MAX_JOBS:
            self._priorities.popitem(last=False)
