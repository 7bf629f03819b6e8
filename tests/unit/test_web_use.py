"""Plots of reports: which time each column stands for, and what is stacked in it."""

from __future__ import annotations

import re
from datetime import date

import pytest

from metasched.db.reports import ReportKey
from metasched.errors import ApiError
from metasched.model.report_figures import COLUMNS, OTHERS, PLOTS, stacked_over_time
from metasched.web.charts import stacked
from metasched.web.use import MAX_SLOTS, _day, _plot, _slots, _token_plots

DAYS = ["2026-02-27", "2026-02-28", "2026-03-01"]


def test_a_period_has_its_days_or_months() -> None:
    assert _slots(ReportKey.DAY, date(2026, 2, 27), date(2026, 3, 2)) == DAYS
    months = _slots(ReportKey.MONTH, date(2025, 11, 30), date(2026, 2, 2))
    assert months == ["2025-11", "2025-12", "2026-01", "2026-02"]
    long = _slots(ReportKey.MONTH, date(1, 1, 1), date(9999, 12, 31))
    assert (len(long), long[-1]) == (MAX_SLOTS, "9999-12")


@pytest.mark.parametrize("text", ["0001-01-01", "1969-12-31", "2026-02-30", "x"])
def test_days_without_a_period(text: str) -> None:
    """The period before the first day of the calendar, above all, cannot be computed."""
    with pytest.raises(ApiError) as raised:
        _day(text)
    assert raised.value.status == 422
    assert _day("1970-01-01") == date(1970, 1, 1)


def heights(picture: str) -> dict[str, float]:
    """Return the height of each rectangle by its title."""
    bars = re.findall(r'height="([\d.]+)"><title>([^<]*)</title>', picture)
    return {title: float(height) for height, title in bars}


def test_parts_are_stacked_on_the_days_of_the_period() -> None:
    rows = [
        {"day": DAYS[0], "user": "ann", "cpu_seconds": 3600.0},
        {"day": DAYS[2], "user": "ann", "cpu_seconds": 7200.0},
        {"day": DAYS[2], "user": "", "cpu_seconds": 7200.0},
    ]
    plot = _plot("use", {"rows": rows, "by": ["day", "user"]}, ReportKey.DAY, DAYS)
    assert plot is not None
    assert (plot.highest, plot.parts, plot.times) == (4.0, ["ann", "–"], tuple(DAYS))
    assert heights(plot.picture) == {
        f"{DAYS[0]}, ann: 1": 25.0,
        f"{DAYS[2]}, ann: 2": 50.0,
        f"{DAYS[2]}, –: 2": 50.0,
    }
    unused = {"day": DAYS[0], "cpu_seconds": 0.0}
    for nothing in ([], [unused]):
        assert _plot("use", {"rows": nothing, "by": ["day"]}, ReportKey.DAY, DAYS) is None


def test_of_waits_the_second_figure_contains_the_first() -> None:
    rows = [{"day": DAYS[1], "median_wait": 3600.0, "p90_wait": 14400.0}]
    plot = _plot("waits", {"rows": rows, "by": ["day"]}, ReportKey.DAY, DAYS)
    assert plot is not None
    assert plot.highest == 4.0
    assert heights(plot.picture) == {
        f"{DAYS[1]}, median: 1": 25.0,
        f"{DAYS[1]}, 90% wait less: 3": 75.0,
    }


@pytest.mark.parametrize("name", ["<script>", '"><b>', "a\u202eb", "\x1b[31m"])
def test_names_in_a_plot_are_text(name: str) -> None:
    picture = stacked([name], [name], [[1.0]], 1.0, name)
    assert "<script>" not in picture
    assert "<b>" not in picture
    assert picture.split("<title>")[1].split("</title>")[0].isprintable()


def test_small_parts_share_one() -> None:
    labels = [[f"user{n}", DAYS[0]] for n in range(12)]
    times, parts = stacked_over_time(["user", "day"], labels, [float(n) for n in range(12)])
    assert times == DAYS[:1]
    assert list(parts)[:2] == ["user11", "user10"]
    assert parts[None] == [0.0 + 1 + 2 + 3]
    assert sum(map(sum, parts.values())) == sum(range(12))


@pytest.mark.parametrize("name", ["others", OTHERS])
def test_no_name_shares_the_part_of_the_others(name: str) -> None:
    """Neither where few have rows of their own, nor where the plot leaves out small parts."""
    labels: list[list[str | None]] = [[name, DAYS[0]], [None, DAYS[0]]]
    _, parts = stacked_over_time(["user", "day"], labels, [2.0, 5.0])
    assert parts == {name: [2.0], None: [5.0]}
    rows = [
        {"user": user, "day": DAYS[0], "cpu_seconds": 3600.0 * hours}
        for user, hours in ((name, 2), (None, 5))
    ]
    plot = _plot("use", {"by": ["user", "day"], "rows": rows}, ReportKey.DAY, DAYS)
    assert plot is not None
    assert plot.parts == [name, None]
    assert plot.highest == 7.0
    many = [[name, DAYS[0]], *([f"u{n}", DAYS[0]] for n in range(12))]
    _, parts = stacked_over_time(["user", "day"], many, [100.0, *map(float, range(12))])
    assert parts[name] == [100.0]
    assert parts[None] == [0.0 + 1 + 2 + 3 + 4]


def test_plotted_figures_are_those_of_tables() -> None:
    for kind, plot in PLOTS.items():
        assert set(plot.figures.values()) <= {column.name for column in COLUMNS[kind]}


def test_tokens_are_plotted_where_the_report_tells_them() -> None:
    rows = [
        {"day": DAYS[0], "licence": "matlab", "peak": 1, "total": 4},
        {"day": DAYS[2], "licence": "matlab", "peak": 3, "total": 6},
        {"day": DAYS[2], "licence": "ansys", "peak": None, "total": None},
    ]
    [plot] = _token_plots({"rows": rows}, ReportKey.DAY, DAYS)
    assert (plot.licence, plot.peak, plot.total) == ("matlab", 3, 6)
    of_columns = r'class="used" x="\d+" y="[\d.]+" width="7" height="([\d.]+)"'
    assert re.findall(of_columns, plot.picture) == ["4.00", "0.00", "12.00"]  # of 24
    assert _token_plots({"rows": [{"day": DAYS[0], "user": "ann"}]}, ReportKey.DAY, DAYS) == []
