"""The command `policy try`: a policy file on the record of the site, or on a trace."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metasched.cli.common_options import JsonOption, NearestConfigOption
from metasched.cli.messages import fail
from metasched.cli.option_class import takes_options
from metasched.cli.past_moments import parse_past_moment
from metasched.cli.progress import progress_bar
from metasched.cli.show import print_table, printable
from metasched.config.policy_file import examine_policy, read_policy_text
from metasched.config.policy_words import differences, values_of, written
from metasched.errors import UserError

if TYPE_CHECKING:
    from metasched.db.replay import Replay
    from metasched.db.store import Database
    from metasched.laboratory.experiments.policy_trial import Comparison
    from metasched.laboratory.simulate.recorded_workload import RecordedPeriod
    from metasched.policies.policy import Policy

EXIT_MISTAKES = 2
EXIT_OTHER_DECISIONS = 1
SHOWN_NOTES = 20  # problems of a replay that are printed


@dataclass(frozen=True, kw_only=True)
class TryOptions:
    """Arguments and options of `metasched policy try`."""

    file: Annotated[str, typer.Argument(metavar="FILE", show_default=False)]
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Jobs submitted from then on [all stored]."),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", metavar="T", help="Jobs submitted before then.")
    ] = None
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="POLICY",
            help="Compare with a file, or `default` [the recorded].",
        ),
    ] = None
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="FILE|URL", help="A backup [that of the site]."),
    ] = None
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="A trace (SWF) instead.")
    ] = None
    clusters: Annotated[
        str | None,
        typer.Option("--clusters", metavar="SPEC|FILE", help="Of the trace: 128, 64,32 or TOML."),
    ] = None
    sacct: Annotated[
        list[Path] | None,
        typer.Option("--sacct", metavar="FILE", help="Output of `sacct -P` instead; repeatable."),
    ] = None
    qacct: Annotated[
        list[Path] | None,
        typer.Option("--qacct", metavar="FILE", help="Output of `qacct -j`; repeatable."),
    ] = None
    cpus: Annotated[
        list[str] | None,
        typer.Option(
            "--cpus", metavar="NAME=N", help="Processors of a cluster of these [the most in use]."
        ),
    ] = None
    html: Annotated[
        Path | None, typer.Option("--html", metavar="OUT.html", help="Write a page with plots.")
    ] = None
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the intervals.")] = 0
    json: JsonOption = False
    config: NearestConfigOption = None


@takes_options(TryOptions)
def try_policy(options: TryOptions) -> int:
    """Say what a policy would have changed: waits, deadlines, moves, licences, by whom and where.

    The jobs that were submitted in the period run again on simulated clusters, under the recorded
    policy and under FILE. The record holds the jobs of all users: only who may read the database
    can try a policy. An operator may give an author a copy (`metasched db backup`).

    The recorded events are also replayed, and must give the recorded decisions; those of a
    release that decides otherwise are left out. Times are as of `status --since`.
    Exit codes: 0 done, 1 a replay gives other decisions, 2 mistakes in FILE.

    \b
    Examples:
      metasched policy try candidate.toml --since 30d --html try.html
      metasched policy try candidate.toml --database monday.db --json
      metasched policy try candidate.toml --sacct alpha.txt --qacct beta.txt --cpus alpha=512
      metasched policy try candidate.toml --trace KTH-SP2.swf.gz --clusters 64,36
    """
    reading = examine_policy(read_policy_text(Path(options.file)), options.file)
    if reading.policy is None:
        for mistake in reading.mistakes:
            fail(mistake, EXIT_MISTAKES)
        return EXIT_MISTAKES
    from metasched.laboratory.simulate.settings import check_heuristics

    check_heuristics(reading.policy, options.file)
    if options.html is not None:
        from metasched.laboratory.experiments.report import check_report

        check_report(options.html, "--html")
    now = time.time()
    since, until = (
        parse_past_moment(text, now, option)
        for text, option in ((options.since, "--since"), (options.until, "--until"))
    )
    if since is not None and until is not None and until <= since:
        raise UserError("the period ends before it begins, --until; give a later time")
    period, database = _read_source(options, since, until)
    before = _policy_before(options.before, period.policy)
    outcome = _run(options, period, before, reading.policy, database, since)
    _report(options, outcome)
    replayed = outcome.replayed
    return EXIT_OTHER_DECISIONS if replayed is not None and replayed.problems else 0


def _read_source(
    options: TryOptions, since: float | None, until: float | None
) -> tuple[RecordedPeriod, Database | None]:
    """Return the period that the options name, and its database if it has any."""
    accounting, trace = options.sacct or options.qacct, options.trace
    for value, option, applies, remedy in (
        (options.clusters, "--clusters", trace, "it is for --trace; leave it out"),
        (options.cpus, "--cpus", accounting, "it is for --sacct and --qacct; leave it out"),
        (options.database, "--database", not (trace or accounting), "name one source of jobs"),
        (trace, "--trace", not accounting, "name one source of jobs"),
        (
            options.since or options.until,
            "--since",
            not trace,
            "a trace has no dates",
        ),
    ):
        if value is not None and not applies:
            raise UserError(f"{option} does not go with the other options; {remedy}")
    if trace is not None:
        return _traced_period(options, trace), None
    if accounting:
        from metasched.laboratory.simulate.accounting_history import parse_cpus, read_accounting

        cpus = parse_cpus(options.cpus or [])
        return read_accounting(options.sacct or [], options.qacct or [], cpus, since, until), None
    from metasched.laboratory.simulate.recorded_workload import read_period
    from metasched.laboratory.simulate.site_record import open_record

    database = open_record(options.database, options.config)
    with database.snapshot() as connection:
        return read_period(connection, since, until), database


def _traced_period(options: TryOptions, trace: Path) -> RecordedPeriod:
    from metasched.laboratory.simulate.recorded_workload import RecordedPeriod
    from metasched.laboratory.simulate.settings import read_settings, read_workload
    from metasched.policies.local.orders import EASY
    from metasched.policies.policy import Policy

    settings = read_settings(EASY.name, (), options.seed, options.clusters)
    workload, clusters = read_workload(str(trace), options.clusters, None, settings)
    return RecordedPeriod(
        workload=workload,
        tasks=(),
        clusters=clusters,
        policy=Policy(),
        pools=settings.licence_pools,
        fair_share=settings.fair_share,
        limits=settings.limits,
        local_policies={cluster.name: cluster.policy or EASY.name for cluster in clusters},
    )


def _policy_before(name: str | None, recorded: Policy) -> Policy:
    from metasched.config.policy_file import parse_policy

    if name is None:
        return recorded
    if name == "default":
        return parse_policy("", name)
    return parse_policy(read_policy_text(Path(name)), name)


def _run(
    options: TryOptions,
    period: RecordedPeriod,
    before: Policy,
    after: Policy,
    database: Database | None,
    since: float | None,
) -> _Outcome:
    """Simulate both policies and replay the record, each in a process of its own."""
    from metasched.laboratory.experiments.parallel_work import run_at_once
    from metasched.laboratory.experiments.policy_trial import compare, run_policy

    works: list[Callable[..., Any]] = [
        partial(run_policy, period, policy) for policy in (before, after)
    ]
    if database is not None:
        works.append(partial(_replay, database, since))
    with progress_bar("jobs ended", 2 * len(period.workload.entries), 1000) as progress:
        trial_before, trial_after, *replayed = run_at_once(works, progress)
    try:
        comparison = compare(period, trial_before, trial_after, options.seed)
    except ValueError as error:
        raise UserError(f"{error}; choose another period") from None
    left_out = trial_before.dropped | trial_after.dropped
    replay_result = replayed[0] if replayed else None
    excluded = [
        f"heuristic {name} was excluded for {count} jobs {when}; correct it"
        for when, trial in (("before", trial_before), ("after", trial_after))
        for name, count in trial.excluded.items()
    ]
    excluded += [
        f"local policy {name} failed in {count} passes {when}, which FCFS decided; correct it"
        for when, trial in (("before", trial_before), ("after", trial_after))
        for name, count in trial.excluded_passes.items()
    ]
    return _Outcome(period, before, after, comparison, left_out, excluded, replay_result, database)


def _replay(database: Database, since: float | None, _: Callable[[int], None]) -> Replay | None:
    from metasched.db.replay import replay

    with database.snapshot() as connection:
        return replay(connection, float("-inf") if since is None else since)


@dataclass(frozen=True)
class _Outcome:
    period: RecordedPeriod
    before: Policy
    after: Policy
    comparison: Comparison
    left_out: Mapping[str, int]  # tasks by cause
    excluded: Sequence[str]  # notes on heuristics of the site
    replayed: Replay | None
    database: Database | None  # None: the jobs are those of files

    def notes(self) -> list[str]:
        """Return what to know of the figures."""
        notes = [*self.period.notes, *self.excluded]
        classes = {entry.job.user_class for entry in self.period.workload.entries}
        for name in sorted(classes - self.after.classes.keys()):
            notes.append(
                f'the file has no class "{name}": its jobs count 1 here; the daemon refuses the '
                "file while metasched.toml names the class"
            )
        if self.replayed is not None:
            notes.append(_describe_replay(self.replayed))
            notes += self.replayed.problems[:SHOWN_NOTES]
        elif self.database is not None:
            notes.append(
                "no event was recorded by a release that decides as this one: none was replayed"
            )
        return notes


def _describe_replay(replayed: Replay) -> str:
    text = f"{replayed.events} events were replayed: "
    if replayed.problems:
        text += f"{len(replayed.problems)} decisions or states are not those recorded"
    else:
        text += f"they give all {replayed.decisions} recorded decisions again"
    if replayed.older_events:
        text += f"; {replayed.older_events} older events were not replayed"
    return text


def _report(options: TryOptions, outcome: _Outcome) -> None:
    changed = differences(values_of(outcome.before), values_of(outcome.after))
    keys = [
        (row.name, written(row.name, row.before), written(row.name, row.after), row.effect)
        for row in changed
    ]
    if options.html is not None:
        from metasched.laboratory.experiments.policy_trial_page import render

        text = render(_about(options, outcome), outcome.comparison, keys, outcome.notes())
        options.html.write_text(text, encoding="utf-8")
    if options.json:
        print(json_format.dumps(_as_json(options, outcome, changed), indent=2))
    else:
        _print(outcome, keys)


def _about(options: TryOptions, outcome: _Outcome) -> Mapping[str, object]:
    about: dict[str, object] = {
        "source": _source(options, outcome),
        "policy": options.file,
        "compared with": options.before
        or ("default" if outcome.database is None else "the recorded policy"),
        "jobs": outcome.comparison.jobs,
    }
    if options.trace is None:
        about["from"] = _iso(outcome.comparison.first)
        about["until"] = _iso(outcome.comparison.last)
    return about


def _source(options: TryOptions, outcome: _Outcome) -> str:
    files = (options.trace,) if options.trace else (*(options.sacct or ()), *(options.qacct or ()))
    return ", ".join(map(str, files)) if outcome.database is None else str(outcome.database)


def _iso(moment: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def _as_json(options: TryOptions, outcome: _Outcome, changed: Sequence[Any]) -> dict[str, Any]:
    replayed = outcome.replayed
    return {
        **{key.replace(" ", "_"): value for key, value in _about(options, outcome).items()},
        "seed": options.seed,
        "differences": [row._asdict() for row in changed],
        "replay": None
        if replayed is None
        else {
            "events": replayed.events,
            "older_events": replayed.older_events,
            "decisions": replayed.decisions,
            "problems": replayed.problems,
        },
        "left_out": outcome.left_out,
        "notes": outcome.notes(),
        **outcome.comparison.as_json(),
    }


def _print(outcome: _Outcome, keys: Sequence[Sequence[str]]) -> None:
    from metasched.laboratory.experiments.policy_trial_page import (
        CHANGE_HEADINGS,
        change_rows,
        group_table,
    )

    comparison = outcome.comparison
    if keys:
        print_table(("KEY", "BEFORE", "AFTER", "EFFECT"), keys)
    else:
        print("The policies do not differ.")
    print()
    print_table(CHANGE_HEADINGS, change_rows(comparison.changes))
    for kind, groups in comparison.groups.items():
        if groups:
            print()
            print_table(*group_table(kind, groups))
    print(
        f"\n{comparison.jobs} jobs, {comparison.elsewhere} of them on another cluster. Waits in "
        f"seconds; intervals of 95% over {comparison.blocks}."
    )
    for cause, count in outcome.left_out.items():
        print(f"note: {count} tasks are left out: {cause}")
    for note in outcome.notes():
        print(f"note: {printable(note)}")
