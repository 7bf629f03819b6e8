"""`sstat`: use of resources by running jobs, by the real command on their clusters."""

from __future__ import annotations

from metasched.drop_in.job_tools import CLUSTERS, run_tool

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = {
    **CLUSTERS,
    "help": "h",
    "usage": "",
    "verbose": "v",
    "version": "V",
    "allsteps": "a",
    "format=": "o",
    "helpformat": "e",
    "jobs=": "j",
    "noconvert": "",
    "noheader": "n",
    "parsable": "p",
    "parsable2": "P",
    "pidformat": "i",
}


def main(arguments: Sequence[str]) -> int:
    """Run the real sstat. Return its exit code."""
    return run_tool("sstat", OPTIONS, arguments)
