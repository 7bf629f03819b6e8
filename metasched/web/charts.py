"""Charts as SVG. Sizes are attributes: the pages' policy allows no inline style."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from metasched.web.visible import visible

_COLUMN, _GAP, _HEIGHT = 7, 1, 24  # units of a column chart
_TALL = 100  # units of a plot over time


def bar(used: float, total: float, label: str, outside: float = 0) -> Markup:
    """Return a horizontal bar of `used`, then `outside`, of a total."""
    scale = 100 / max(total, used + outside, 1)
    first, second = used * scale, outside * scale
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><rect class="track" width="100" height="8"/>'
        '<rect class="used" width="{:.2f}" height="8"/>'
        '<rect class="outside" x="{:.2f}" width="{:.2f}" height="8"/></svg>'
    ).format(label, first, first, second)


def columns(values: Sequence[float], highest: float, label: str) -> Markup:
    """Return a column for each value, on a scale up to `highest`; the label describes them."""
    width = max(len(values) * (_COLUMN + _GAP) - _GAP, 1)
    parts = [
        Markup('<rect class="track" x="{}" y="{}" width="{}" height="1"/>').format(
            position * (_COLUMN + _GAP), _HEIGHT - 1, _COLUMN
        )
        + Markup('<rect class="used" x="{}" y="{:.2f}" width="{}" height="{:.2f}"/>').format(
            position * (_COLUMN + _GAP),
            _HEIGHT - height,
            _COLUMN,
            height,
        )
        for position, value in enumerate(values)
        for height in [_HEIGHT * min(value / highest, 1) if highest > 0 else 0]
    ]
    return Markup(
        '<svg class="columns" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(width, _HEIGHT, label, Markup().join(parts))


def stacked(
    slots: Sequence[str],
    parts: Sequence[str],
    heights: Sequence[Sequence[float]],
    highest: float,
    label: str,
    limits: Sequence[float | None] = (),
) -> Markup:
    """Return a column for each slot of time, of stacked parts; `heights` are by part and slot.

    Each part has a colour of the style, `part-0` and so on, and a title for a pointer. `limits`, by
    slot, are drawn as lines.
    """
    scale = _TALL / highest if highest > 0 else 0.0
    rectangles = []
    for position, slot in enumerate(slots):
        top = float(_TALL)
        for colour, part in enumerate(parts):
            height = heights[colour][position] * scale
            if height <= 0:
                continue
            top -= height
            rectangles.append(
                Markup(
                    '<rect class="part-{}" x="{}" y="{:.2f}" width="{}" height="{:.2f}">'
                    "<title>{}</title></rect>"
                ).format(
                    colour,
                    position * (_COLUMN + _GAP),
                    top,
                    _COLUMN,
                    height,
                    visible(f"{slot}, {part}: {heights[colour][position]:.4g}"),
                )
            )
    for position, limit in enumerate(limits):
        if limit is not None:
            rectangles.append(
                Markup('<rect class="limit" x="{}" y="{:.2f}" width="{}" height="1"/>').format(
                    position * (_COLUMN + _GAP),
                    min(max(_TALL - limit * scale, 0.0), _TALL - 1),
                    _COLUMN + _GAP,
                )
            )
    return Markup(
        '<svg class="plot" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(len(slots) * (_COLUMN + _GAP) - _GAP, _TALL, label, Markup().join(rectangles))
