"""Programs rely on the paths, parameters and fields of the API: none may vanish or be renamed.

`python -m tests.unit.test_api_fields` records those of the present, for a deliberate change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.unit.test_api_examples import DOCUMENT, ROUTES, content

RECORDED = Path(__file__).parents[1] / "recorded/api_fields.json"
SCHEMAS = DOCUMENT["components"]["schemas"]


def fields(schema: dict[str, Any], prefix: str = "", within: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the paths of all fields, such as `clusters.reason`; lists add no step."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in within:
            yield from fields(SCHEMAS[name], prefix, (*within, name))
    for name, of_field in schema.get("properties", {}).items():
        yield prefix + name
        yield from fields(of_field, f"{prefix}{name}.", within)
    inner = [schema.get("items"), schema.get("additionalProperties")]
    for kind in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner += schema.get(kind, ())
    for part in inner:
        if isinstance(part, dict):
            yield from fields(part, prefix, within)


def present() -> dict[str, list[str]]:
    """Return names by route, each with its place."""
    names = {}
    for route, operation in ROUTES.items():
        of_route = {f"{p['in']} {p['name']}" for p in operation.get("parameters", ())}
        for place, described in (
            ("body", operation.get("requestBody")),
            ("answer", operation["responses"]["200"]),
        ):
            if (media := content(described)) is not None:
                of_route |= {f"{place} {path}" for path in fields(media["schema"])}
        names[" ".join(route)] = sorted(of_route)
    return names


def test_no_name_has_vanished() -> None:
    recorded: dict[str, list[str]] = json.loads(RECORDED.read_text())
    now = present()
    lacking = {route: set(names) - set(now.get(route, ())) for route, names in recorded.items()}
    assert {route: names for route, names in lacking.items() if names} == {}
    assert recorded.keys() <= now.keys()


if __name__ == "__main__":
    lines = [f"{json.dumps(route)}: {json.dumps(names)}" for route, names in present().items()]
    RECORDED.write_text("{\n" + ",\n".join(sorted(lines)) + "\n}\n")
