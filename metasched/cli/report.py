"""The command `report`."""

import json as json_format
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from metasched.cli.common_options import ConfigOption, JsonOption, require_value
from metasched.cli.completion import complete_clusters, complete_licences
from metasched.cli.connect import connect
from metasched.cli.messages import warn
from metasched.cli.show import print_table, printable
from metasched.client.site_answers import Report
from metasched.errors import UserError
from metasched.model.report_figures import (
    COLUMNS,
    KEYS,
    KINDS,
    OTHERS,
    PLOTS,
    TIME_KEYS,
    ReportColumn,
    stacked_over_time,
)
from metasched.model.units import ParseError, parse_duration, parse_names, quote_for_error

Rows = list[dict[str, Any]]
_DEFAULT_KEYS = {"use": ["user"], "waits": ["cluster"], "deadlines": ["cluster"]}
_UNKNOWN = "-"


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
        from metasched.laboratory.experiments.report import check_report

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


def _table(kind: str, names: Sequence[str], answer: Report) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells; the last row is the total."""
    columns = [column for column in COLUMNS[kind] if _is_known(column, answer["rows"])]
    headings = [
        *map(str.upper, names),
        *(column.heading.upper().replace(" ", "_") for column in columns),
    ]
    rows = [
        [*(printable(row[name] or _UNKNOWN) for name in names), *_texts(columns, row)]
        for row in answer["rows"]
    ]
    if len(rows) > 1 and names:
        rows.append(["all", *[""] * (len(names) - 1), *_texts(columns, answer["total"])])
    return headings, rows


def _is_known(column: ReportColumn, rows: Rows) -> bool:
    """Return whether a row has a value of a column."""
    return any(row[column.name] is not None for row in rows)


def _texts(columns: Sequence[ReportColumn], row: dict[str, Any]) -> list[str]:
    values = [row[column.name] for column in columns]
    return [
        _UNKNOWN if value is None else column.text(value)
        for column, value in zip(columns, values, strict=True)
    ]


def _csv(names: Sequence[str], columns: Sequence[ReportColumn], rows: Rows) -> str:
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


def _page(kind: str, names: Sequence[str], answer: Report) -> str:
    from metasched.laboratory.experiments import plots
    from metasched.laboratory.experiments.html_page import html_table, image, page, section

    headings, cells = _table(kind, names, answer)
    rows: Rows = answer["rows"]
    parts = []
    if rows:
        unit, series, divisor = PLOTS[kind]
        times = [name for name in names if name in TIME_KEYS]
        labels = [[printable(row[name] or _UNKNOWN) for name in names] for row in rows]
        if times and len(series) == 1:
            [figure] = series.values()
            values = [row[figure] / divisor for row in rows]
            moments, stacks = stacked_over_time(names, labels, values)
            series_by_part = [(part or OTHERS, stack) for part, stack in stacks.items()]
            picture = plots.plot_over_time(moments, series_by_part, unit)
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
