"""Names of stored kinds and fields, as recorded: in events, checkpoints, and files of clusters.

msgspec ignores a field that it does not know, and takes the default of a missing one. So a field
that was renamed without a migration would lose what is stored, and nothing else would show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, get_args

import msgspec
from msgspec import inspect

from metasched.adapters.drmaa.generic import _TaskRecord
from metasched.adapters.gridengine.withdrawals import Deletion
from metasched.adapters.local.queue_store import Requirements
from metasched.core.events import CoreEvent
from metasched.core.recovered_state import RecoveredState
from metasched.model.job import Payload
from metasched.model.listing import JobStatus

RECORDED: Final = Path(__file__).parents[1] / "recorded" / "stored_names.txt"
ROOTS: Final = (
    *get_args(CoreEvent),
    *(RecoveredState, Payload),
    *(Requirements, JobStatus, Deletion, _TaskRecord),  # files of clusters
)
_WITH_FIELDS: Final = (
    *(inspect.StructType, inspect.DataclassType, inspect.NamedTupleType, inspect.TypedDictType),
)


class _Inner(msgspec.Struct, tag="in"):
    number: int = msgspec.field(name="n", default=0)


class _Outer(msgspec.Struct):
    inner: dict[str, tuple[_Inner | None, ...]]


def stored_names(roots: Iterable[type] = ROOTS) -> list[str]:
    """Return a line of names for each type that is stored, alone or in another."""
    lines: dict[type, str] = {}
    pending: list[object] = list(inspect.multi_type_info(roots))
    while pending:
        info = pending.pop()
        if isinstance(info, _WITH_FIELDS):
            if info.cls not in lines:
                tag = [f"({info.tag})"] if isinstance(info, inspect.StructType) and info.tag else []
                names = sorted(field.encode_name for field in info.fields)
                lines[info.cls] = " ".join([f"{info.cls.__name__}:", *tag, *names])
                pending += [field.type for field in info.fields]
        elif isinstance(info, inspect.Type):
            for value in msgspec.structs.asdict(info).values():
                pending += value if isinstance(value, tuple) else [value]
    return sorted(lines.values())


def test_stored_names_are_those_recorded() -> None:
    recorded = RECORDED.read_text().splitlines()
    assert stored_names() == recorded, (
        "rename what is stored by a migration (docs/CONTRIBUTING.md), raise VERSION of a cluster's "
        "file, then record the names: python -m tests.unit.test_stored_names"
    )


def test_names_of_nested_types_are_found() -> None:
    assert stored_names([_Outer]) == ["_Inner: (in) n", "_Outer: inner"]


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{line}\n" for line in stored_names()))
