"""Results of experiments as stored files, and the Markdown page rendered from them."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from metasched.checkout import commit_of
from metasched.errors import UserError
from metasched.laboratory.experiments.harness import Experiment, FigureResult
from metasched.version import CHECKOUT, RELEASE

_HEADER = """\
# Tables of the experiments

`metasched experiment NAME --save DIR` runs an experiment and stores its results in DIR.
`metasched experiment --tables DIR` renders this page from them. [Findings](index.md) has the
results on one page, [Settings](settings.md) the choices that the papers leave open.

A figure is the mean over the seeds. In brackets stands its difference from the baseline with the
same seed, mean and half-width of the 95% interval (Student's t). That difference decides whether a
policy beats another: figures vary far more with the machines that a seed draws.
"""


_NO_FORMULAS: Mapping[str, Sequence[str]] = MappingProxyType({})
CODE_FOLDERS: Final = ("metasched", "adapters", "db", "policies")


class StoredFigure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A figure of a case over all seeds."""

    setting: str
    policy: str
    figure: str  # name
    mean: float
    published: float | None = None
    difference: float | None = None  # mean difference from the baseline; None: it is the baseline
    half_width: float | None = None  # of the difference's 95% interval; None: a single seed


class StoredResults(msgspec.Struct, frozen=True):
    """The results of an experiment."""

    experiment: str
    about: str
    source: str  # paper and table, or traces
    baseline: str  # policy
    runs: int  # number of seeds
    measured: str  # date, release or revision
    figures: list[StoredFigure]


def save_results(
    folder: Path, experiment: Experiment, runs: int, results: Sequence[FigureResult]
) -> None:
    """Store results as FOLDER/NAME.json."""
    stored = StoredResults(
        experiment=experiment.name,
        about=experiment.about,
        source=experiment.source,
        baseline=experiment.baseline,
        runs=runs,
        measured=f"{time.strftime('%Y-%m-%d', time.gmtime())}, {measured_code()}",
        figures=[_stored_figure(result) for result in results],
    )
    text = msgspec.json.encode(stored).replace(b"},{", b"},\n{")  # a line per figure
    (folder / f"{experiment.name}.json").write_bytes(text + b"\n")


def measured_code(checkout: Path = CHECKOUT) -> str:
    """Return which code runs: the revision of its checkout, or the installed release."""
    revision = commit_of(checkout)
    if revision is None:
        return f"release {RELEASE}"
    command = ("git", "-C", str(checkout), "status", "--porcelain", "--", *CODE_FOLDERS)
    try:
        changes = subprocess.run(command, capture_output=True, check=True, timeout=60.0).stdout
    except (OSError, subprocess.SubprocessError):  # no git, or it reads only its owner's checkouts
        return f"revision {revision}, perhaps with changes"
    return f"revision {revision}{' with changes' if changes else ''}"


def _stored_figure(result: FigureResult) -> StoredFigure:
    difference, half_width = result.paired or (None, None)
    return StoredFigure(
        setting=result.row,
        policy=result.column,
        figure=result.figure,
        mean=_round(result.mean, 6),
        published=result.published,
        difference=None if difference is None else _round(difference, 4),
        half_width=None if half_width is None or math.isinf(half_width) else _round(half_width, 4),
    )


def load_results(folder: Path, names: Sequence[str]) -> list[StoredResults]:
    """Read the stored results of these experiments; those without a file are left out.

    UserError if none is stored or a file is not as `save_results` writes it.
    """
    paths = [path for name in names if (path := folder / f"{name}.json").is_file()]
    if not paths:
        raise UserError(f"no results in {folder}, --tables; store some with --save")
    results = []
    for path in paths:
        try:
            results.append(msgspec.json.decode(path.read_bytes(), type=StoredResults))
        except (OSError, msgspec.MsgspecError) as error:
            raise UserError(f"{error}, {path}; store it again with --save") from None
    return results


def render_tables(
    results: Sequence[StoredResults], formulas: Mapping[str, Sequence[str]] = _NO_FORMULAS
) -> str:
    """Return the page: a section per experiment, a table row per case.

    `formulas`: those of the policies, by experiment (`experiments.formulas`).
    """
    sections = (
        _render_section(stored, formulas.get(stored.experiment, ())) + "\n" for stored in results
    )
    return "\n".join([_HEADER, *sections])


def _render_section(stored: StoredResults, formulas: Sequence[str]) -> str:
    seeds = "One run" if stored.runs == 1 else f"{stored.runs} seeds"
    about = (
        f"{stored.about}. Source: {stored.source}. {seeds}, {stored.measured}. "
        f"Baseline: `{stored.baseline}`."
    )
    paragraphs = [f"## {stored.experiment}", about]
    if formulas:
        paragraphs.append("\n".join(f"- {formula}" for formula in formulas))
    return "\n\n".join([*paragraphs, "\n".join(_table(stored))])


def _table(stored: StoredResults) -> Iterator[str]:
    names = list(dict.fromkeys(each.figure for each in stored.figures))
    published = {each.figure for each in stored.figures if each.published is not None}
    titles = [
        title for name in names for title in ((name, "published") if name in published else (name,))
    ]
    yield "| " + " | ".join(["setting", "policy", *titles]) + " |"
    yield "|---|---|" + "--:|" * len(titles)
    cells = {(each.setting, each.policy, each.figure): each for each in stored.figures}
    for setting, policy in dict.fromkeys((each.setting, each.policy) for each in stored.figures):
        row = [setting, policy]
        for name in names:
            figure = cells.get((setting, policy, name))
            row.append("" if figure is None else _format_figure(figure))
            if name in published:
                value = None if figure is None else figure.published
                row.append("" if value is None else f"{value:g}")
        yield "| " + " | ".join(row) + " |"


def _format_figure(figure: StoredFigure) -> str:
    """Return `mean (difference ± half-width)`, as far as they exist."""
    text = _format_number(figure.mean, 4)
    if figure.difference is None:
        return text
    sign = "-" if figure.difference < 0 else "+"
    difference = sign + _format_number(abs(figure.difference), 3)
    if figure.half_width is not None:
        difference += f" ± {_format_number(figure.half_width, 2)}"
    return f"{text} ({difference})"


def _format_number(value: float, digits: int) -> str:
    """Write a number with so many digits, never with an exponent, and never a rounding error."""
    rounded = _round(value, digits)
    return f"{rounded:.0f}" if abs(rounded) >= 1000 else f"{rounded:.6f}".rstrip("0").rstrip(".")


def _round(value: float, digits: int) -> float:
    """Round to significant digits; integer digits stay."""
    if value == 0:
        return 0.0
    return round(value, max(digits - 1 - math.floor(math.log10(abs(value))), 0))
