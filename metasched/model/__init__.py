"""Data types: jobs, clusters, listings, licences, reservations. Pure, validated.

job                   jobs, their states and reasons
cluster               clusters as configured, and their state as reported
listing               listings and accounting records of managers
arrays                ranges of array tasks, and the variables of each task
dependencies          syntax of dependencies between jobs
host_lists            lists of hosts as Slurm writes them: n[1-3],m1
output_paths          output paths with %A, %a and the like
tags                  tags that identify dispatches in managers
job_token             tokens that jobs make for calls of the daemon
licence               licence pools, leases, counts
limits                limits of users, groups, accounts, classes
fair_share            the tree of shares, and reported use
reservation           advance reservations and their states
daily_use             use of ended tasks, by day
job_usage             use of ended tasks, queried from accounting
report_figures        figures of reports: headings, texts, plots
survey                nodes and reservations as managers list them
reservation_request   requests for reservations, and the offers of a cluster
calendar              acts that recur
audit                 audit records and their kinds
mail, mail_types      mails that the owner of a job wants
notice                a fact that a mail or webhook reports
units                 durations, times, memory, counts as users write them
adapter_errors        what calls of an adapter raise
"""

from importlib import import_module

TYPE_CHECKING = False  # as that of typing: `metasched submit` imports a module of this package
if TYPE_CHECKING:
    from metasched.model.cluster import Cluster as Cluster
    from metasched.model.job import Job as Job
    from metasched.model.job import Payload as Payload
    from metasched.model.job import Reason as Reason
    from metasched.model.job import State as State

_HOMES = {
    "Cluster": "metasched.model.cluster",
    "Job": "metasched.model.job",
    "Payload": "metasched.model.job",
    "Reason": "metasched.model.job",
    "State": "metasched.model.job",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562): most importers need a single module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
