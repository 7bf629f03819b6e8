"""`make chaos`, second part: how long the jobs of b wait while a attacks, against a control.

Each attack on each kind of site, and all of them in random order. Nothing else runs meanwhile,
since delays are measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hostile.attacks import attacks_on
from tests.hostile.contest import RANDOM, Result, contend
from tests.hostile.sites import SITES, missing

STARTS = 100  # of b, in each attack and in each control
MAX_RATIO = 3.0  # of the median and of the worst delay
TOLERANCE = 1.0  # seconds; smaller differences from the control are due to polls


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile",
        description="Attack sites as one account, and compare what another account waits.",
    )
    parser.add_argument("--seed", default="1", help="what all draws depend on [1]")
    parser.add_argument("--starts", type=int, default=STARTS, help=f"of jobs of b [{STARTS}]")
    parser.add_argument("--kind", choices=list(SITES), action="append", help="kind of site [all]")
    parser.add_argument("--only", default="", metavar="WORD", help="attacks with it in their names")
    parser.add_argument("--json", action="store_true", help="print each result as a line of JSON")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the sites are closed first
    bad = False
    for site_name in options.kind or SITES:
        if (reason := missing(site_name)) is not None:
            print(f"{site_name} is left out: {reason}", file=sys.stderr)
            continue
        folder = Path(tempfile.mkdtemp(prefix="metasched-hostile-"))
        folder.chmod(0o711)
        try:
            with SITES[site_name](folder) as site:
                for attack in (*attacks_on(site_name), None):
                    if options.only not in (attack.name if attack is not None else RANDOM):
                        continue
                    result = contend(site, attack, options.seed, options.starts)
                    bad |= _is_bad(result)
                    print(_as_json(result) if options.json else result, flush=True)
                    for line in result.harm:
                        print(f"  {line}; seed {result.seed}", flush=True)
                site.site.stop()
                site.site.replayed()
        except pytest.skip.Exception as reason:  # the accounts cannot read this checkout
            print(f"{site_name} is left out: {reason}", file=sys.stderr)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


def _is_bad(result: Result) -> bool:
    """Whether jobs were lost, started twice or delayed too long."""
    attacked, control = result.attacked, result.control
    return bool(result.harm) or any(
        under_attack > max(MAX_RATIO * alone, alone + TOLERANCE)
        for under_attack, alone in (
            (attacked.median, control.median),
            (attacked.worst, control.worst),
        )
    )


def _as_json(result: Result) -> str:
    median, worst = result.ratios
    return json.dumps(
        {
            "kind": result.site_name,
            "attack": result.attack,
            "seed": result.seed,
            "starts": len(result.attacked.delays),
            "strikes": [result.attacked.strikes, result.control.strikes],
            "median": [result.attacked.median, result.control.median, median],
            "worst": [result.attacked.worst, result.control.worst, worst],
            "harm": result.harm,
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
