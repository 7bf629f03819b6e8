"""All experiments by name, and their execution: every case with every seed, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from pathlib import Path

from metasched.errors import quote_for_error
from metasched.laboratory.experiments.admission import ADMISSION
from metasched.laboratory.experiments.estimates import ESTIMATES
from metasched.laboratory.experiments.federated import FEDERATED
from metasched.laboratory.experiments.finished_runs import open_finished_runs
from metasched.laboratory.experiments.harness import (
    CaseSource,
    Experiment,
    ExperimentCase,
    ExperimentError,
    FigureResult,
)
from metasched.laboratory.experiments.knapsacks import CONVERGENT_EXACT
from metasched.laboratory.experiments.kurowski2011 import RESERVATIONS
from metasched.laboratory.experiments.local_policies import BOUNDED_WAITS, LOCAL_POLICIES
from metasched.laboratory.experiments.pasquali2008 import PUBLISHED
from metasched.laboratory.experiments.pass_times import CONVERGENT_SCALING
from metasched.laboratory.experiments.plans import (
    GRID_PLANS,
    GRID_PLANS_LARGE,
    PLAN_READINGS,
    PLAN_TIMES,
    PLANS,
    TABU_READINGS,
)
from metasched.laboratory.experiments.reserving_jobs import RESERVING_JOBS
from metasched.laboratory.experiments.self_optimised_traces import SELF_OPTIMISED_TRACES
from metasched.laboratory.experiments.self_optimising import CLASSIFIED

DASK_TIMEOUT = 30.0  # seconds to connect to a Dask scheduler
MAX_LOST_WORKERS = 3  # retries of a run after a lost worker
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        *PUBLISHED,
        CONVERGENT_EXACT,
        CONVERGENT_SCALING,
        PLANS,
        PLAN_TIMES,
        PLAN_READINGS,
        TABU_READINGS,
        GRID_PLANS,
        GRID_PLANS_LARGE,
        LOCAL_POLICIES,
        BOUNDED_WAITS,
        *CLASSIFIED,
        SELF_OPTIMISED_TRACES,
        *RESERVATIONS,
        ADMISSION,
        RESERVING_JOBS,
        *FEDERATED,
        ESTIMATES,
    )
}


def find_experiment(name: str) -> Experiment:
    """Return the experiment of that name. ExperimentError if there is none."""
    if name not in EXPERIMENTS:
        close = get_close_matches(name, EXPERIMENTS, n=1)
        remedy = f"write {close[0]}" if close else "see metasched experiment --list"
        raise ExperimentError(f'unknown experiment "{name}"; {remedy}')
    return EXPERIMENTS[name]


def run_experiment(
    experiment: Experiment,
    runs: int,
    progress: Callable[[int], None] | None = None,
    dask: str = "",
    resume: Path | None = None,
    source: CaseSource = None,
    rows: Sequence[str] = (),
) -> list[FigureResult]:
    """Run every case with seeds 1..runs; return the results in the order of the cases.

    Uses all cores, or the Dask cluster whose scheduler has the address `dask`; its workers need
    this release of metasched, and METASCHED_TRACES where traces are read. Runs in the file `resume`
    are not repeated, others are added to it. With a `source` its cases are run; with `rows` only
    cases of these settings. ExperimentError if there is no such row or the scheduler does not
    answer, UserError if the file cannot be used.
    """
    cases = experiment.select_cases(source)
    chosen = [index for index, case in enumerate(cases) if not rows or case.row in rows]
    _check_rows(cases, rows)
    for index in chosen[:1]:
        case = cases[index]
        case.scenario(1)  # reports missing traces before processes start
    with ExitStack() as stack:
        finished = None
        values: dict[tuple[int, int], dict[str, float]] = {}
        if resume is not None:
            finished = stack.enter_context(open_finished_runs(resume, experiment))
            values.update(finished.figures)
        all_runs = [(index, seed) for seed in range(1, runs + 1) for index in chosen]
        missing = [run for run in all_runs if run not in values]
        if progress is not None:
            progress(len(all_runs) - len(missing))
        cores = len(os.sched_getaffinity(0))
        executor = stack.enter_context(dask_executor(dask) if dask else ProcessPoolExecutor(cores))
        pending = {
            executor.submit(_run_case, experiment.name, *run, source): run for run in missing
        }
        for future in as_completed(pending):
            run = pending[future]
            values[run] = future.result()
            if finished is not None:
                finished.add(*run, values[run])
            if progress is not None:
                progress(1)
    return list(_results(experiment, cases, chosen, runs, values))


def _check_rows(cases: Sequence[ExperimentCase], rows: Sequence[str]) -> None:
    available = list(dict.fromkeys(case.row for case in cases))
    for row in rows:
        if row not in available:
            close = get_close_matches(row, available, n=1)
            remedy = f'write "{close[0]}"' if close else f"available are {', '.join(available)}"
            raise ExperimentError(f"unknown setting {quote_for_error(row)}, --row; {remedy}")


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """Connect to a Dask cluster; a task whose worker is lost is run by another."""
    try:
        from distributed import Client
    except ImportError:
        raise ExperimentError(
            "distributed is not installed, --dask; install it with pip install 'metasched[dask]'"
        ) from None
    try:
        client = Client(address, timeout=DASK_TIMEOUT, set_as_default=False)
    except (OSError, TimeoutError, ValueError):
        raise ExperimentError(
            f"no Dask scheduler answers at {address}, --dask; write it as tcp://HOST:PORT"
        ) from None
    with client:
        yield client.get_executor(pure=False, retries=MAX_LOST_WORKERS)


def _run_case(name: str, index: int, seed: int, source: CaseSource = None) -> dict[str, float]:
    """Return the figures of a case with a seed; runs in a process of the pool."""
    experiment = EXPERIMENTS[name]
    result = experiment.select_cases(source)[index].run(seed)
    return {name: figure(result) for name, figure in experiment.figures.items()}


def _results(
    experiment: Experiment,
    cases: Sequence[ExperimentCase],
    chosen: Sequence[int],
    runs: int,
    values: Mapping[tuple[int, int], Mapping[str, float]],
) -> Iterator[FigureResult]:
    seeds = range(1, runs + 1)
    for index in chosen:
        case = cases[index]
        baseline_index = next(
            (
                position
                for position, candidate in enumerate(cases)
                if candidate.row == case.row and candidate.column == experiment.baseline
            ),
            index,
        )
        for figure in experiment.figures:
            case_values = tuple(values[index, seed][figure] for seed in seeds)
            baseline_values = tuple(values[baseline_index, seed][figure] for seed in seeds)
            published = case.published.get(figure)
            yield FigureResult(
                row=case.row,
                column=case.column,
                figure=figure,
                values=case_values,
                published=published,
                baseline=None if baseline_index == index else baseline_values,
            )
