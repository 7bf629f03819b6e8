"""The track record: results of mutants, and the section of docs/reliability.md made from them.

`python -m tests.chaos.mutants.track_record` renders the section from the stored results.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.chaos.mutants.mutant import CHECKOUT, FOLDER, Mutant, all_mutants

PAGE = CHECKOUT / "docs" / "reliability.md"
TITLE = "## Track record"
_LONGEST = 300  # characters of a stored finding
_ABOUT = """\
Each row is a defect that was repaired, or from which a repair protects. A patch in
`tests/chaos/mutants` restores it in the present code. The harness then makes trials with new seeds,
at most 100, until it finds the defect. The same trials of the unchanged code, at least three, are
the control. They must find nothing.

A trial of chaos is a strike, in rounds of a few. A trial of pytest is a random example of a
property test, or a run of a plain test. A trial of hostile is a contest of two accounts.
`python -m tests.chaos.mutants NAME` repeats a row; `make chaos` repeats all.

A plain test finds its defect at the first trial: it was often written with the repair. Such a row
shows that the defect cannot return unnoticed. Random lives of the core (`test_core`,
`test_recovery`) look for defects that nobody has thought of.
"""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The search for a restored defect."""

    name: str  # of the mutant
    harness: str
    trials: int = 0  # made with the defect
    finding: str = ""  # the report of the harness; "": not found
    control_trials: int = 0  # made without the defect
    control_finding: str = ""  # a report without the defect; "": none, as it must be
    seconds: float = 0.0  # of all trials, and of copying the checkout
    date: str = ""  # ISO, UTC
    error: str = ""  # why the search could not be made

    @property
    def found(self) -> bool:
        return bool(self.finding)

    @property
    def clean(self) -> bool:
        """Whether the control was made and found nothing."""
        return not self.error and not self.control_finding

    @classmethod
    def failed(cls, mutant: Mutant, reason: str) -> Result:
        return cls(name=mutant.name, harness=str(mutant.harness), error=reason)

    @classmethod
    def measured(
        cls,
        mutant: Mutant,
        trials: int,
        finding: str,
        control_trials: int,
        control_finding: str,
        seconds: float,
    ) -> Result:
        return cls(
            name=mutant.name,
            harness=str(mutant.harness),
            trials=trials,
            finding=finding[:_LONGEST],
            control_trials=control_trials,
            control_finding=control_finding[:_LONGEST],
            seconds=round(seconds, 1),
            date=time.strftime("%Y-%m-%d", time.gmtime()),
        )

    def __str__(self) -> str:
        if self.error:
            return f"{self.name}: not tried: {self.error}"
        outcome = f"found at trial {self.trials}: {self.finding}" if self.found else "NOT FOUND"
        control = self.control_finding or "clean"
        return (
            f"{self.name}: {outcome}; control of {self.control_trials}: {control}; "
            f"{self.seconds:g} s"
        )


def result_file(mutant_name: str) -> Path:
    return FOLDER / f"{mutant_name}.json"


def store(result: Result) -> None:
    """Write the result beside the patch, unless the search could not be made."""
    if not result.error:
        text = msgspec.json.format(msgspec.json.encode(result), indent=1)
        result_file(result.name).write_bytes(text + b"\n")


def stored_results() -> dict[str, Result]:
    """Return the stored results by name of the mutant."""
    results = [
        msgspec.json.decode(path.read_bytes(), type=Result) for path in FOLDER.glob("*.json")
    ]
    return {result.name: result for result in results}


def section() -> str:
    """Return the section: what a trial is, and a row for each mutant."""
    return "\n".join([TITLE, "", _ABOUT, *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    yield "| defect | repaired by | harness | trials until found | control, clean |"
    yield "|---|---|---|--:|--:|"
    results = stored_results()
    for mutant in all_mutants():
        result = results.get(mutant.name)
        yield (
            f"| {mutant.defect} | {mutant.repaired} | {mutant.harness} "
            f"| {_trials(result)} | {_control(result)} |"
        )


def _trials(result: Result | None) -> str:
    if result is None:
        return "not measured"
    return str(result.trials) if result.found else f"not found in {result.trials}"


def _control(result: Result | None) -> str:
    if result is None:
        return ""
    return str(result.control_trials) if result.clean else "not clean"


def page_with(section: str, page: str) -> str:
    """Return the page with its section replaced, or added at its end."""
    before = re.split(rf"^{TITLE}$", page, maxsplit=1, flags=re.MULTILINE)[0]
    return f"{before.rstrip()}\n\n{section}"


def render_page() -> None:
    """Write the section into docs/reliability.md."""
    PAGE.write_text(page_with(section(), PAGE.read_text()))


if __name__ == "__main__":
    render_page()
