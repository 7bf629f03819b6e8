"""The command `report`."""

import json as json_format
import sys
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from metasched.cli.common_options import ConfigOption, JsonOption, require_value
from metasched.cli.completion import complete_clusters, complete_licences
from metasched.cli.connect import connect
from metasched.cli.messages import warn
from metasched.cli.show import print_table, printable
from metasched.errors import UserError
from metasched.units import ParseError, parse_duration, parse_names, quote_for_error

Rows = list[dict[str, Any]]
KINDS = ("use", "waits", "deadlines", "licences")
KEYS = ("user", "group", "account", "class", "cluster", "month", "day")
TIME_KEYS = ("month", "day")
_DEFAULT_KEYS = {"use": ["user"], "waits": ["cluster"], "deadlines": ["cluster"]}
_UNKNOWN = "-"


class Column(NamedTuple):
    """A figure: its name in JSON and CSV, its heading, and its text in a table."""

    name: str
    heading: str
    text: Callable[[Any], str]


def _count(value: Any) -> str:
    return f"{value:d}"


def _hours(value: Any) -> str:
    return f"{value / 3600:.1f}"


def _percent(value: Any) -> str:
    return f"{100 * value:.1f}"


def _number(value: Any) -> str:
    return f"{value:.1f}"


def _duration(value: Any) -> str:
    return (
        f"{value:.0f}s" if value < 120 else f"{value / 60:.0f}m" if value < 7200 else _long(value)
    )


def _long(value: Any) -> str:
    return f"{value / 3600:.1f}h"


COLUMNS = {
    "use": (
        Column("jobs", "JOBS", _count),
        Column("completed", "COMPLETED", _count),
        Column("failed", "FAILED", _count),
        Column("timed_out", "TIMEOUT", _count),
        Column("cancelled", "CANCELLED", _count),
        Column("elapsed", "HOURS", _hours),
        Column("cpu_seconds", "CPU_HOURS", _hours),
        Column("share", "SHARE_%", _percent),
        Column("cpu_seconds_used", "CPU_USED", _hours),
        Column("efficiency", "EFFICIENCY_%", _percent),
        Column("node_seconds", "NODE_HOURS", _hours),
        Column("gpu_seconds", "GPU_HOURS", _hours),
        Column("cpu_seconds_outside", "OTHER_CPU", _hours),
    ),
    "waits": (
        Column("jobs", "JOBS", _count),
        Column("mean_wait", "MEAN", _duration),
        Column("median_wait", "MEDIAN", _duration),
        Column("p90_wait", "P90", _duration),
        Column("max_wait", "LONGEST", _duration),
        Column("mean_bounded_slowdown", "SLOWDOWN", _number),
    ),
    "deadlines": (
        Column("jobs", "JOBS", _count),
        Column("met", "MET", _count),
        Column("missed", "MISSED", _count),
        Column("missed_deadlines", "MISSED_%", _percent),
        Column("mean_tardiness", "LATE_MEAN", _duration),
        Column("max_tardiness", "LATE_MOST", _duration),
    ),
    "licences": (
        Column("leases", "LEASES", _count),
        Column("token_seconds", "TOKEN_HOURS", _hours),
        Column("mean_wait", "WAIT_MEAN", _duration),
        Column("max_wait", "WAIT_MOST", _duration),
        Column("peak", "PEAK", _count),
        Column("total", "TOTAL", _count),
    ),
}
# by kind: figures that are plotted, with a heading, and the unit of their seconds or counts
_PLOTS = {
    "use": ("CPU hours", {"CPU hours": "cpu_seconds"}, 3600.0),
    "waits": ("hours of wait", {"median": "median_wait", "90% wait less": "p90_wait"}, 3600.0),
    "deadlines": ("jobs", {"met": "met", "missed": "missed"}, 1.0),
    "licences": ("token hours", {"token hours": "token_seconds"}, 3600.0),
}


def _complete_kinds() -> list[str]:
    return list(KINDS)


def _complete_keys(incomplete: str) -> list[str]:
    before, comma, _ = incomplete.rpartition(",")
    return [before + comma + key for key in KEYS if key not in before.split(",")]


def _filter(name: str, metavar: str, help: str, **options: Any) -> Any:
    return typer.Option(f"--{name}", metavar=metavar, help=help, callback=require_value, **options)


def report(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="use|waits|deadlines|licences",
            show_default=False,
            autocompletion=_complete_kinds,
        ),
    ],
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="KEY,...",
            help=f"What the rows are by: {', '.join(KEYS)}.",
            autocompletion=_complete_keys,
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DAY", help="First day [of this month].")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="DAY", help="Days before this one [tomorrow].")
    ] = None,
    user: Annotated[str | None, _filter("user", "U", "Use of this user alone.")] = None,
    group: Annotated[str | None, _filter("group", "G", "Of users with this primary group.")] = None,
    account: Annotated[str | None, _filter("account", "A", "Jobs of this account.")] = None,
    user_class: Annotated[str | None, _filter("class", "CLASS", "Users of this class.")] = None,
    cluster: Annotated[
        str | None,
        _filter("cluster", "C", "Jobs on this cluster.", autocompletion=complete_clusters),
    ] = None,
    licence: Annotated[
        str | None,
        _filter("licence", "L", "This licence alone.", autocompletion=complete_licences),
    ] = None,
    json: JsonOption = False,
    csv: Annotated[
        str | None,
        typer.Option("--csv", metavar="FILE", help="Write CSV; - is the standard output."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a plot.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Report what ended jobs used, how long they waited, and which deadlines were met.

    A job counts whole on the day of its end, in the time zone of the daemon. Operators get all
    users, others themselves. DAY is 2026-03-31, a month 2026-03 for its first day, or a duration
    that has passed, as 30d. Reports know jobs that are pruned.

    \b
    Examples:
      metasched report use --by account,user --since 2026-03 --until 2026-04
      metasched report use --by month --since 2026-01 --html year.html
      metasched report waits --by class --since 30d
      metasched report deadlines --by user --json
      metasched report licences --by month --licence matlab --csv matlab.csv
    """
    if kind not in KINDS:
        raise UserError(f"unknown report {quote_for_error(kind)}; write one of {', '.join(KINDS)}")
    keys = _parse_keys(by) if by is not None else _DEFAULT_KEYS.get(kind, [])
    if html is not None:
        from metasched.experiments.report import check_report

        check_report(html, "--html")
    answer = connect(config).report(
        kind,
        keys,
        since=_parse_day(since, "--since"),
        until=_parse_day(until, "--until"),
        user=user,
        group=group,
        account=account,
        cluster=cluster,
        licence=licence,
        **{"class": user_class},
    )
    rows: Rows = answer["rows"]
    names = ["licence", *keys] if kind == "licences" else keys
    if html is not None:
        _write(html, _page(kind, names, answer))
    if csv is not None:
        text = _csv(names, COLUMNS[kind], rows)
        if csv == "-":
            sys.stdout.write(text)
        else:
            _write(Path(csv), text)
    if json:
        print(json_format.dumps(answer, indent=2))
    elif not rows:
        unit = "lease" if kind == "licences" else "job"
        warn(
            f"no {unit} ended from {answer['since']} until {answer['until']}, as far as you may see"
        )
    elif csv is None and html is None:
        print_table(*_table(kind, names, answer))


def _parse_keys(text: str) -> list[str]:
    try:
        keys = list(parse_names(text))
    except ParseError as error:
        raise UserError(f"{error.problem}, --by; {error.fix}") from None
    for key in keys:
        if key not in KEYS:
            raise UserError(
                f"unknown key {quote_for_error(key)}, --by; write some of {', '.join(KEYS)}"
            )
    return keys


def _parse_day(text: str | None, option: str) -> str | None:
    """Return a day as ISO 8601; a month is its first day, a duration that long ago."""
    if text is None:
        return None
    try:
        return date.fromisoformat(f"{text}-01" if len(text) == 7 else text).isoformat()
    except ValueError:
        pass
    try:
        if "-" not in text:  # 2026-13 would be days and hours
            return (date.today() - timedelta(seconds=parse_duration(text))).isoformat()
    except (ParseError, OverflowError):
        pass
    raise UserError(
        f"{quote_for_error(text)} is no day, {option}; write it as 2026-03-31, 2026-03 or 30d"
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.strerror}, {path}; give a file that you can write") from None


def _table(
    kind: str, names: Sequence[str], answer: dict[str, Any]
) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells; the last row is the total."""
    columns = [column for column in COLUMNS[kind] if _is_known(column, answer["rows"])]
    headings = [*map(str.upper, names), *(column.heading for column in columns)]
    rows = [
        [*(printable(row[name] or _UNKNOWN) for name in names), *_texts(columns, row)]
        for row in answer["rows"]
    ]
    if len(rows) > 1 and names:
        rows.append(["all", *[""] * (len(names) - 1), *_texts(columns, answer["total"])])
    return headings, rows


def _is_known(column: Column, rows: Rows) -> bool:
    """Whether a row has a value of a column."""
    return any(row[column.name] is not None for row in rows)


def _texts(columns: Sequence[Column], row: dict[str, Any]) -> list[str]:
    values = [row[column.name] for column in columns]
    return [
        _UNKNOWN if value is None else column.text(value)
        for column, value in zip(columns, values, strict=True)
    ]


def _csv(names: Sequence[str], columns: Sequence[Column], rows: Rows) -> str:
    """Return the rows as CSV: figures as numbers in the units of JSON."""
    import csv
    import io

    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([*names, *(column.name for column in columns)])
    for row in rows:
        cells = [_csv_text(row[name]) for name in names]
        writer.writerow([*cells, *(row[column.name] for column in columns)])
    return file.getvalue()


def _csv_text(text: str) -> str:
    """Return a name as a cell that no spreadsheet takes for a formula."""
    text = printable(text)
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") else text


def _page(kind: str, names: Sequence[str], answer: dict[str, Any]) -> str:
    from metasched.experiments import plots
    from metasched.experiments.html_page import html_table, image, page, section

    headings, cells = _table(kind, names, answer)
    rows: Rows = answer["rows"]
    parts = []
    if rows:
        unit, series, divisor = _PLOTS[kind]
        times = [name for name in names if name in TIME_KEYS]
        labels = [[printable(row[name] or _UNKNOWN) for name in names] for row in rows]
        if times and len(series) == 1:
            [figure] = series.values()
            values = [row[figure] / divisor for row in rows]
            picture = plots.plot_over_time(*_over_time(names, labels, values), unit)
        else:
            picture = plots.plot_bars(
                [" ".join(label) or "all" for label in labels],
                {
                    heading: [(row[figure] or 0.0) / divisor for row in rows]
                    for heading, figure in series.items()
                },
                unit,
            )
        parts.append(section(unit, image(picture, unit)))
    text = "" if rows else "Nothing ended in this period."
    parts.append(section("Figures", html_table(headings, cells), text))
    about = {
        "from": answer["since"],
        "until": answer["until"],
        "time zone": answer["time_zone"],
    }
    return page(f"metasched: {kind}", about, parts)


MAX_PARTS = 8  # of a bar; the smaller ones share one part


def _over_time(
    names: Sequence[str], labels: Sequence[Sequence[str]], values: Sequence[float]
) -> tuple[list[str], dict[str, list[float]]]:
    """Return the times, and the values at each by the other names of the rows."""
    positions = [position for position, name in enumerate(names) if name in TIME_KEYS]
    moments, parts = [], []
    for label in labels:
        moments.append(max((label[position] for position in positions), key=len))
        other = [word for position, word in enumerate(label) if position not in positions]
        parts.append(" ".join(other) or "all")
    sums: dict[str, float] = {}
    for part, value in zip(parts, values, strict=True):
        sums[part] = sums.get(part, 0.0) + value
    largest = sorted(sums, key=lambda part: -sums[part])[:MAX_PARTS]
    times = sorted(set(moments))
    shown = [*largest, *(["others"] if len(sums) > MAX_PARTS else [])]
    stacked = {part: [0.0] * len(times) for part in shown}
    for moment, part, value in zip(moments, parts, values, strict=True):
        stacked[part if part in largest else "others"][times.index(moment)] += value
    return times, stacked
