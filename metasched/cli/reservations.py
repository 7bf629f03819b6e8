"""The commands `reserve`, `reservations` and `reservation cancel`."""

import json as json_format
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any, TypeVar

import typer

from metasched.cli.calendar import local_time
from metasched.cli.common_options import ConfigOption, JsonOption, require_value
from metasched.cli.completion import complete_clusters, complete_licences, complete_reservations
from metasched.cli.connect import connect
from metasched.cli.gantt import draw_picture, render_chart
from metasched.cli.option_class import takes_options
from metasched.cli.show import format_time, print_table
from metasched.errors import UserError
from metasched.model.units import (
    ParseError,
    parse_count,
    parse_duration,
    parse_last_day,
    parse_licences,
    parse_moment,
    parse_names,
)

T = TypeVar("T")
ReservationArgument = Annotated[
    str, typer.Argument(metavar="ID", show_default=False, autocompletion=complete_reservations)
]

reservation = typer.Typer(
    help="""Manage advance reservations.

    \b
    Examples:
      metasched reservation cancel 3
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, kw_only=True)
class ReserveOptions:
    """Options of `metasched reserve`, as written."""

    size: Annotated[
        str | None, typer.Option("--size", "-n", metavar="N", help="Processors [--nodes: nodes].")
    ] = None
    nodes: Annotated[bool, typer.Option("--nodes", help="Sizes count nodes, not processors.")] = (
        False
    )
    start: Annotated[
        str | None, typer.Option("--start", metavar="TIME", help="Start time: +2h, 17:30, ...")
    ] = None
    end: Annotated[str | None, typer.Option("--end", metavar="TIME", help="End time.")] = None
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="DUR", help="Duration: 90s, 10m, 1h30m.")
    ] = None
    ready: Annotated[
        str | None, typer.Option("--ready", metavar="TIME", help="Earliest start [now].")
    ] = None
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="Latest end.")
    ] = None
    at_least: Annotated[
        str | None,
        typer.Option("--at-least", metavar="N|DUR", help="Smallest acceptable size or duration."),
    ] = None
    at_most: Annotated[
        str | None,
        typer.Option("--at-most", metavar="N|DUR", help="Largest useful size or duration."),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME,...",
            help="Only these clusters.",
            autocompletion=complete_clusters,
        ),
    ] = None
    let_run: Annotated[
        str | None,
        typer.Option(
            "--let-run", metavar="DUR", help="Time that jobs may run after its end [site's]."
        ),
    ] = None
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence",
            "-L",
            metavar="NAME[:N],...",
            help="Reserve these licences, too.",
            autocompletion=complete_licences,
        ),
    ] = None
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="U",
            callback=require_value,
            help="Owner [you; others: operators only].",
        ),
    ] = None
    mail: Annotated[
        str | None,
        typer.Option(
            "--mail",
            metavar="ADDRESS",
            callback=require_value,
            help="Address to notify if it breaks [owner's name].",
        ),
    ] = None
    users: Annotated[
        str | None,
        typer.Option("--users", metavar="U,...", help="Accounts whose jobs may run in it, too."),
    ] = None
    groups: Annotated[
        str | None,
        typer.Option("--groups", metavar="G,...", help="Groups whose members' jobs may, too."),
    ] = None
    accounts: Annotated[
        str | None,
        typer.Option(
            "--accounts", metavar="A,...", help="Instead: only jobs of these accounts, of any user."
        ),
    ] = None
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="RULE",
            callback=require_value,
            help='A series: "mon-fri 08:00", or five fields of cron.',
        ),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", metavar="DATE", help="Last day of the series.")
    ] = None
    zone: Annotated[
        str | None,
        typer.Option("--zone", metavar="ZONE", help="Time zone of the series [the site's]."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List possible windows; reserve nothing.")
    ] = False
    json: JsonOption = False
    config: ConfigOption = None


@takes_options(ReserveOptions)
def reserve(options: ReserveOptions) -> None:
    """Reserve processors or nodes for a time; run jobs there by `submit --reservation ID`.

    --start fixes the window; otherwise it is the earliest between --ready and --deadline.
    --at-least and --at-most give a range of sizes (with --duration) or of durations (with --size);
    the largest that is free is reserved. Clusters that reserve nodes round processors up.

    --every makes a series, whose occurrences are reserved some weeks ahead. One that is not free by
    then is skipped: see `metasched events`.

    \b
    Examples:
      metasched reserve --size 32 --start 2030-01-31T08:00 --duration 4h
      metasched reserve --size 2 --nodes --duration 1h --deadline +2d
      metasched reserve --at-least 16 --at-most 64 --duration 1h --ready 18:00 --deadline +1d
      metasched reserve --size 16 --at-least 1h --at-most 8h --deadline 23:00 --dry-run
      metasched reserve --size 8 --start +2h --duration 1h --licence matlab:4
      metasched reserve --size 8 --start 18:00 --duration 1h --users bob,eve --groups aero
      metasched reserve --size 8 --start 18:00 --duration 1h --accounts aero,marine
      metasched reserve --size 8 --duration 4h --every "mon-fri 08:00" --until 2030-06-30
    """
    if options.every is not None:
        _reserve_series(options, time.time())
        return
    if options.until is not None or options.zone is not None:
        option = "--until" if options.zone is None else "--zone"
        raise UserError(f"{option} without --every; add the rule of a series")
    request = _reservation_terms(options, time.time())
    client = connect(options.config)
    if not options.dry_run:
        row = client.reserve(request)
        if options.json:
            print(json_format.dumps(row, indent=2))
        else:
            _print_reservations([row])
        return
    windows = client.free_windows(request)
    if options.json:
        print(json_format.dumps({"offers": windows}, indent=2))
    else:
        print("Dry run, nothing reserved. Possible windows:")
        _print_offers(windows)


def _reserve_series(options: ReserveOptions, now: float) -> None:
    """Make a series, or list its occurrences."""
    if options.until is None:
        raise UserError("no --until, metasched reserve --every; give the last day")
    windows = ("start", "end", "ready", "deadline")
    if conflicting := [name for name in windows if getattr(options, name) is not None]:
        raise UserError(f"--{conflicting[0]} beside --every, which gives the starts; leave one out")
    terms = _reservation_terms(options, now)
    if terms["shortest"] != terms["longest"]:
        raise UserError("a range of durations beside --every; give --duration")
    duration = terms.pop("longest")
    for name in ("shortest", "ready", "deadline"):
        del terms[name]
    until = _parse_option("--until", options.until, lambda text: parse_last_day(text, now))
    terms |= {"every": options.every, "duration": duration, "until": until}
    if options.zone is not None:
        terms["zone"] = options.zone
    row = connect(options.config).make_series(terms)
    if options.json:
        print(json_format.dumps(row, indent=2))
        return
    count = row["occurrences"]
    if options.dry_run:
        remark = f", the first {len(row['next'])} of {count}" if count > len(row["next"]) else ""
        print(f"Dry run, nothing reserved. Occurrences{remark}:")
        for moment in row["next"]:
            print(local_time(moment))
        return
    first = local_time(row["next"][0])
    print(f"series {row['entry']}: {count} occurrences from {first}; see `metasched calendar`")


def _reservation_terms(options: ReserveOptions, now: float) -> dict[str, object]:
    """Return the body of the request. `now` is in epoch seconds."""
    duration, window = _duration_and_window(options, now)
    let_run = options.let_run
    terms: dict[str, object] = {
        **_size_and_duration(options, duration),
        **window,
        "by_node": options.nodes,
        "clusters": list(_parse_option("--cluster", options.cluster, parse_names) or ()),
        "let_run": 0.0 if let_run == "0" else _parse_option("--let-run", let_run, parse_duration),
        "dry_run": options.dry_run,
    }
    if licences := _parse_option("--licence", options.licence, parse_licences):
        terms["licences"] = licences
    sharing = {"users": options.users, "groups": options.groups, "accounts": options.accounts}
    for name, names in sharing.items():
        if names is not None:
            terms[name] = list(_parse_option(f"--{name}", names, parse_names) or ())
    if options.user is not None:
        terms["user"] = options.user
    if options.mail is not None:
        terms["mail"] = options.mail
    return terms


def _duration_and_window(
    options: ReserveOptions, now: float
) -> tuple[float | None, dict[str, float | None]]:
    """Return the duration in seconds and the bounds of the window in epoch seconds."""
    start = _parse_time_option("--start", options.start, now)
    end = _parse_time_option("--end", options.end, now)
    window = {
        "ready": _parse_time_option("--ready", options.ready, now),
        "deadline": _parse_time_option("--deadline", options.deadline, now),
    }
    duration = _parse_option("--duration", options.duration, parse_duration)
    if start is not None and end is not None and duration is None:
        if end <= start:
            raise UserError("the end is not after the start, --end; give a later one")
        duration = end - start
    elif end is not None:
        raise UserError("--end without --start, or beside --duration; give two of the three")
    if start is not None:
        opening = (*window.values(), options.at_least, options.at_most)
        if any(value is not None for value in opening):
            raise UserError(
                "--start fixes the window, other options open it; leave out --start or the others"
            )
        if duration is None:
            raise UserError("no end, --start; add --duration or --end")
        window = {"ready": start, "deadline": start + duration}
    return duration, window


def _print_offers(offers: Sequence[Mapping[str, Any]]) -> None:
    columns = ("cluster", "nodes", "processors", "start", "end", "possible starts")
    rows = (
        (
            *(offer[column] or "" for column in columns[:3]),
            *_format_window(offer),
            _format_starts(offer["starts"]),
        )
        for offer in offers
    )
    print_table([column.upper() for column in columns], rows)


def _size_and_duration(options: ReserveOptions, duration: float | None) -> dict[str, float]:
    """Return the ranges of size and duration; only one of them can be open."""
    size = _parse_option("--size", options.size, parse_count)
    at_least, at_most = options.at_least, options.at_most
    if (at_least is None) != (at_most is None):
        raise UserError("only one of --at-least and --at-most; give both")
    if at_least is None:
        if size is None or duration is None:
            missing = "--size" if size is None else "--duration"
            raise UserError(f"no {missing}, metasched reserve; see `metasched reserve --help`")
        return {"least": size, "most": size, "shortest": duration, "longest": duration}
    if (size is None) == (duration is None):
        raise UserError("--at-least opens size or duration; give the other")
    if size is None:
        assert duration is not None
        least, most = (
            _parse_option(name, text, parse_count)
            for name, text in (("--at-least", at_least), ("--at-most", at_most))
        )
        assert least is not None
        assert most is not None
        return {"least": least, "most": most, "shortest": duration, "longest": duration}
    shortest, longest = (
        _parse_option(name, text, parse_duration)
        for name, text in (("--at-least", at_least), ("--at-most", at_most))
    )
    assert shortest is not None
    assert longest is not None
    return {"least": size, "most": size, "shortest": shortest, "longest": longest}


def _parse_option(option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except ParseError as error:
        raise UserError(f"{error.problem}, {option}; {error.fix}") from None


def _parse_time_option(option: str, value: str | None, now: float) -> float | None:
    return _parse_option(option, value, lambda text: parse_moment(text, now))


def reservations(
    show_all: Annotated[
        bool, typer.Option("--all", help="Also list those that ended earlier.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw the open reservations.")
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List the reservations that are open or ended in the last hour.

    On a terminal a chart shows the open reservations over time.

    \b
    Examples:
      metasched reservations
      metasched reservations --json
      metasched reservations --plot reservations.png
    """
    if plot is not None:
        from metasched.laboratory.experiments.plots import check_plot

        check_plot(plot)
    rows = connect(config).reservations(show_all)
    if plot is not None:
        draw_picture(rows, plot)
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    _print_reservations(rows)
    if sys.stdout.isatty():
        bar_character = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
        for line in render_chart(rows, time.time(), get_terminal_size().columns, bar_character):
            print(line)


@reservation.command()
def cancel(
    id: ReservationArgument,
    series: Annotated[
        bool, typer.Option("--series", help="ID is that of a series: cancel all of it.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Cancel a reservation. Pending jobs return to the queue of metasched; running jobs continue.

    Of a series it cancels one occurrence, or with --series all that are to come.

    \b
    Examples:
      metasched reservation cancel 3
      metasched reservation cancel --series 2
    """
    reservation_id = _parse_option("ID", id, parse_count)
    assert reservation_id is not None
    if series:
        answer = connect(config).cancel_series(reservation_id)
        print(json_format.dumps(answer, indent=2) if json else f"series {id} cancelled")
        return
    row = connect(config).cancel_reservation(reservation_id)
    if json:
        print(json_format.dumps(row, indent=2))
    else:
        _print_reservations([row])


def _print_reservations(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ("reservation", "user", "cluster", "size", "state", "start", "end")
    print_table(
        [column.upper() for column in (*columns, "nodes", "licences", "note")],
        (
            (
                *(row[column] for column in columns[:5]),
                *_format_window(row),
                ",".join(row["nodes"]),
                ",".join(f"{name}:{count}" for name, count in row["licences"].items()),
                row["cause"],
            )
            for row in rows
        ),
    )


def _format_starts(starts: Sequence[Sequence[str]]) -> str:
    return ", ".join(
        format_time(first) + ("" if first == last else f" to {format_time(last)}")
        for first, last in starts
    )


def _format_window(row: Mapping[str, Any]) -> tuple[str, str]:
    return format_time(row["start"]), format_time(row["end"])
