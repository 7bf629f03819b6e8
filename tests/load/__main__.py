"""`make load`: many accounts load real clusters for minutes, while faults strike.

It needs root, a checkout that every account can read, and hours of an otherwise idle machine if
all tasks are to start; what has not started after `--minutes` is cancelled.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.load import report
from tests.load.run import FAULTS, run
from tests.load.site import LARGE, missing


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.load",
        description="Load a site with many accounts, and look whether any task is lost.",
    )
    parser.add_argument("--seed", default="1", help="what all draws depend on [1]")
    parser.add_argument(
        "--minutes", type=float, default=LARGE.minutes, help="of load [%(default)g]"
    )
    parser.add_argument(
        "--tasks", type=int, default=LARGE.tasks, help="submitted in all [%(default)d]"
    )
    parser.add_argument("--accounts", type=int, default=LARGE.accounts, help="[%(default)d]")
    parser.add_argument("--note", default="", help="sentences for the page, on circumstances")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--write", action="store_true", help=f"write {report.PAGE.name}")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the site is closed first
    if (lacking := missing()) is not None:
        print("needs {}: {}".format(*lacking), file=sys.stderr)
        return 1
    size = replace(
        LARGE,
        minutes=options.minutes,
        tasks=options.tasks,
        accounts=options.accounts,
        ramp=options.minutes * 60 * 0.4,
    )
    with tempfile.TemporaryDirectory(prefix="metasched-load-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        try:
            result = report.stored(run(folder, size, FAULTS, options.seed), options.note)
        except pytest.skip.Exception as reason:  # the accounts cannot read this checkout
            print(f"left out: {reason}", file=sys.stderr)
            return 1
    if options.write:
        report.store(result)
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        print("\n".join(report.lines(result)))
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
