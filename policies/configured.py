"""Classification and dispatch with the parameters of a site's policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metasched.model.job import Job
from metasched.policies.classify import Classifier, Deadline, Licence, RatedAtSubmission, User
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.policy import Policy, weights_of


def make_classifier(policy: Policy, licences: int, margin_jobs: Sequence[Job]) -> Classifier:
    """Return the classification of a policy.

    `licences`: how many different licences the site has. `margin_jobs`: the last jobs with a
    deadline, oldest first, with which `Deadline` compares.
    """
    classifier = Classifier(
        max_priority=policy.max_priority,
        heuristics=[
            Deadline(window=policy.window),
            Licence(total=max(licences, 1)),
            User(classes=policy.classes),
            *map(RatedAtSubmission, policy.heuristics),
        ],
        weights={**policy.weights, **weights_of(policy.heuristics)},
    )
    for job in margin_jobs[-policy.window :]:
        classifier.remember(job)
    return classifier


def make_load_ordering(policy: Policy, clusters: Iterable[str]) -> LoadOrdering:
    """Return the dispatch of a policy over clusters, in the order of the site."""
    return LoadOrdering(
        list(clusters),
        max_priority=policy.max_priority,
        seed=policy.seed,
        tolerance=policy.tolerance,
        load=policy.load,
        ordering=policy.ordering,
        placement_weights=weights_of(policy.placement),
    )
