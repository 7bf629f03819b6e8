"""`sattach`: attaches to a step of a job, by the real command on its cluster."""

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
    "error-filter=": "",
    "input-filter=": "",
    "label": "l",
    "layout": "",
    "output-filter=": "",
    "pty": "",
    "quiet": "Q",
}


def main(arguments: Sequence[str]) -> int:
    """Run the real sattach. Return its exit code."""
    return run_tool("sattach", OPTIONS, arguments)
