"""`make chaos`: every fault, many times, by one seed; writes docs/reliability.md.

All of it lies in one folder, which is removed even if this process is killed.

Every round is noted when it is done: a run that was interrupted goes on where it was, if it is
started again with the same arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests import gridengine, slurm
from tests.chaos import report
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.points import ROOT
from tests.chaos.round import Managers, Result, play
from tests.chaos.site import keep_temporaries_in

NOTES = Path(ROOT) / ".chaos"
REPORT = Path(ROOT) / "docs" / "reliability.md"
KILLS = sum(fault.times for fault in FAULTS if fault.manager == "local" and fault.kills)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Strike daemons, workers and managers, and look whether any job is lost.",
    )
    parser.add_argument("--seed", type=int, default=1, help="what all draws depend on [1]")
    parser.add_argument(
        "--trials",
        type=int,
        default=KILLS,
        help=f"kills over local clusters; all else in proportion [{KILLS}]",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORDS",
        help='faults whose manager and name hold these words, such as "slurm killed"',
    )
    parser.add_argument("--fresh", action="store_true", help="forget rounds already done")
    given = parser.parse_args(arguments)
    if given.trials < 1:
        parser.error("--trials must be 1 or more")
    chosen = [
        (number, fault)
        for number, fault in enumerate(FAULTS)
        if not given.only or any(set(words.split()) <= set(_words(fault)) for words in given.only)
    ]
    if not chosen:
        parser.error("no fault of that name; there are " + "; ".join(map(_told, FAULTS)))
    whole = given.trials >= KILLS
    notes = NOTES / f"seed-{given.seed}-{given.trials}.jsonl"
    notes.parent.mkdir(exist_ok=True)
    if given.fresh:
        notes.unlink(missing_ok=True)
    command = " ".join(["make chaos", *_make_words(given)])
    console = Console(stderr=True)
    try:
        bad = _run(chosen, given.seed, given.trials / KILLS, notes, console)
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here")
        bad = True
    results = _noted(notes)
    if whole:
        REPORT.write_text(report.text(results, command, given.seed))
        console.print(f"written: {REPORT}")
    for line in report.lines(results, command, given.seed):
        print(line)
    return 1 if bad else 0


def _make_words(given: argparse.Namespace) -> list[str]:
    words = [f"--seed {given.seed}"] if given.seed != 1 else []
    words += [f"--trials {given.trials}"] if given.trials != KILLS else []
    return [f'CHAOS_ARGS="{" ".join(words)}"'] if words else []


def _words(fault: Fault) -> list[str]:
    return [fault.manager, *fault.name.replace(",", "").split()]


def _told(fault: Fault) -> str:
    return f"{fault.manager}: {fault.name}"


def _noted(notes: Path) -> list[Result]:
    if not notes.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in notes.read_text().splitlines()]


def _run(
    chosen: Sequence[tuple[int, Fault]], seed: int, share: float, notes: Path, console: Console
) -> bool:
    """Play the rounds that are not noted yet; whether anything was found in any."""
    done = {result.seed for result in _noted(notes)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        _removed_after_all() as base,
        Progress(
            *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
        ) as bar,
    ):
        for kind in ("local", "slurm", "gridengine"):
            rounds = [
                (fault, f"{seed}/{number}/{first}", strikes)
                for number, fault in chosen
                if fault.manager == kind
                for first, strikes in _portions(math.ceil(fault.times * share), fault.at_once)
            ]
            rounds = [one for one in rounds if one[1] not in done]
            if not rounds:
                continue
            left_out = {fault: why for fault, *_ in rounds if (why := fault.missing())}
            for fault, why in left_out.items():
                console.print(f"{_told(fault)} is left out: {why}")
            rounds = [one for one in rounds if one[0] not in left_out]
            if not rounds:
                continue
            with _managers(kind, base / kind) as managers:
                for fault, name, strikes in rounds:
                    task = bar.add_task(_told(fault), total=strikes)
                    folder = base / name.replace("/", "-")
                    result = play(
                        folder, fault, managers, name, strikes, partial(bar.advance, task)
                    )
                    if result.found:
                        kept = NOTES / folder.name
                        shutil.rmtree(kept, ignore_errors=True)
                        shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("*.sock"))
                        console.print(f"{_told(fault)}: {result.found}; see {kept}")
                    shutil.rmtree(folder, ignore_errors=True)
                    with notes.open("ab") as file:
                        file.write(msgspec.json.encode(result) + b"\n")
    return any(result.lost or result.duplicated or result.wrong for result in _noted(notes))


# removes a folder once standard input ends, so when its owner dies, by whatever signal
_REMOVE = 'cat >/dev/null; for _ in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$1" && exit; sleep 1; done'


@contextlib.contextmanager
def _removed_after_all() -> Iterator[Path]:
    """A folder for all that is started here."""
    folder = Path(tempfile.mkdtemp(prefix="metasched-chaos-"))
    remover = subprocess.Popen(
        ["sh", "-c", _REMOVE, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    keep_temporaries_in(folder)
    try:
        yield folder
    finally:
        remover.communicate()


def _portions(strikes: int, at_once: int) -> Iterator[tuple[int, int]]:
    """(number of the first, how many) for each round."""
    for first in range(0, strikes, at_once):
        yield first, min(at_once, strikes - first)


@contextlib.contextmanager
def _managers(kind: str, folder: Path) -> Iterator[Managers]:
    match kind:
        case "slurm":
            with slurm.SlurmSite(folder) as site:
                yield Managers(slurm=site)
        case "gridengine":
            with gridengine.Cell(folder) as cell:
                yield Managers(cell=cell)
        case _:
            yield Managers()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
