"""`sacctmgr`: accounts and associations, by the real command."""

from __future__ import annotations

from metasched.drop_in.command import exec_real

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the real sacctmgr, which names clusters by words of its own."""
    exec_real("sacctmgr", arguments)
    return 0
