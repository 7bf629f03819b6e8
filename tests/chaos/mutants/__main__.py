"""`python -m tests.chaos.mutants`: restore repaired defects, count the trials that find each.

Each mutant gets a copy of the checkout. Its harness makes trials with new seeds until it reports a
defect. The same trials of the unchanged checkout, at least three, are the control: they must
report nothing. Results are stored beside the patches and rendered into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from tests.chaos.mutants import track_record
from tests.chaos.mutants.harnesses import Harness, HarnessError, Output
from tests.chaos.mutants.mutant import Mutant, MutantError, all_mutants, copy_checkout
from tests.chaos.mutants.track_record import Result

TRIALS = 100  # maximum per mutant
CONTROLS = 3  # minimum trials without the defect
PATIENCE = 120.0  # seconds for a step of a round; a defect may make it wait in vain
END = 60.0  # seconds for a harness to remove its sites when it is interrupted
# the harness ends with this process, even if that is killed
_BOUND = ("setpriv", "--pdeathsig", "INT", "--")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.mutants",
        description="Restore repaired defects, and count the trials until a harness finds each.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants [all]")
    parser.add_argument("--seed", type=int, default=1, help="what all draws depend on [1]")
    parser.add_argument(
        "--trials", type=int, default=TRIALS, help=f"maximum for each mutant [{TRIALS}]"
    )
    parser.add_argument("--json", action="store_true", help="print each result as a line of JSON")
    options = parser.parse_args(arguments)
    try:
        mutants = all_mutants()
    except MutantError as error:
        parser.error(str(error))
    if unknown := set(options.names) - {mutant.name for mutant in mutants}:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    if options.trials < 1:
        parser.error("--trials must be 1 or more")
    chosen = [mutant for mutant in mutants if mutant.name in (options.names or [mutant.name])]
    for number in (signal.SIGINT, signal.SIGTERM):  # shells make background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    console = Console(stderr=True)
    good = True
    try:
        for result in run(chosen, options.seed, options.trials, console):
            good &= result.found and result.clean
            print(msgspec.json.encode(result).decode() if options.json else result, flush=True)
            if options.trials >= TRIALS:
                track_record.store(result)
    except KeyboardInterrupt:
        console.print("interrupted; results of earlier mutants are stored")
        good = False
    if options.trials >= TRIALS:
        track_record.render_page()
    return 0 if good else 1


def run(mutants: Sequence[Mutant], seed: int, trials: int, console: Console) -> Iterator[Result]:
    """Yield the result of each mutant."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        _temporary_folder() as base,
        Progress(
            *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
        ) as bar,
    ):
        controls = _Controls(base, seed)
        for mutant in mutants:
            task = bar.add_task(mutant.name, total=trials)
            begun = time.monotonic()
            try:
                tree = base / "mutant"
                copy_checkout(tree)
                mutant.apply(tree)

                def advance(number: int, task: object = task) -> None:
                    bar.advance(task, number)  # type: ignore[arg-type]

                taken, finding = _search(base, tree, mutant.harness, seed, range(trials), advance)
                bar.update(
                    task, total=taken, completed=taken, description=f"{mutant.name}: control"
                )
                clean, false_finding = controls.run(mutant.harness, max(taken, CONTROLS))
            except (HarnessError, MutantError) as error:
                yield Result.failed(mutant, str(error))
            else:
                seconds = time.monotonic() - begun
                yield Result.measured(mutant, taken, finding, clean, false_finding, seconds)
            finally:
                shutil.rmtree(tree, ignore_errors=True)
            bar.update(task, description=mutant.name)


class _Controls:
    """Trials of the unchanged checkout, shared by the mutants of a harness."""

    def __init__(self, base: Path, seed: int) -> None:
        self._base, self._seed = base, seed
        self._tree = base / "control"
        self._made: dict[Harness, int] = {}  # clean trials
        self._findings: dict[Harness, str] = {}

    def run(self, harness: Harness, trials: int) -> tuple[int, str]:
        """Make at least that many trials in all; return (trials, finding or "")."""
        if not self._tree.exists():
            copy_checkout(self._tree)
        made = self._made.get(harness, 0)
        if made < trials and harness not in self._findings:
            taken, finding = _search(
                *(self._base, self._tree, harness, self._seed, range(made, trials)),
                advance=lambda number: None,
            )
            self._made[harness] = made + taken
            if finding:
                self._findings[harness] = finding
        return self._made[harness], self._findings.get(harness, "")


def _search(
    base: Path,
    tree: Path,
    harness: Harness,
    seed: int,
    trials: range,
    advance: Callable[[int], None],
) -> tuple[int, str]:
    """Make trials until a finding; return the number of trials made, and the finding or ""."""
    made = 0
    for first in range(trials.start, trials.stop, harness.size):
        with tempfile.TemporaryDirectory(prefix="t", dir=base, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            folder.chmod(0o711)
            arguments = harness.arguments(folder, f"{seed}-{first}")
            finding = harness.finding(_execute(tree, arguments, folder))
        made += harness.size
        advance(harness.size)
        if finding:
            return made, finding
    return made, ""


def _execute(tree: Path, arguments: Sequence[str], folder: Path) -> Output:
    """Run Python in the tree; interrupt it when this process is interrupted."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["METASCHED_PATIENCE"] = f"{PATIENCE:g}"
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [*_BOUND, tree / ".venv/bin/python", *arguments],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END)
                process.kill()
                process.wait()
    return Output(code, out.read_text(errors="replace"), err.read_text(errors="replace"), folder)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Yield a folder that all accounts can enter; remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ms-mutants-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
