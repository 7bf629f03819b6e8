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
_OF_THE_CALLER = ("PYTHONPATH", "PYTEST_ADDOPTS")  # variables that the copy does not inherit
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
            if result.found or options.trials >= TRIALS:
                track_record.store(result)
    except KeyboardInterrupt:
        console.print("interrupted; the results so far are kept")
        good = False
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

                search = _Search(base, tree, mutant.harness, seed)
                search.run(trials, advance)
                taken = search.made
                bar.update(
                    task, total=taken, completed=taken, description=f"{mutant.name}: control"
                )
                control = controls.run(mutant.harness, max(taken, CONTROLS))
            except (HarnessError, MutantError) as error:
                yield Result.failed(mutant, str(error))
            else:
                seconds = time.monotonic() - begun
                yield Result.measured(
                    mutant, taken, search.finding, control.made, control.finding, seconds
                )
            finally:
                shutil.rmtree(tree, ignore_errors=True)
            bar.update(task, description=mutant.name)


class _Search:
    """Trials of a harness in a copy of the checkout, until they find a defect."""

    def __init__(self, base: Path, tree: Path, harness: Harness, seed: int) -> None:
        self._base, self._tree, self._harness, self._seed = base, tree, harness, seed
        self._processes = 0
        self.made = 0
        self.finding = ""

    def run(self, trials: int, advance: Callable[[int], None] = lambda number: None) -> None:
        """Make that many trials in all, a few more, or fewer if they find a defect."""
        while self.made < trials and not self.finding:
            with tempfile.TemporaryDirectory(
                prefix="t", dir=self._base, ignore_cleanup_errors=True
            ) as name:
                folder = Path(name)
                folder.chmod(0o711)
                arguments = self._harness.arguments(folder, f"{self._seed}-{self._processes}")
                done = self._harness.trials(_execute(self._tree, arguments, folder))
            self._processes += 1
            self.made += done.made
            self.finding = done.finding
            advance(done.made)


class _Controls:
    """Trials of the unchanged checkout, shared by the mutants of a harness."""

    def __init__(self, base: Path, seed: int) -> None:
        self._base, self._seed = base, seed
        self._tree = base / "control"
        self._searches: dict[Harness, _Search] = {}

    def run(self, harness: Harness, trials: int) -> _Search:
        """Make at least that many trials in all."""
        if not self._tree.exists():
            copy_checkout(self._tree)
        if harness not in self._searches:
            self._searches[harness] = _Search(self._base, self._tree, harness, self._seed)
        self._searches[harness].run(trials)
        return self._searches[harness]


def _execute(tree: Path, arguments: Sequence[str], folder: Path) -> Output:
    """Run Python in the tree; interrupt it when this process is interrupted."""
    environment = {k: v for k, v in os.environ.items() if k not in _OF_THE_CALLER}
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
