"""The command `tune`."""

from __future__ import annotations

import json as json_format
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metasched.cli.common_options import JsonOption, NearestConfigOption
from metasched.cli.messages import warn
from metasched.cli.option_class import takes_options
from metasched.cli.progress import progress_bar
from metasched.cli.show import print_table, printable
from metasched.config.policy_words import written
from metasched.errors import UserError

if TYPE_CHECKING:
    from metasched.laboratory.tuning.inputs import InputSources, TuningInputs
    from metasched.laboratory.tuning.outcome import JudgedTrial, StudyResult
    from metasched.laboratory.tuning.search_space import SearchSpace

MAX_TRIALS = 10_000


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of `metasched tune`."""

    trace: Annotated[
        str,
        typer.Option(
            "--trace", metavar="TRACE", help="Jobs: a trace (SWF), or a generator of `simulate`."
        ),
    ] = ""
    history: Annotated[
        bool, typer.Option("--history", help="Jobs: those that the site's ledger has.")
    ] = False
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="FILE|URL", help="A backup [that of the site]."),
    ] = None
    clusters: Annotated[
        str | None,
        typer.Option("--clusters", metavar="SPEC|FILE", help="128, 2x64, 64,32,32 or a TOML file."),
    ] = None
    objective: Annotated[
        str,
        typer.Option("--objective", metavar="LIST", help="Figures to lower, with commas between."),
    ] = "mean_wait"
    trials: Annotated[
        int,
        typer.Option("--trials", min=1, max=MAX_TRIALS, help="Trials, those of before included."),
    ] = 100
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="The present policy [the defaults]."),
    ] = None
    local: Annotated[
        str | None,
        typer.Option("--local", metavar="NAME", help="Local policy of the clusters [fb-unmod]."),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key as in simulate; repeatable."),
    ] = None
    jobs: Annotated[
        str | None,
        typer.Option("--jobs", metavar="A:B", help="Use only jobs A to B-1, counted from 0."),
    ] = None
    held_out: Annotated[
        float,
        typer.Option(
            "--held-out", metavar="SHARE", help="Share of the jobs, the last, for the test."
        ),
    ] = 0.3
    keys: Annotated[
        str,
        typer.Option("--keys", metavar="LIST", help="Try these keys [all that can matter]."),
    ] = ""
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=10**9, help="Seed of jobs, search and intervals.")
    ] = 0
    storage: Annotated[
        str,
        typer.Option("--storage", metavar="URL", help="SQL database of trials [beside --out]."),
    ] = ""
    study: Annotated[
        str, typer.Option("--study", metavar="NAME", help="Name of the study in the database.")
    ] = "metasched"
    cores: Annotated[
        int | None,
        typer.Option("--cores", min=1, max=4096, metavar="N", help="Processes [one per core]."),
    ] = None
    dask: Annotated[
        str,
        typer.Option("--dask", metavar="ADDRESS", help="Run on the workers of a Dask scheduler."),
    ] = ""
    pick: Annotated[
        int | None,
        typer.Option("--pick", metavar="TRIAL", min=0, help="Write this trial [the best of all]."),
    ] = None
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Policy file to write.")] = (
        Path("tuned-policy.toml")
    )
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="OUT.png", help="Draw the trials and their trade-offs."),
    ] = None
    config: NearestConfigOption = None
    json: JsonOption = False


@takes_options(TuneOptions)
def tune(options: TuneOptions) -> None:
    """Search for a policy that serves the jobs of a trace better; test it on later jobs.

    The same command continues an interrupted search.

    \b
    Examples:
      metasched tune --trace site.swf --clusters site.toml --trials 200
      metasched tune --trace site.swf --clusters 2x64 --objective missed_deadlines,mean_wait
      metasched tune --history --objective mean_bounded_slowdown
      metasched tune --trace site.swf --policy policy.toml --keys send,pull_after,age
      metasched tune --trace site.swf --storage postgresql://db/tuning --study site
      metasched tune --trace site.swf --plot trials.png --pick 17 --out other.toml
    """
    from metasched.laboratory.tuning.inputs import InputSources, describe_inputs, read_inputs
    from metasched.laboratory.tuning.objectives import OF_DEADLINES, parse_objectives
    from metasched.laboratory.tuning.outcome import outcome_json
    from metasched.laboratory.tuning.search_space import make_search_space
    from metasched.laboratory.tuning.study import check_library
    from metasched.laboratory.tuning.tuned_policy import check_output, write_tuned_policy

    check_library()
    check_output(options.out)
    if options.plot is not None:
        from metasched.laboratory.experiments.plots import check_plot

        check_plot(options.plot)
    if not 0 < options.held_out < 1:
        raise UserError(f"{options.held_out:g} is no share, --held-out; write 0.1 to 0.5")
    objectives = parse_objectives(options.objective)
    _check_jobs(options)
    sources = InputSources(
        os.path.abspath(options.trace) if Path(options.trace).is_file() else options.trace,
        options.clusters,
        None if options.policy is None else str(options.policy),
        options.local,
        tuple(options.settings or ()),
        options.jobs,
        options.held_out,
        options.seed,
        options.database,
        None if options.config is None else str(options.config),
    )
    inputs = read_inputs(sources)
    if not any(entry.job.deadline is not None for entry in inputs.workload.entries):
        for name in set(objectives) & set(OF_DEADLINES):
            raise UserError(
                f"no job has a deadline, --objective {name}; add some with --set deadlines=0.5"
            )
    space = make_search_space(inputs, tuple(filter(None, options.keys.split(","))))
    description = describe_inputs(sources, inputs) | {
        "objectives": ", ".join(objectives),
        "keys": ", ".join(space.grid),
    }
    outcome, rate = _search(options, sources, inputs, space, objectives, description)
    for cause, count in inputs.workload.dropped.items():
        source = options.trace or "--history"
        warn(f"{count} jobs dropped ({cause}), {source}; the figures exclude them")
    if outcome.chosen is not None:
        provenance = {key: each for key, each in description.items() if key != "policy"}
        provenance["present policy"] = options.policy or "the defaults"
        write_tuned_policy(options.out, outcome, provenance)
    if options.plot is not None:
        from metasched.laboratory.experiments.plots import save_figure
        from metasched.laboratory.tuning.plot import plot_outcome

        save_figure(plot_outcome(outcome), options.plot)
    if options.json:
        answer = outcome_json(outcome) | rate
        answer["file"] = None if outcome.chosen is None else str(options.out)
        print(json_format.dumps(answer, indent=2))
    else:
        _print_outcome(outcome, options)


def _check_jobs(options: TuneOptions) -> None:
    """Refuse options that the source of the jobs does not take."""
    if bool(options.trace) == options.history:
        raise UserError("no jobs, or two sources of them; give either --trace or --history")
    if options.history:
        for value, option in (
            (options.clusters, "--clusters"),
            (options.local, "--local"),
            (options.settings, "--set"),
            (options.jobs, "--jobs"),
        ):
            if value:
                raise UserError(f"the record of the site has its own, {option}; leave it out")
        if options.dask:
            raise UserError("the record of the site is read on this host, --dask; leave it out")
    elif options.database is not None:
        raise UserError("a trace needs no database, --database; leave it out")


def _search(
    options: TuneOptions,
    sources: InputSources,
    inputs: TuningInputs,
    space: SearchSpace,
    objectives: tuple[str, ...],
    description: Mapping[str, Any],
) -> tuple[StudyResult, dict[str, float]]:
    """Run the missing trials and the test; return the outcome and the rate of this process."""
    from metasched.laboratory.tuning.outcome import judge
    from metasched.laboratory.tuning.study import Study, file_storage, open_study

    storage = options.storage or file_storage(options.out.with_suffix(".trials.db"))
    cores = options.cores or len(os.sched_getaffinity(0))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    started = time.perf_counter()
    study = None
    try:
        with (
            open_study(storage, options.study, dict(description), objectives, cores) as stored,
            _executor(options.dask, cores) as executor,
        ):
            study = Study(stored, sources, space, objectives)
            with progress_bar("trials", options.trials) as progress:
                study.run(options.trials, executor, progress)
            with progress_bar("held-out part", 1) as progress:
                outcome = judge(study.trials, options.pick, sources, space, objectives, executor)
                if progress is not None:
                    progress(1)
    except KeyboardInterrupt:
        finished = 0 if study is None else len(study.trials)
        print(
            f"metasched: {finished} of {options.trials} trials are finished and kept; "
            f"continue with: {_same_command(options.storage)}",
            file=sys.stderr,
        )
        raise
    return outcome, {
        "wall_seconds": time.perf_counter() - started,
        "cpu_seconds": study.cpu_seconds,
        "simulated_jobs": study.simulated_jobs,
    }


@contextmanager
def _executor(dask: str, cores: int) -> Iterator[Executor]:
    """Open processes, or a Dask cluster; an interrupt leaves trials that have not begun."""
    from concurrent.futures.process import BrokenProcessPool

    from metasched.laboratory.tuning.trials import end_on_interrupt

    if dask:
        from metasched.laboratory.experiments.catalogue import dask_executor

        with dask_executor(dask) as executor:
            yield executor
        return
    processes = ProcessPoolExecutor(
        cores,
        get_context("fork"),  # the processes share the jobs that were read for them
        end_on_interrupt,
    )
    try:
        yield processes
    except BrokenProcessPool:
        raise UserError(
            "a process of this command was killed, perhaps for its memory; "
            "repeat the command with fewer --cores: finished trials are kept"
        ) from None
    finally:
        processes.shutdown(cancel_futures=True)


def _same_command(storage: str) -> str:
    """Return this command line for a shell, without a password."""
    from metasched.laboratory.tuning.study import hidden_password

    hidden = hidden_password(storage) if storage else ""
    arguments = [
        argument.replace(storage, hidden) if storage else argument for argument in sys.argv[1:]
    ]
    return shlex.join(["metasched", *arguments])


def _print_outcome(outcome: StudyResult, options: TuneOptions) -> None:
    from metasched.laboratory.tuning.outcome import changed_keys
    from metasched.laboratory.tuning.tuned_policy import verdict

    failed = f", {len(outcome.failed)} could not be simulated" if outcome.failed else ""
    print(f"{len(outcome.trials)} trials, {outcome.pruned} pruned{failed}.")
    for each in outcome.failed[:1]:
        warn(f"trial {each.number} could not be simulated: {each.error}")
    print("Trade-offs that no other trial beats; the difference is from the present policy.\n")
    rows = [_row(outcome, judged) for judged in (outcome.present, *outcome.trade_offs)]
    headings = [
        heading
        for name in outcome.objectives
        for heading in (name.upper(), "HELD OUT", "DIFFERENCE, 95%")
    ]
    print_table(("TRIAL", *headings), rows)
    if outcome.chosen is None:
        print("\nNo trial is better than the present policy; no file is written.")
        return
    print(f"\nTrial {outcome.chosen.trial.number}:")
    for key, value in changed_keys(outcome.chosen, outcome.present.policy).items():
        print(f"  {printable(key)} = {written(key, value)}")
    print(f"\n{verdict(outcome)} Written to {printable(str(options.out))}.")


def _row(outcome: StudyResult, judged: JudgedTrial) -> list[str]:
    cells = ["present" if judged is outcome.present else str(judged.trial.number)]
    for index, name in enumerate(outcome.objectives):
        difference = judged.difference[name]
        cells += [f"{(judged.trial.values or ())[index]:.4g}", f"{judged.held_out[name]:.4g}"]
        cells.append(
            ""
            if difference is None or judged is outcome.present
            else f"{difference.difference:+.3g} [{difference.low:+.3g}, {difference.high:+.3g}]"
        )
    return cells
