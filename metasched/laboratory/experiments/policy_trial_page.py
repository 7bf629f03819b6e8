"""The page of `policy try`: tables and plots of the changes that a policy would have made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.laboratory.experiments import plots
from metasched.laboratory.experiments.html_page import html_table, image, page, section
from metasched.laboratory.experiments.policy_trial import DAY, Change, Comparison, Group

MAX_GROUPS = 20  # rows of a table of users: the others are in JSON
TITLES = {"class": "User classes", "user": "Users", "cluster": "Clusters", "licence": "Licences"}
UNKNOWN = "-"
CHANGE_HEADINGS = ("FIGURE", "RECORDED", "BEFORE", "AFTER", "CHANGE", "INTERVAL")


def change_rows(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """Return a table row for each figure."""
    return [
        (
            f"{each.figure}, {each.unit}" if each.unit else each.figure,
            *map(_number, (each.recorded, each.before, each.after)),
            _signed(each.change),
            _interval(each.low, each.high),
        )
        for each in changes
    ]


def group_table(kind: str, groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the groups of a kind, at most `MAX_GROUPS`; waits in seconds."""
    with_use = any(group.use_before is not None for group in groups)
    headings = [kind.upper(), "JOBS"]
    headings += ["JOBS_AFTER"] if kind == "cluster" else []
    headings += ["RECORDED", "WAIT_BEFORE", "WAIT_AFTER", "CHANGE"]
    headings += ["INTERVAL"] if kind != "cluster" else []
    headings += ["DEADLINES", "MISSED_BEFORE", "MISSED_AFTER"]
    headings += ["USE_BEFORE", "USE_AFTER"] if with_use else []
    rows = []
    for group in groups[:MAX_GROUPS]:
        row = [group.name or UNKNOWN, str(group.jobs)]
        row += [str(group.jobs_after)] if kind == "cluster" else []
        row += map(_number, (group.recorded_wait, group.wait_before, group.wait_after))
        row += [_signed(group.change)]
        row += [_interval(group.low, group.high)] if kind != "cluster" else []
        row += [str(group.deadlines), _percent(group.missed_before), _percent(group.missed_after)]
        row += [_percent(group.use_before), _percent(group.use_after)] if with_use else []
        rows.append(row)
    return headings, rows


def render(
    about: Mapping[str, object],
    comparison: Comparison,
    keys: Sequence[Sequence[str]],
    notes: Sequence[str],
) -> str:
    """Return the page. `keys`: changed keys of the policy; `notes`: what to know of the figures."""
    parts = [
        section("Changed keys", html_table(("key", "before", "after", "effect"), keys)),
        section(
            "The whole period",
            html_table(
                [heading.lower() for heading in CHANGE_HEADINGS], change_rows(comparison.changes)
            ),
            "Before and after are simulated on the same arrivals. The interval of the change is "
            f"one of 95%, by a bootstrap over {comparison.blocks}. "
            f"{comparison.elsewhere} of {comparison.jobs} jobs run on another cluster.",
        ),
    ]
    days, before, after = comparison.days
    if len(days) > 1:
        lines = {"before": list(before), "after": list(after)}
        labels = ("day of the period", "mean wait, s")
        positions = [float(day - days[0]) / DAY + 1 for day in days]
        picture = plots.plot_lines(positions, lines, labels)
        parts.append(section("Waits by day", image(picture, "mean waits by day of arrival")))
    waits = dict(zip(("before", "after"), map(list, comparison.waits), strict=True))
    parts.append(section("Waits", image(plots.plot_wait_shares(waits), "distribution of waits")))
    for kind, groups in comparison.groups.items():
        if groups:
            parts.append(_groups_section(kind, groups))
    if notes:
        parts.append(section("Notes", html_table(("note",), [(note,) for note in notes])))
    return page("metasched: a policy tried on the record", about, parts)


def _groups_section(kind: str, groups: Sequence[Group]) -> str:
    headings, rows = group_table(kind, groups)
    table = html_table(_titles(headings), rows)
    text = ""
    if kind == "cluster":
        text = (
            "Other jobs run there before and after. Use is that of processors until the last end."
        )
    elif kind == "licence":
        text = "Use: of tokens until the last end."
    elif len(groups) > 1:
        text = "Each interval stands for itself: of twenty groups one excludes 0 by chance."
    if len(groups) > MAX_GROUPS:
        text = f"The {MAX_GROUPS} with the most jobs, of {len(groups)}. {text}"
    picture = plots.plot_changes(
        [group.name or UNKNOWN for group in groups[:MAX_GROUPS]],
        [group.change for group in groups[:MAX_GROUPS]],
        [
            None if group.low is None or group.high is None else (group.low, group.high)
            for group in groups[:MAX_GROUPS]
        ],
        "change of the mean wait, s",
    )
    return section(TITLES[kind], table + image(picture, f"change of the mean wait, {kind}"), text)


def _titles(headings: Sequence[str]) -> list[str]:
    return [heading.lower().replace("_", " ") for heading in headings]


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _signed(value: float) -> str:
    text = _number(value)
    return text if value <= 0 else f"+{text}"


def _interval(low: float | None, high: float | None) -> str:
    return UNKNOWN if low is None or high is None else f"{_signed(low)} to {_signed(high)}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f}%"
