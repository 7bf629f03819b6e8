"""What metasched talks about: jobs, clusters, listings, licences, reservations. Pure, validated.

job                   jobs, their states and reasons, clusters, listings
arrays                ranges of array tasks, and the variables of each task
dependencies          dependencies between jobs
output_paths          output paths with %A, %a and the like
tags                  the tags by which managers' jobs are found again
licence               licence pools, leases, counts
reservation           advance reservations, their states, what managers list of them
reservation_request   requests for reservations, and what one cluster can offer
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metasched.model.cluster import Cluster as Cluster
    from metasched.model.job import Job as Job
    from metasched.model.job import Payload as Payload
    from metasched.model.job import Reason as Reason
    from metasched.model.job import State as State

_HOMES = dict.fromkeys(("Cluster", "Job", "Payload", "Reason", "State"), "metasched.model.job")


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562): most importers need one module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
