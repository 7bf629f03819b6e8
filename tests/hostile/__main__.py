"""`make chaos`, second part: how long the jobs of b wait while a attacks, against a control.

Each attack on each kind of site, and all of them in random order. Nothing else should run
meanwhile, since delays are measured. The rule is `MAX_RATIO`: neither the median nor the worst
delay may be more than three times that of the control, whatever the difference in seconds. A row
above it is played again with twice as many starts, and the second play counts.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.hostile.attacks import Attack, attacks_on
from tests.hostile.contest import STARTS, Result, contend
from tests.hostile.report import PAGE, Row, attack_names, store
from tests.hostile.sites import SITES, HostileSite, missing


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile",
        description="Attack sites as one account, and compare what another account waits.",
    )
    parser.add_argument("--seed", default="1", help="what all draws depend on [1]")
    parser.add_argument(
        "--starts",
        type=int,
        default=STARTS,
        help=f"of jobs of b; from {STARTS} on, rows are written to {PAGE.name} [{STARTS}]",
    )
    parser.add_argument("--kind", choices=list(SITES), action="append", help="kind of site [all]")
    parser.add_argument(
        "--only", action="append", metavar="WORD", help="attacks with it in their names [all]"
    )
    parser.add_argument("--json", action="store_true", help="print each result as a line of JSON")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the sites are closed first
    violated, begun = False, time.monotonic()
    for site_name in options.kind or SITES:
        if (reason := missing(site_name)) is not None:
            print(f"{site_name} is left out: {reason}", file=sys.stderr)
            continue
        names = attack_names(site_name)
        folder = Path(tempfile.mkdtemp(prefix="metasched-hostile-"))
        folder.chmod(0o711)
        try:
            with SITES[site_name](folder) as site:
                for name, attack in zip(names, (*attacks_on(site_name), None), strict=True):
                    if not any(pattern in name for pattern in options.only or [""]):
                        continue
                    minutes = (time.monotonic() - begun) / 60
                    progress = f"{names.index(name) + 1}/{len(names)}"
                    print(f"{minutes:.1f} min: {site_name} {progress}, {name}", file=sys.stderr)
                    result, row = _contest(site, attack, options.seed, options.starts)
                    violated |= bool(row.harm) or result.exceeds
                    print(msgspec.json.encode(row).decode() if options.json else result, flush=True)
                    for line in row.harm:
                        print(f"  {line}; seed {row.seed}", file=sys.stderr)
                    if options.starts >= STARTS:
                        store(row)
                site.site.stop()
                site.site.replayed()
        except pytest.skip.Exception as reason:  # the accounts cannot read this checkout
            print(f"{site_name} is left out: {reason}", file=sys.stderr)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if violated else 0


def _contest(
    site: HostileSite, attack: Attack | None, seed: str, starts: int
) -> tuple[Result, Row]:
    """Play a row, and again with twice as many starts if it was above the limit."""
    first = contend(site, attack, seed, starts)
    if not first.exceeds:
        return first, Row.of(first, 1, first.harm)
    print(f"played again: {first}", file=sys.stderr)
    second = contend(site, attack, seed, 2 * starts)
    return second, Row.of(second, 2, [*first.harm, *second.harm])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
