"""`sbcast` inside a job: the real command with Slurm's id of the job."""

from __future__ import annotations

from metasched.drop_in.command import exec_real
from metasched.drop_in.job_context import current_job_id, shows_own_id, use_manager_id

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the real sbcast. Raises CommandError if there is none."""
    if current_job_id() and shows_own_id("sbcast"):
        use_manager_id()
    exec_real("sbcast", arguments)
    return 0
