"""docs/slurm-words.md lists the states, reasons and fields that the drop-in commands know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from metasched.drop_in import job, job_fields, sacct, sinfo
from metasched.drop_in.format_language import Field

PAGE = Path(__file__).parents[2] / "docs/slurm-words.md"


def state_rows() -> Iterator[str]:
    for state, name in job.STATES.items():
        yield f"| `{state}` | {name} | {job.SLURM_STATES[name][0]} |"
    yield "| `unknown` | the last known: PENDING or RUNNING | PD or R |"
    for state, name in job.ATTEMPT_STATES.items():
        yield f"| `failed`, last attempt `{state}` | {name} | {job.SLURM_STATES[name][0]} |"


def other_state_rows() -> Iterator[str]:
    shown = {*job.STATES.values(), *job.ATTEMPT_STATES.values()}
    for name, (code, state) in job.SLURM_STATES.items():
        if name not in shown:
            yield f"| {name} | {code} | `{state}` |"


def reason_rows() -> Iterator[str]:
    for reason, slurm_reason in job.REASONS.items():
        yield f"| `{reason}` | {slurm_reason} |"


def field_rows(fields: Iterable[Field]) -> Iterator[str]:
    for field in sorted(fields, key=lambda field: (not field.letter, field.letter, field.names)):
        letter = f"`%{field.letter}`" if field.letter else ""
        names = ", ".join(f"`{name}`" for name in field.names)
        yield f"| {letter} | {names} | {field.heading} |"


def sacct_rows() -> Iterator[str]:
    for field in sacct.FIELDS.values():
        if field.heading not in sacct.EMPTY:
            yield f"| `{field.heading}` | {abs(field.width)} |"


def test_the_page_shows_the_tables() -> None:
    fields = "| letter | name | heading |\n|---|---|---|\n"
    tables = [
        "| state | Slurm | code |\n|---|---|---|\n" + "\n".join(state_rows()),
        "| Slurm | code | metasched |\n|---|---|---|\n" + "\n".join(other_state_rows()),
        "| reason | Slurm |\n|---|---|\n" + "\n".join(reason_rows()),
        fields + "\n".join(field_rows(job_fields.FIELDS)),
        fields + "\n".join(field_rows(sinfo.FIELDS)),
        "| field | width |\n|---|--:|\n" + "\n".join(sacct_rows()),
    ]
    page = " ".join(PAGE.read_text().split())
    position = 0
    for table in tables:
        text = " ".join(table.split())
        assert text in page[position:], f"the page lacks this, or has it elsewhere:\n{table}"
        position = page.index(text, position)
