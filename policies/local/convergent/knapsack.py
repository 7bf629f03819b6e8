"""Jobs that may hold scarce licences together: 0-1 multidimensional knapsacks. Pure.

Jobs that ask for scarce licences form clusters, the connected components of the hypergraph with
licences as nodes and jobs as edges. A knapsack is solved per cluster: capacities are free copies,
a job's value is its mean preference. Pasquali 2008, §3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse.csgraph import connected_components

from metasched.policies.local.convergent.table import FloatArray, IndexArray, Mask

MAX_NODES = 10_000  # of branch and bound in a knapsack; a bound in nodes keeps plans repeatable
# From values (N), amounts (N x L) and capacities (L): the chosen jobs (N).
Knapsack = Callable[[FloatArray, FloatArray, FloatArray], Mask]


def choose_greedy_printed(values: FloatArray, amounts: FloatArray, capacities: FloatArray) -> Mask:
    """Discard the job with the least value per weight until the others fit.

    The weight of a job is the sum of `amount / capacity` over exceeded capacities. It changes when
    a discarded job leaves a capacity no longer exceeded, so at most L orders are made, each
    O(N L + N log N). Every job must fit alone.
    """
    chosen = np.ones(len(values), dtype=bool)
    excess = total_amounts(amounts) - capacities
    inverse = 1 / np.maximum(capacities, 1e-12)  # of a capacity of 0 no copy is asked for
    while np.count_nonzero(exceeded := excess > 0):  # a fraction of the time of `any`
        weights = amounts @ (inverse * exceeded)
        candidates = ((weights > 0) & chosen).nonzero()[0]
        ratios = values.take(candidates) / weights.take(candidates)
        limits = np.where(exceeded, excess, math.inf)
        order, released = _least_that_release(ratios, candidates, amounts, limits)
        chosen[order] = False
        excess -= released
    return chosen


def choose_greedy(values: FloatArray, amounts: FloatArray, capacities: FloatArray) -> Mask:
    """Choose as `choose_greedy_printed`. Discarded jobs that fit return, by descending ratio.

    The return is ours.
    """
    chosen = choose_greedy_printed(values, amounts, capacities)
    remaining = capacities - total_amounts(amounts[chosen])
    returning = np.flatnonzero(~chosen & fit(amounts, remaining))
    weights = (amounts[returning] / np.maximum(capacities, 1.0)).sum(axis=1)
    for best in returning[_descending(values[returning] / np.maximum(weights, 1e-12))]:
        if (amounts[best] <= remaining).all():
            chosen[best] = True
            remaining = remaining - amounts[best]
    return chosen


def _least_that_release(
    ratios: FloatArray, candidates: IndexArray, amounts: FloatArray, limits: FloatArray
) -> tuple[IndexArray, FloatArray]:
    """Return the fewest candidates, by ascending ratio, that release one of the limits.

    Also return what they release. Sorts only as many as are mostly enough.
    """
    size = 4 * math.ceil(limits.min()) + 16
    while True:
        near = ratios <= (np.partition(ratios, size)[size] if size < len(ratios) else math.inf)
        order = candidates[near].take(_descending(ratios[near])[::-1])
        released = np.add.accumulate(amounts.take(order, axis=0))
        last, column = divmod(int((released >= limits).argmax()), len(limits))
        if released[last, column] >= limits[column]:
            return order[: last + 1], released[last]
        size *= 4


def choose_exact(values: FloatArray, amounts: FloatArray, capacities: FloatArray) -> Mask:
    """Maximise the sum of values with HiGHS, in at most `MAX_NODES` nodes of branch and bound.

    Where the bound is reached before any solution is better, the greedy choice stands.
    """
    greedy = choose_greedy(values, amounts, capacities)
    result = milp(
        -values,
        constraints=LinearConstraint(amounts.T, -np.inf, capacities),
        integrality=np.ones(len(values)),
        bounds=Bounds(0, 1),
        options={"node_limit": MAX_NODES},
    )
    if result.x is None:
        return greedy
    chosen: Mask = result.x > 0.5
    fits = bool((amounts[chosen].sum(axis=0) <= capacities).all())
    return chosen if fits and values[chosen].sum() >= values[greedy].sum() else greedy


KNAPSACKS: Mapping[tuple[str, str], Knapsack] = MappingProxyType(
    {  # by `knapsack` and `discarded` of the weights
        ("greedy", "return"): choose_greedy,
        ("greedy", "wait"): choose_greedy_printed,
        ("exact", "return"): choose_exact,
        ("exact", "wait"): choose_exact,
    }
)


def cluster_by_licence(requests: Mask) -> IndexArray:
    """Return the cluster of each job, from 0; `requests` is jobs x licences.

    Jobs without a request have clusters of their own.
    """
    asked = requests.astype(float)
    with_most = asked[:, int(total_amounts(asked).argmax())] @ asked
    if (with_most > 0).all():  # mostly; SciPy takes ten times as long
        labels = np.zeros(len(with_most), dtype=np.intp)
    else:
        # licences that a job asks for together
        _, labels = connected_components(asked.T @ asked > 0, directed=False)
    clusters: IndexArray = labels[requests.argmax(axis=1)].astype(np.intp)
    alone = np.flatnonzero(asked @ np.ones(len(labels)) == 0)
    clusters[alone] = len(labels) + np.arange(len(alone))
    return clusters


def choose_jobs(
    values: FloatArray, amounts: FloatArray, capacities: FloatArray, solve: Knapsack
) -> Mask:
    """Return jobs that fit together; all that ask for no exceeded capacity are among them.

    Every job must fit alone.
    """
    chosen = np.ones(len(values), dtype=bool)
    scarce = total_amounts(amounts) > capacities
    if not scarce.any():
        return chosen
    if not scarce.all():
        amounts, capacities = amounts[:, scarce], capacities[scarce]
    asking = np.flatnonzero(amounts @ np.ones(len(capacities)))
    clusters = cluster_by_licence(amounts.take(asking, axis=0) > 0)
    for cluster in np.flatnonzero(np.bincount(clusters)):
        members = asking[clusters == cluster]
        needs, copies = amounts.take(members, axis=0), capacities
        of_cluster = total_amounts(needs) > 0
        if not of_cluster.all():
            needs, copies = needs[:, of_cluster], copies[of_cluster]
        chosen[members] = solve(values[members], needs, copies)
    return chosen


def total_amounts(amounts: FloatArray) -> FloatArray:
    """Return the sum over all jobs; a product takes a fifth of the time of `sum`."""
    return np.ones(len(amounts)) @ amounts


def fit(amounts: FloatArray, free: FloatArray) -> Mask:
    """Return which jobs fit alone, N; a product takes a third of the time of `all`."""
    fits: Mask = (amounts > free) @ np.ones(len(free)) == 0
    return fits


def _descending(keys: FloatArray) -> IndexArray:
    """Return positions by descending key, ties in their order."""
    positions: IndexArray = (-keys).argsort(kind="stable")
    return positions
