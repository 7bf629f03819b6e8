"""Results of simulations and experiments as JSON and as lines of a table."""

from __future__ import annotations

import math
from typing import Any


def result_json(name: str, runs: int, result: Any) -> dict[str, Any]:
    """Return a result for JSON."""
    paired = result.paired
    return {
        "experiment": name,
        "runs": runs,
        "setting": result.row,
        "policy": result.column,
        "figure": result.figure,
        "mean": result.mean,
        "values": list(result.values),
        "published": result.published,
        "difference_percent": result.difference,
        "over_baseline": result.ratio,
        "minus_baseline": None if paired is None else paired[0],
        "minus_baseline_95": paired[1] if paired and math.isfinite(paired[1]) else None,
    }


def result_line(result: Any, published: bool) -> list[str]:
    """Return the cells of a result, compared with published figures or with the baseline."""
    difference = ""
    if result.paired is not None:
        mean, half_width = result.paired
        difference = f"{mean:+.4g}" + (
            f" +- {round(half_width, 6):.2g}" if math.isfinite(half_width) else ""
        )
    if published:
        reference = [
            "" if result.published is None else f"{result.published:g}",
            "" if result.difference is None else f"{result.difference:+.1f}%",
        ]
    else:
        reference = ["" if result.ratio is None else f"{result.ratio:.2f}"]
    return [
        result.row,
        result.column,
        result.figure,
        f"{result.mean:.4g}" if abs(result.mean) < 1e4 else f"{result.mean:.0f}",
        *reference,
        difference,
    ]
