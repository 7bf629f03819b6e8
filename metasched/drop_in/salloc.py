"""`salloc`: the real command, on a cluster that is chosen as for a batch job."""

from __future__ import annotations

from metasched.drop_in.command import exec_real
from metasched.drop_in.job_context import current_job_id, shows_own_id
from metasched.drop_in.placement import exec_on_cluster
from metasched.drop_in.srun_options import split_options

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the real salloc. Raises CommandError if no cluster can run the request."""
    options, program = split_options(arguments)
    inside = bool(current_job_id())
    if inside:
        shows_own_id("salloc")  # refused on a cluster without Slurm
    if not inside and not {name for name, _, _ in options} & {"help", "usage", "version"}:
        exec_on_cluster("salloc", options, program)
    exec_real("salloc", arguments)
    return 0
