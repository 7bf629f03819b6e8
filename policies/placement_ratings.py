"""Placement by ratings: the mean of the site's heuristics and of the load. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from metasched.model.job import Job

EQUAL = 1e-9  # means that differ by no more are equal


def counting_ratings(
    job: Job, weights: Mapping[str, float], clusters: Collection[str]
) -> list[tuple[float, Mapping[str, float]]]:
    """Return (weight, rating by cluster) of the heuristics that have rated all these clusters.

    A cluster that was configured after the submission has no rating.
    """
    if job.ratings is None:
        return []
    return [
        (weights[name], ratings)
        for name, ratings in job.ratings.placements.items()
        if weights.get(name, 0) > 0 and all(cluster in ratings for cluster in clusters)
    ]


def best_rated(
    ratings: Iterable[tuple[float, Mapping[str, float]]],
    loads: Mapping[str, float],
    tolerance: float,
) -> list[str]:
    """Return the clusters with the highest weighted mean of ratings, in the order of `loads`.

    The load is a rating with weight 1: the least load over that of the cluster. Loads within
    `tolerance` of the least are rated 1.
    """
    least = min(loads.values())
    threshold = least * (1 + tolerance)
    rated = [
        *ratings,
        (1.0, {c: _load_rating(load, least, threshold) for c, load in loads.items()}),
    ]
    means = _means(rated, loads)
    best = max(means.values()) - EQUAL
    return [cluster for cluster, mean in means.items() if mean >= best]


def in_order_of_rating(
    ratings: Iterable[tuple[float, Mapping[str, float]]], clusters: Collection[str]
) -> list[str]:
    """Return the clusters, the best rated first; equally rated clusters in the given order."""
    means = _means(list(ratings), clusters)
    return sorted(clusters, key=lambda cluster: -means[cluster])


def _load_rating(load: float, least: float, threshold: float) -> float:
    return 1.0 if load <= threshold else least / load


def _means(
    ratings: Collection[tuple[float, Mapping[str, float]]], clusters: Iterable[str]
) -> dict[str, float]:
    total = math.fsum(weight for weight, _ in ratings)
    return {
        cluster: math.fsum(weight * by_cluster[cluster] for weight, by_cluster in ratings) / total
        for cluster in clusters
    }
