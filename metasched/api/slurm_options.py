"""Options of sbatch that metasched does not interpret: clusters that take them get them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec import structs

from metasched.client.schemas import JobRequest
from metasched.config.settings import ClusterSettings
from metasched.errors import ApiError


def apply_slurm_options(
    request: JobRequest, clusters: Sequence[ClusterSettings]
) -> tuple[JobRequest, list[str]]:
    """Write `slurm_options` as native options of each cluster that takes them and may run the job.

    Return the request and warnings: a cluster of another kind runs the job without them, unless
    the request is `slurm_only`. ApiError if no Slurm cluster may run such a job.
    """
    if not request.slurm_options:
        return request, []
    names = " ".join(option.partition("=")[0] for option in request.slurm_options)
    eligible = [c for c in clusters if not request.clusters or c.cluster.name in request.clusters]
    slurm = [entry.cluster.name for entry in eligible if entry.capabilities.takes_sbatch_options]
    warnings = []
    if request.slurm_only:
        if not slurm:
            raise ApiError(
                422, f"{names}: for Slurm clusters alone, and none may run the job; leave it out"
            )
        request = structs.replace(request, clusters=tuple(slurm))
    elif len(slurm) < len(eligible):
        warnings.append(f"{names}: no effect on clusters other than Slurm's")
    options = shlex.join(request.slurm_options)
    native = dict(request.native)
    for name in slurm:
        native[name] = f"{options} {native[name]}" if name in native else options
    return structs.replace(request, native=native), warnings
