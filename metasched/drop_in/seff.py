"""`seff`: the efficiency of a job, by the real command on its cluster."""

from __future__ import annotations

from metasched.drop_in.job_tools import CLUSTERS, run_tool

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = {  # it has no long options
    **CLUSTERS,
    "d": "d",
    "h": "h",
    "v": "v",
}


def main(arguments: Sequence[str]) -> int:
    """Run the real seff. Return its exit code."""
    return run_tool("seff", OPTIONS, arguments)
