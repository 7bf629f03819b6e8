"""Request bodies that are msgspec structs, for FastAPI, which knows pydantic models only."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from metasched.errors import ApiError

HALF_A_CHARACTER = "half a character, in the request; remove it"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TOO_LONG = re.compile(r"Expected `(str|array|object)` of length <= (\d+)$")
_ITEMS = {"str": "characters", "array": "entries", "object": "entries"}
_LOCATION = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)  # of a message of msgspec


class StructBody:
    """Annotation of a parameter of a `StructRoute`: the JSON body is decoded to its type."""

    def __get_pydantic_core_schema__(self, source: Any, _: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(partial(_decode, source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, _: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # pydantic knows the struct only through the validator that was made of it
        struct = schema["function"]["function"].args[0]
        (root,), definitions = msgspec.json.schema_components([struct])
        inlined: JsonSchemaValue = _inline(root, definitions)
        return inlined


class StructRequest(Request):
    """A request whose body `StructBody` decodes."""

    async def json(self) -> bytes:
        """Return the body as it is: decoded, it may be forty times as large."""
        return await self.body()


class StructRoute(APIRoute):
    """A route whose body is a struct."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which sees a `StructRequest`."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(StructRequest(request.scope, request.receive))

        return handle


def _decode(struct: type[msgspec.Struct], body: bytes) -> msgspec.Struct:
    """Decode a body. ApiError for the first value that does not fit the struct."""
    try:
        return msgspec.json.decode(body, type=struct, strict=False)
    except RecursionError:
        raise ApiError(400, "lists or objects are nested too deep, body; see /docs") from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"no UTF-8 ({error}), body; see /docs") from None
    except msgspec.ValidationError as error:
        match = _LOCATION.match(str(error))
        assert match is not None
        problem, path = match[1], re.sub(r"\[(\d+)\]", r".\1", match[2] or "body")
        if too_long := _TOO_LONG.match(problem):
            problem = f"more than {too_long[2]} {_ITEMS[too_long[1]]}"
            raise ApiError(422, f"{problem}, {path}; send fewer") from None
        raise ApiError(422, f"{problem}, {path}; see /docs") from None
    except msgspec.DecodeError as error:
        if _SURROGATE.search(body):
            raise ApiError(422, HALF_A_CHARACTER) from None
        raise ApiError(400, f"{error}, body; send JSON") from None


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """Write each definition in place of the references to it."""
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(part, definitions) for key, part in schema.items()}
