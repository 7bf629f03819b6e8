"""The tuned policy as a file with its provenance; it never replaces a file of another origin."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from metasched.config.policy_words import differences, policy_text, values_of, written
from metasched.errors import UserError
from metasched.laboratory.tuning.held_out import RESAMPLES
from metasched.laboratory.tuning.outcome import JudgedTrial, StudyResult

FIRST_LINE = "# Found by metasched tune."


def check_output(path: Path) -> None:
    """Check before a long run that the file can be written. UserError if not."""
    if path.suffix != ".toml":
        raise UserError(f"{path} is no policy file, --out; use a name that ends in .toml")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path} is not in an existing folder, --out; create the folder first")
    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first_line = file.readline(200).strip()
    except OSError as error:
        raise UserError(f"{error.strerror}, --out {path}; name another file") from None
    if first_line != FIRST_LINE:
        raise UserError(f"{path} exists and is not of metasched tune, --out; name another file")


def write_tuned_policy(path: Path, outcome: StudyResult, provenance: Mapping[str, Any]) -> None:
    """Write the chosen policy; the file is replaced at once, so a reader never sees a part."""
    assert outcome.chosen is not None
    lines = [FIRST_LINE, *_header(outcome, outcome.chosen, provenance)]
    text = "\n".join(lines) + "\n\n" + policy_text(outcome.chosen.policy)
    with NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.absolute().parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # as other policy files: it has no secrets
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _header(
    outcome: StudyResult, chosen: JudgedTrial, provenance: Mapping[str, Any]
) -> Iterator[str]:
    for key, value in provenance.items():
        if value not in ("", None):
            yield _comment(f"{key}: {value}")
    yield _comment(f"trial {chosen.trial.number} of {len(outcome.trials)}, {outcome.pruned} pruned")
    for row in differences(values_of(outcome.present.policy), values_of(chosen.policy)):
        before, after = (written(row.name, each) for each in (row.before, row.after))
        yield _comment(f"{row.name}: {after}, before {before}")
    for index, name in enumerate(outcome.objectives):
        trained, present = (chosen.trial.values or ())[index], outcome.present.trial.values or ()
        yield _comment(f"{name}, training part: {trained:.6g}, present policy {present[index]:.6g}")
        difference = chosen.difference[name]
        text = f"{chosen.held_out[name]:.6g}, present policy {outcome.present.held_out[name]:.6g}"
        if difference is not None:
            text += (
                f", difference {difference.difference:+.4g} "
                f"[{difference.low:+.4g}, {difference.high:+.4g}]"
            )
        yield _comment(f"{name}, held-out part: {text}")
    yield _comment(f"intervals: 95%, {RESAMPLES} resamples of days")
    yield _comment(verdict(outcome))


def verdict(outcome: StudyResult) -> str:
    """Return a sentence on whether the gain of the chosen trial is real."""
    chosen = outcome.chosen
    assert chosen is not None
    if chosen.refused:
        return f"The gain is not shown: limits refuse {chosen.refused} more of the held-out jobs."
    if chosen.gain and not outcome.is_blind:
        return "The gain holds on the held-out jobs, but whoever picked the trial had seen them."
    if chosen.gain:
        return "The gain holds on jobs that no trial has seen."
    return "The gain is not shown on jobs that no trial has seen."


def _comment(text: str) -> str:
    """Return a comment of a single line, whatever characters names have."""
    return "# " + "".join(each if each.isprintable() else "?" for each in text)
