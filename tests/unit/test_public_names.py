"""Names that others rely on, as recorded: routes, fields of the API, kinds of events, reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from metasched.model.audit import AuditKind
from metasched.model.job import Reason, State
from tests.unit.test_api_examples import DOCUMENT

RECORDED = Path(__file__).parents[1] / "recorded" / "public_names.txt"


def public_names() -> Iterator[str]:
    """Yield a line of names for each route, type of the API, and list of words."""
    for path, operations in sorted(DOCUMENT["paths"].items()):
        for method, operation in sorted(operations.items()):
            parameters = sorted(parameter["name"] for parameter in operation.get("parameters", ()))
            yield " ".join([f"{method.upper()} {path}:", *parameters])
    for name, schema in sorted(DOCUMENT["components"]["schemas"].items()):
        yield " ".join([f"{name}:", *sorted(schema.get("properties", ()))])
    for words in (AuditKind, Reason, State):
        yield " ".join([f"{words.__name__}:", *sorted(words)])


def test_names_that_others_rely_on_are_those_recorded() -> None:
    recorded = RECORDED.read_text().splitlines()
    assert list(public_names()) == recorded, (
        "keep a name that was recorded; record a new name: python -m tests.unit.test_public_names"
    )


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{line}\n" for line in public_names()))
