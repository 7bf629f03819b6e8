"""`make chaos`: inject every fault many times, from one seed; write docs/reliability.md.

All sites are in one temporary folder, which is removed even if this process is killed.

Rounds run in parallel, each on its own site. A lane boots its managers once for all its rounds.
The result of each round is stored when it ends. An interrupted run resumes when it is started
again with the same arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from tests.chaos import model, report
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.points import ROOT
from tests.chaos.round import Managers, Result, boot_managers, play
from tests.chaos.site import STOP, Stopped, keep_temporaries_in

NOTES = Path(ROOT) / ".chaos"
REPORT = Path(ROOT) / "docs" / "reliability.md"
LANES = {  # rounds at a time
    "local": 3,
    "local_site": 1,
    "postgresql": 1,
    "slurm": 2,
    "slurm_site": 1,
    "gridengine": 1,
    "slurm_postgresql": 1,
}
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
    parser.add_argument(
        "--model",
        type=int,
        default=0,
        metavar="TRIALS",
        help="instead, trials of a simulated manager that stands still, such as 10000",
    )
    parser.add_argument("--fresh", action="store_true", help="forget rounds already done")
    options = parser.parse_args(arguments)
    if options.trials < 1:
        parser.error("--trials must be 1 or more")
    if options.model:
        return model.run(options.seed, options.model, NOTES, options.fresh)
    chosen = [
        (number, fault)
        for number, fault in enumerate(FAULTS)
        if not options.only
        or any(set(phrase.split()) <= set(_words(fault)) for phrase in options.only)
    ]
    if not chosen:
        parser.error("no fault of that name; there are " + "; ".join(map(_label, FAULTS)))
    whole = options.trials >= KILLS
    notes = NOTES / f"seed-{options.seed}-{options.trials}.jsonl"
    notes.parent.mkdir(exist_ok=True)
    if options.fresh:
        notes.unlink(missing_ok=True)
    command = " ".join(["make chaos", *_make_words(options)])
    console = Console(stderr=True)
    broken = False
    for number in (signal.SIGINT, signal.SIGTERM):  # shells make background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    try:
        _run(chosen, options.seed, options.trials / KILLS, notes, console)
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here")
        broken = True
    results = _noted(notes)
    if whole:
        REPORT.write_text(report.text(results, command, options.seed))
        console.print(f"written: {REPORT}")
    for line in report.lines(results, command, options.seed):
        print(line)
    bad = any(result.lost or result.duplicated or result.wrong for result in results)
    return 1 if bad or broken else 0


def _make_words(options: argparse.Namespace) -> list[str]:
    arguments = [f"--seed {options.seed}"] if options.seed != 1 else []
    arguments += [f"--trials {options.trials}"] if options.trials != KILLS else []
    return [f'CHAOS_ARGS="{" ".join(arguments)}"'] if arguments else []


def _words(fault: Fault) -> list[str]:
    return [fault.manager, *fault.name.replace(",", "").split()]


def _label(fault: Fault) -> str:
    return f"{fault.manager}: {fault.name}"


def _noted(notes: Path) -> list[Result]:
    if not notes.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in notes.read_text().splitlines()]


@dataclass(frozen=True)
class _Round:
    """The strikes of a fault on one site; `seed` identifies the round."""

    fault: Fault
    seed: str
    strikes: int


def _rounds(
    chosen: Sequence[tuple[int, Fault]], seed: int, share: float, done: Collection[str]
) -> dict[str, list[_Round]]:
    """Return the rounds still to run, by kind of manager; the first round of each fault leads."""
    portions = [
        (first // fault.at_once, number, _Round(fault, f"{seed}/{number}/{first}", strikes))
        for number, fault in chosen
        for first, strikes in _portions(math.ceil(fault.times * share), fault.at_once)
    ]
    portions.sort(key=lambda portion: portion[:2])
    remaining = [turn for _, _, turn in portions if turn.seed not in done]
    return {
        manager: [turn for turn in remaining if turn.fault.manager == manager] for manager in LANES
    }


class _Run:
    """Runs rounds in parallel: each lane has its own managers and takes rounds in sequence."""

    def __init__(self, base: Path, notes: Path, console: Console, bar: Progress) -> None:
        self._base, self._notes, self._console, self._bar = base, notes, console, bar
        self._tasks: dict[Fault, TaskID] = {}
        self._note = threading.Lock()

    def play(self, manager: str, rounds: list[_Round]) -> None:
        for turn in rounds:
            if turn.fault not in self._tasks:
                self._tasks[turn.fault] = self._bar.add_task(_label(turn.fault), total=0)
            task = self._tasks[turn.fault]
            self._bar.update(task, total=(self._bar.tasks[task].total or 0) + turn.strikes)
        waiting: SimpleQueue[_Round] = SimpleQueue()
        for turn in rounds:
            waiting.put(turn)
        lanes = range(min(LANES[manager], len(rounds)))
        with ThreadPoolExecutor(len(lanes) or 1) as pool:
            for done in [pool.submit(self._lane, manager, lane, waiting) for lane in lanes]:
                done.result()

    def _lane(self, manager: str, lane: int, waiting: SimpleQueue[_Round]) -> None:
        with (
            contextlib.suppress(Empty, Stopped),
            boot_managers(manager, self._folder(manager, lane)) as of,
        ):
            while True:
                self._one(waiting.get_nowait(), of)

    def _folder(self, manager: str, lane: int) -> Path:
        return self._base / f"{manager}.{lane}"

    def _one(self, turn: _Round, managers: Managers) -> None:
        # no folder's name may begin another's: a site kills the processes that name its folder
        folder = self._base / f"{turn.seed.replace('/', '-')}.round"

        def struck() -> None:
            if STOP.is_set():
                raise Stopped
            self._bar.advance(self._tasks[turn.fault])

        result = play(folder, turn.fault, managers, turn.seed, turn.strikes, struck)
        if result.failure:
            copy = NOTES / folder.stem
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.sock"))
            self._console.print(f"{_label(turn.fault)}: {result.failure}; see {copy}")
        shutil.rmtree(folder, ignore_errors=True)
        with self._note, self._notes.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")


def _run(
    chosen: Sequence[tuple[int, Fault]], seed: int, share: float, notes: Path, console: Console
) -> None:
    """Play the rounds that have no stored result."""
    had = [(number, fault) for number, fault in chosen if not _left_out(fault, console)]
    rounds = _rounds(had, seed, share, {result.seed for result in _noted(notes)})
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        _removed_after_all() as base,
        Progress(
            *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
        ) as bar,
        ThreadPoolExecutor(len(LANES)) as pool,
    ):
        run = _Run(base, notes, console, bar)
        plays = [
            pool.submit(run.play, manager, of_manager) for manager, of_manager in rounds.items()
        ]
        try:
            for done in plays:
                done.result()
        finally:
            STOP.set()


def _left_out(fault: Fault, console: Console) -> bool:
    if reason := fault.missing():
        console.print(f"{_label(fault)} is left out: {reason}")
    return reason is not None


# removes a folder when standard input closes, hence also when its owner is killed
_REMOVE = 'cat >/dev/null; for _ in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$1" && exit; sleep 1; done'


@contextlib.contextmanager
def _removed_after_all() -> Iterator[Path]:
    """Yield a folder for all rounds; remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="metasched-chaos-"))
    folder.chmod(0o711)  # PostgreSQL does not run as root
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
    """Yield (number of the first strike, number of strikes) for each round."""
    for first in range(0, strikes, at_once):
        yield first, min(at_once, strikes - first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
