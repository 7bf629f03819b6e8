"""`sshare`: shares of accounts, by the real command."""

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
    "Users": "U",
    "accounts=": "A",
    "all": "a",
    "format=": "o",
    "helpformat": "e",
    "long": "l",
    "noheader": "n",
    "parsable": "p",
    "parsable2": "P",
    "partition": "m",
    "users=": "u",
}


def main(arguments: Sequence[str]) -> int:
    """Run the real sshare. Return its exit code."""
    return run_tool("sshare", OPTIONS, arguments)
