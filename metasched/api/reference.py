"""Reference of the API: the OpenAPI document, and the same as a page without scripts.

The page loads nothing, neither from this daemon nor from other hosts: a daemon's host often has no
way out, and a script from elsewhere would act with the rights of its reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse

from metasched.api.examples import add_examples
from metasched.api.request import CurrentCaller
from metasched.api.version_exchange import PATHS

PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def openapi(request: Request, _: CurrentCaller) -> dict[str, Any]:
    return _document(request)


@router.get("/docs")
async def docs(request: Request, _: CurrentCaller) -> HTMLResponse:
    return HTMLResponse("".join(_page(_document(request))), headers=PAGE_HEADERS)


def _document(request: Request) -> dict[str, Any]:
    app: FastAPI = request.app
    document = app.openapi()  # made once
    add_examples(document)
    return document


def _page(document: dict[str, Any]) -> Iterator[str]:
    """Yield the HTML of an OpenAPI document: each route with its parameters and bodies."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    yield f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"</head><body><h1>{title}</h1>"
    yield f"<p>Paths begin with {PATHS}. The same for programs: {PATHS}/openapi.json</p>"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"<h2>{escape(f'{method.upper()} {path}')}</h2>"
            yield f"<p>{escape(operation.get('description') or operation['summary'])}</p>"
            yield from _section("Parameters", operation.get("parameters"))
            yield from _section("Request body", operation.get("requestBody"))
            yield from _section("Responses", operation["responses"])
    yield from _section("Schemas", document.get("components", {}).get("schemas"))
    yield "</body></html>"


def _section(title: str, content: object) -> Iterator[str]:
    if content:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        yield f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>"
