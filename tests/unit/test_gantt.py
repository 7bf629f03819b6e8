"""Gantt charts of reservations, for a terminal and as a picture."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from metasched.cli.gantt import draw_picture, render_chart
from metasched.client.reservation_boxes import ProcessorShortage, shortages, stack_boxes

NOW = 1_900_000_000.0


def row(id: int, start: float, end: float, **fields: Any) -> dict[str, Any]:
    """Build a row of `reservations --json`; times are in seconds from now."""
    times = {
        name: datetime.fromtimestamp(NOW + at, UTC).isoformat()
        for name, at in (("start", start), ("end", end))
    }
    named = {"reservation": id, "user": "ada", "cluster": "alpha", "size": 4, "state": "bound"}
    return {**named, **times, **fields}


def test_bars_match_their_windows() -> None:
    rows = [
        row(2, 50, 100),
        row(1, -10, 50, state="active"),
        row(3, 99.9, 99.95, cluster="beta"),
        row(4, 0, 1000, state="cancelled"),
    ]
    lines = render_chart(rows, NOW, 56, "#")
    assert lines[:3] == [
        "1 alpha 4 ada " + "#" * 21,
        "2 alpha 4 ada " + "." * 21 + "#" * 21,
        "3 beta 4 ada  " + "." * 41 + "#",
    ]
    assert len(lines) == 4
    assert [len(bar) for bar in lines[3].split()] == [10, 5, 10, 5]
    assert max(map(len, lines)) == 56


def test_no_chart_without_reservations_or_room() -> None:
    assert render_chart([row(1, 0, 10, state="ended")], NOW, 80) == []
    assert render_chart([row(1, 0, 10)], NOW, 30) == []


def test_labels_contain_no_control_characters() -> None:
    assert "\x1b" not in render_chart([row(1, 0, 10, user="\x1b[2J")], NOW, 80)[0]


def test_boxes_do_not_overlap_and_fill_gaps_from_below() -> None:
    rows = [row(1, 0, 10), row(2, 0, 20, size=2), row(3, 12, 20, size=5), row(4, 15, 18, size=1)]
    assert [box[2:] for box in stack_boxes(rows)] == [(0, 4), (4, 2), (6, 5), (0, 1)]


def test_labels_of_narrow_boxes_are_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(
        "metasched.laboratory.experiments.plots.save_figure",
        lambda figure, _: figures.append(figure),
    )
    draw_picture([row(10, 0, 150), row(11, 150, 300), row(12, 1800, 7200)], tmp_path / "a.png")
    [figure] = figures
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].texts]
    assert len(boxes) == 3
    assert not any(box.overlaps(other) for box, other in pairwise(boxes))


def test_pictures_with_and_without_open_reservations(tmp_path: Path) -> None:
    for rows in ([row(1, 0, 10, user="$a$"), row(2, 5, 90, cluster="beta")], []):
        draw_picture(rows, tmp_path / "out.png")
        assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_shortages_are_the_times_with_more_than_there_is() -> None:
    boxes = [(0.0, 10.0, 0, 4), (5.0, 8.0, 4, 2), (7.0, 20.0, 6, 3), (20.0, 30.0, 0, 8)]
    assert shortages(boxes, 8) == [ProcessorShortage(7.0, 8.0, 9)]
    assert shortages(boxes, 5) == [
        ProcessorShortage(5.0, 10.0, 9),
        ProcessorShortage(20.0, 30.0, 8),
    ]
    assert shortages(boxes, 9) == []
    assert shortages([], 0) == []
