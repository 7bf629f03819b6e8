"""Request bodies that are msgspec structs, for FastAPI, which knows pydantic models only."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import msgspec
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from metasched.errors import ApiError

_LOCATION = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)  # of a message of msgspec


class StructBody:
    """Annotation of a parameter: the JSON body is converted to the msgspec struct of its type."""

    def __get_pydantic_core_schema__(self, source: Any, _: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(partial(_convert, source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, _: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # pydantic knows the struct only through the validator that was made of it
        struct = schema["function"]["function"].args[0]
        (root,), definitions = msgspec.json.schema_components([struct])
        inlined: JsonSchemaValue = _inline(root, definitions)
        return inlined


def _convert(struct: type[msgspec.Struct], body: object) -> msgspec.Struct:
    """Convert a decoded body. Raise ApiError if it does not fit the struct."""
    try:
        return msgspec.convert(body, struct, strict=False)
    except msgspec.ValidationError as error:
        match = _LOCATION.match(str(error))
        assert match is not None
        problem, path = match[1], re.sub(r"\[(\d+)\]", r".\1", match[2] or "body")
        raise ApiError(422, f"{problem}, {path}; see /docs") from None


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """Write each definition in place of the references to it."""
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(part, definitions) for key, part in schema.items()}
