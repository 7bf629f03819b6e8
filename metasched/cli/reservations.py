"""The commands about advance reservations: reserve, reservations, reservation cancel."""

import json as json_format
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any, TypeVar

import typer

from metasched.cli.connect import Config, Json, connect, filled
from metasched.cli.gantt import chart, draw
from metasched.cli.show import moment, table
from metasched.errors import UserError
from metasched.units import (
    Unreadable,
    parse_count,
    parse_duration,
    parse_licences,
    parse_moment,
    parse_names,
)

T = TypeVar("T")
Id = Annotated[str, typer.Argument(metavar="ID", show_default=False)]

reservation = typer.Typer(
    help="""Cancel an advance reservation.

    \b
    Examples:
      metasched reservation cancel 3
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def reserve(
    size: Annotated[
        str | None, typer.Option("--size", "-n", metavar="N", help="Processors [--nodes: nodes].")
    ] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Sizes count nodes.")] = False,
    start: Annotated[
        str | None, typer.Option("--start", metavar="TIME", help="Begin then: +2h, 17:30, ...")
    ] = None,
    end: Annotated[str | None, typer.Option("--end", metavar="TIME", help="End then.")] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="DUR", help="Last so long: 90s, 10m, 1h30m.")
    ] = None,
    ready: Annotated[
        str | None, typer.Option("--ready", metavar="TIME", help="Begin then or later [now].")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="End then or earlier.")
    ] = None,
    at_least: Annotated[
        str | None,
        typer.Option("--at-least", metavar="N|DUR", help="Be content with this size or duration."),
    ] = None,
    at_most: Annotated[
        str | None, typer.Option("--at-most", metavar="N|DUR", help="The most that is of use.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME,...", help="Only these clusters.")
    ] = None,
    let_run: Annotated[
        str | None,
        typer.Option(
            "--let-run", metavar="DUR", help="Jobs may go on so long after its end [site's]."
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option("--licence", "-L", metavar="NAME[:N],...", help="Keep these licences, too."),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="U", callback=filled, help="For this user [operators only]."
        ),
    ] = None,
    mail: Annotated[
        str | None,
        typer.Option(
            "--mail",
            metavar="ADDRESS",
            callback=filled,
            help="Write there if it breaks [owner's name].",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be possible.")] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Reserve processors or nodes for a time; run jobs there by `submit --reservation ID`.

    With --start the window is fixed; else it is the earliest between --ready and --deadline. With
    --at-least and --at-most as many processors as there are (give --duration), or as long as they
    are free (give --size). Slurm mostly reserves whole nodes: processors are
    rounded up to them.

    \b
    Examples:
      metasched reserve --size 32 --start 2030-01-31T08:00 --duration 4h
      metasched reserve --size 2 --nodes --duration 1h --deadline +2d
      metasched reserve --at-least 16 --at-most 64 --duration 1h --ready 18:00 --deadline +1d
      metasched reserve --size 16 --at-least 1h --at-most 8h --deadline 23:00 --dry-run
      metasched reserve --size 8 --start +2h --duration 1h --licence matlab:4
    """
    now = time.time()
    begin, stop = _read("--start", start, now), _read("--end", end, now)
    within = {"ready": _read("--ready", ready, now), "deadline": _read("--deadline", deadline, now)}
    lasting = _parsed("--duration", duration, parse_duration)
    many = _parsed("--size", size, parse_count)
    if begin is not None and stop is not None and lasting is None:
        if stop <= begin:
            raise UserError("the end is not after the start, --end; give a later one")
        lasting = stop - begin
    elif end is not None:
        raise UserError("--end without --start, or beside --duration; give two of the three")
    if begin is not None:
        if any(value is not None for value in (*within.values(), at_least, at_most)):
            raise UserError("--start fixes the window, --ready or another opens it; choose one")
        if lasting is None:
            raise UserError("no end, --start; add --duration or --end")
        within = {"ready": begin, "deadline": begin + lasting}
    wish: dict[str, object] = {
        **_amounts(many, lasting, at_least, at_most),
        **within,
        "by_node": nodes,
        "clusters": list(_parsed("--cluster", cluster, parse_names) or ()),
        "let_run": 0.0 if let_run == "0" else _parsed("--let-run", let_run, parse_duration),
        "dry_run": dry_run,
    }
    if licences := _parsed("--licence", licence, parse_licences):
        wish["licences"] = licences  # a daemon of an earlier release knows of none
    if user is not None:
        wish["user"] = user  # nor of others' reservations
    if mail is not None:
        wish["mail"] = mail  # nor of mail
    answer = connect(config).reserve(wish)
    if json:
        print(json_format.dumps(answer, indent=2))
    elif dry_run:
        print("Nothing reserved; possible would be")
        columns = ("cluster", "nodes", "processors", "start", "end", "possible starts")
        rows = (
            (*(o[c] or "" for c in columns[:3]), *_times(o), _spans(o["starts"]))
            for o in answer["offers"]
        )
        table([c.upper() for c in columns], rows)
    else:
        _show([answer])


def _amounts(
    size: int | None, lasting: float | None, at_least: str | None, at_most: str | None
) -> dict[str, float]:
    """Size and duration, of which one may be open."""
    if (at_least is None) != (at_most is None):
        raise UserError("only one of --at-least and --at-most; give both")
    if at_least is None:
        if size is None or lasting is None:
            lacking = "--size" if size is None else "--duration"
            raise UserError(f"no {lacking}, metasched reserve; see `metasched reserve --help`")
        return {"least": size, "most": size, "shortest": lasting, "longest": lasting}
    if (size is None) == (lasting is None):
        raise UserError("--at-least opens one of size and duration; give the other one")
    if size is None:
        assert lasting is not None
        least, most = (
            _parsed(name, word, parse_count)
            for name, word in (("--at-least", at_least), ("--at-most", at_most))
        )
        assert least is not None
        assert most is not None
        return {"least": least, "most": most, "shortest": lasting, "longest": lasting}
    short, long = (
        _parsed(name, word, parse_duration)
        for name, word in (("--at-least", at_least), ("--at-most", at_most))
    )
    assert short is not None
    assert long is not None
    return {"least": size, "most": size, "shortest": short, "longest": long}


def _parsed(option: str, word: str | None, parse: Callable[[str], T]) -> T | None:
    if word is None:
        return None
    try:
        return parse(word)
    except Unreadable as error:
        raise UserError(f"{error.what}, {option}; {error.mend}") from None


def _read(option: str, word: str | None, now: float) -> float | None:
    return _parsed(option, word, lambda text: parse_moment(text, now))


def reservations(
    all: Annotated[bool, typer.Option("--all", help="Also those that ended long ago.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw those that are open.")
    ] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """List the reservations that are open, and those that ended in the last hour.

    On a terminal the open ones are shown over time, too.

    \b
    Examples:
      metasched reservations
      metasched reservations --json
      metasched reservations --plot reservations.png
    """
    if plot is not None:
        from metasched.experiments.plots import check_plot

        check_plot(plot)
    rows = connect(config).reservations(all)
    if plot is not None:
        draw(rows, plot)
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    _show(rows)
    if sys.stdout.isatty():
        full = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
        for line in chart(rows, time.time(), get_terminal_size().columns, full):
            print(line)


@reservation.command()
def cancel(id: Id, json: Json = False, config: Config = None) -> None:
    """Cancel a reservation. Jobs that wait for it come back to us; those that run go on.

    \b
    Examples:
      metasched reservation cancel 3
    """
    number = _parsed("ID", id, parse_count)
    assert number is not None
    row = connect(config).cancel_reservation(number)
    if json:
        print(json_format.dumps(row, indent=2))
    else:
        _show([row])


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ("reservation", "user", "cluster", "size", "state", "start", "end")
    table(
        [c.upper() for c in (*columns, "nodes", "licences", "note")],
        (
            (
                *(row[c] for c in columns[:5]),
                *_times(row),
                ",".join(row["nodes"]),
                ",".join(f"{name}:{many}" for name, many in row.get("licences", {}).items()),
                row["cause"],
            )
            for row in rows
        ),
    )


def _spans(starts: Sequence[Sequence[str]]) -> str:
    return ", ".join(
        moment(first) + ("" if first == last else f" to {moment(last)}") for first, last in starts
    )


def _times(row: Mapping[str, Any]) -> tuple[str, str]:
    return moment(row["start"]), moment(row["end"])
