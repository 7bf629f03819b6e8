"""Whether a gain is real: paired differences on jobs that no trial has seen, with intervals.

Waits of neighbouring jobs depend on each other, so whole days are resampled, not jobs (a block
bootstrap; Künsch 1989). Both policies run the same jobs: a block has the differences of its jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from metasched.laboratory.tuning.trials import HeldOutRun

RESAMPLES = 2000
DAY = 86400.0  # seconds: the length of a block
MIN_BLOCKS = 20  # a shorter period has shorter blocks


class PairedDifference(NamedTuple):
    """A mean difference per job from the present policy; negative: lower, which is better."""

    difference: float
    low: float  # of the 95% interval
    high: float


def paired_difference(
    candidate: HeldOutRun, present: HeldOutRun, objective: str, seed: int
) -> PairedDifference | None:
    """Compare two runs of the same jobs; None if no job counts. The seed decides the resamples."""
    candidate_values, present_values = candidate.values[objective], present.values[objective]
    job_ids = [job_id for job_id in present_values if job_id in candidate_values]
    if not job_ids:
        return None
    differences = numpy.array(
        [candidate_values[job_id] - present_values[job_id] for job_id in job_ids]
    )
    submitted = numpy.array([present.submitted[job_id] for job_id in job_ids])
    blocks = _blocks(submitted)
    sums = numpy.bincount(blocks, differences)
    counts = numpy.bincount(blocks)
    sums, counts = sums[counts > 0], counts[counts > 0]
    draws = numpy.random.default_rng(seed).integers(0, len(sums), (RESAMPLES, len(sums)))
    means = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    low, high = numpy.percentile(means, (2.5, 97.5))
    return PairedDifference(float(differences.mean()), float(low), float(high))


def _blocks(submitted: NDArray[Any]) -> NDArray[Any]:
    """Return the block of each job, from 0, by its submission in seconds."""
    first, last = submitted.min(), submitted.max()
    length = min(DAY, (last - first) / MIN_BLOCKS) or DAY
    blocks: NDArray[Any] = ((submitted - first) // length).astype(int)
    return blocks


def count_refused(candidate: HeldOutRun, present: HeldOutRun) -> int:
    """Return how many jobs ran under the present policy only: limits refuse the others."""
    return len(present.submitted.keys() - candidate.submitted.keys())


def is_gain(differences: Mapping[str, PairedDifference | None]) -> bool:
    """Return whether an interval lies below 0 and none above: some gain, and no loss."""
    measured = [each for each in differences.values() if each is not None]
    return any(each.high < 0 for each in measured) and not any(each.low > 0 for each in measured)
