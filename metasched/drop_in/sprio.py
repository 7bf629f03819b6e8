"""`sprio`: parts of the priority of jobs, by the real command on their clusters."""

from __future__ import annotations

from metasched.drop_in.job_tools import CLUSTERS, run_tool

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = {
    **CLUSTERS,
    "help": "",
    "usage": "",
    "verbose": "v",
    "version": "V",
    "federation": "",
    "format=": "o",
    "jobs=": "j",
    "local": "",
    "long": "l",
    "noheader": "h",
    "norm": "n",
    "partition=": "p",
    "sibling": "",
    "sort=": "S",
    "user=": "u",
    "weights": "w",
}


def main(arguments: Sequence[str]) -> int:
    """Run the real sprio. Return its exit code."""
    return run_tool("sprio", OPTIONS, arguments)
