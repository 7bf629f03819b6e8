"""The experiments by name, and how one is run: every case with every seed, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from difflib import get_close_matches

from metasched.experiments.admission import ADMISSION
from metasched.experiments.federated import BETTER
from metasched.experiments.harness import Experiment, ExperimentError, Playable, Result
from metasched.experiments.kurowski2011 import RESERVATIONS
from metasched.experiments.pasquali2008 import PUBLISHED

ANSWERS = 30.0  # seconds in which a Dask scheduler must have answered
LOST_WORKERS = 3  # times that a run may lose its worker
EXPERIMENTS = {e.name: e for e in (*PUBLISHED, *RESERVATIONS, ADMISSION, *BETTER)}


def find(name: str) -> Experiment:
    """The experiment of that name. ExperimentError if there is none."""
    if name not in EXPERIMENTS:
        close = get_close_matches(name, EXPERIMENTS, n=1)
        mend = f"write {close[0]}" if close else "see metasched experiment --list"
        raise ExperimentError(f'unknown experiment "{name}"; {mend}')
    return EXPERIMENTS[name]


def run(
    experiment: Experiment,
    runs: int,
    progress: Callable[[int], None] | None = None,
    dask: str = "",
) -> list[Result]:
    """Run every case with seeds 1..runs; in the order of the cases.

    On all cores it may use, or on the Dask cluster whose scheduler has the address `dask`: its
    workers need this release of metasched, and METASCHED_TRACES where traces are read.
    ExperimentError if that does not answer.
    """
    cases = experiment.cases()
    for case in cases[:1]:
        case.grid(1)  # what is missing is told before processes are started
    values: dict[tuple[int, int], dict[str, float]] = {}
    with _on_dask(dask) if dask else ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waiting = {
            pool.submit(_one, experiment.name, place, seed): (place, seed)
            for seed in range(1, runs + 1)
            for place in range(len(cases))
        }
        for done in as_completed(waiting):
            values[waiting[done]] = done.result()
            if progress is not None:
                progress(1)
    return list(_results(experiment, cases, runs, values))


@contextmanager
def _on_dask(address: str) -> Iterator[Executor]:
    """The workers of a Dask cluster; a task whose worker is lost is run by another."""
    try:
        from distributed import Client
    except ImportError:
        raise ExperimentError(
            "no distributed, --dask; install it with pip install 'metasched[dask]'"
        ) from None
    try:
        client = Client(address, timeout=ANSWERS, set_as_default=False)
    except (OSError, TimeoutError, ValueError):
        raise ExperimentError(
            f"no Dask scheduler answers at {address}, --dask; name one as tcp://HOST:PORT"
        ) from None
    with client:
        yield client.get_executor(pure=False, retries=LOST_WORKERS)


def _one(name: str, place: int, seed: int) -> dict[str, float]:
    """The figures of one case with one seed, in a process of the pool."""
    experiment = EXPERIMENTS[name]
    schedule = experiment.cases()[place].play(seed)
    return {name: figure(schedule) for name, figure in experiment.figures.items()}


def _results(
    experiment: Experiment,
    cases: Sequence[Playable],
    runs: int,
    values: Mapping[tuple[int, int], Mapping[str, float]],
) -> Iterator[Result]:
    seeds = range(1, runs + 1)
    for place, case in enumerate(cases):
        base = next(
            (
                p
                for p, other in enumerate(cases)
                if other.row == case.row and other.column == experiment.baseline
            ),
            place,
        )
        for figure in experiment.figures:
            ours = tuple(values[place, seed][figure] for seed in seeds)
            theirs = tuple(values[base, seed][figure] for seed in seeds)
            published = case.published.get(figure)
            yield Result(
                case.row, case.column, figure, ours, published, None if base == place else theirs
            )
