"""`python -m tests.chaos.one_round MANAGER FAULT SEED STRIKES FOLDER`: print a round's result.

The result is a line of JSON. The managers are booted for this round.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec

from tests.chaos.faults import FAULTS
from tests.chaos.round import boot_managers, play
from tests.chaos.site import keep_temporaries_in


def main(manager: str, name: str, seed: str, strikes: str, folder: str) -> int:
    [fault] = [fault for fault in FAULTS if (fault.manager, fault.name) == (manager, name)]
    if (reason := fault.missing()) is not None:
        print(reason, file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    base = Path(folder)
    keep_temporaries_in(base)
    with boot_managers(manager, base / "m") as managers:
        # no folder's name may begin another's: a site kills the processes that name its folder
        result = play(base / "round", fault, managers, seed, int(strikes))
    print(msgspec.json.encode(result).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
