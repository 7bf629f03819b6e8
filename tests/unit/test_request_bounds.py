"""Bounds of requests: each text and list has one, and nothing is done per item before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from metasched.api.struct_body import _decode
from metasched.api.submissions import _check_sizes
from metasched.client.schemas import SubmitRequest
from metasched.errors import ApiError, ParseError
from metasched.model.dependencies import MAX_DEPENDENCY, parse_dependency
from metasched.model.request_bounds import (
    MAX_JOBS,
    MAX_SCRIPT,
    MAX_SUBMITTED_TERMS,
    MAX_VARIABLES,
    MAX_WORD,
)
from metasched.paths import MAX_REQUEST_BYTES
from tests.unit.test_api_examples import DOCUMENT, JSON, ROUTES

CLOSED = ("enum", "const", "format")  # such a text has few values, or a form with a length
BODIES = {
    route: operation["requestBody"]["content"][JSON]["schema"]
    for route, operation in ROUTES.items()
    if "requestBody" in operation
}


def unbounded(schema: dict[str, Any], place: str = "body") -> Iterator[str]:
    """Yield the texts, lists and objects of a schema that may be of any size."""
    if "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for choice in ("anyOf", "oneOf", "allOf"):
        for option in schema.get(choice, ()):
            yield from unbounded(option, place)
    match schema.get("type"):
        case "string" if "maxLength" not in schema and not any(key in schema for key in CLOSED):
            yield place
        case "array":
            if "maxItems" not in schema:
                yield place
            yield from unbounded(schema["items"], f"{place}[]")
        case "object":
            for name, value in schema.get("properties", {}).items():
                yield from unbounded(value, f"{place}.{name}")
            if isinstance(values := schema.get("additionalProperties"), dict):
                if "maxProperties" not in schema:
                    yield place
                if "maxLength" not in schema.get("propertyNames", {}):
                    yield f"keys of {place}"
                yield from unbounded(values, f"{place}{{}}")


@pytest.mark.parametrize("route", BODIES, ids=" ".join)
def test_each_text_and_list_of_a_body_has_a_bound(route: tuple[str, str]) -> None:
    """Paths and queries have the bound of the head of a request, 64 KiB."""
    assert list(unbounded(BODIES[route])) == []


def test_a_text_without_a_bound_is_found() -> None:
    text = {"type": "string"}
    listed = {"type": "object", "properties": {"a": {"anyOf": [{"type": "array", "items": text}]}}}
    assert list(unbounded(listed)) == ["body.a", "body.a[]"]
    mapped = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 9}}
    assert list(unbounded(mapped)) == ["body", "keys of body"]


def request(job: dict[str, object] | None = None, jobs: int = 1, **fields: object) -> bytes:
    each = {"script": "s", "environment": "e", "directory": "/"} | (job or {})
    body = {"jobs": [each] * jobs, "scripts": {"s": "#!/bin/sh\n"}, "environments": {"e": {}}}
    return json.dumps(body | fields).encode()


def refusal(body: bytes) -> str:
    with pytest.raises(ApiError) as caught:
        _check_sizes(_decode(SubmitRequest, body))  # type: ignore[arg-type]
    assert caught.value.status in (413, 422)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (request(jobs=MAX_JOBS + 1), "more than 20000 entries, jobs; send fewer"),
        (
            request({"dependency": "afterok" + ":1" * 2_000_000}),
            "more than 65536 characters, jobs.0.dependency; send fewer",
        ),
        (
            request({"dependency": "afterok" + ":1" * 201}, jobs=100),
            "20100 jobs to wait for in the request, at most 20000; submit fewer jobs at once",
        ),
        (request({"array": "1," * 70_000}), "more than 131072 characters, jobs.0.array"),
        (request({"arguments": ["x"] * 10_001}), "more than 10000 entries, jobs.0.arguments"),
        (request({"arguments": ["x" * 131_073]}), "characters, jobs.0.arguments.0; send fewer"),
        (request({"comment": "x" * 1025}), "more than 1024 characters, jobs.0.comment"),
        (request({"slurm_options": ["-x"] * 1_001}), "entries, jobs.0.slurm_options"),
        (request({"licences": {str(i): 1 for i in range(1_001)}}), "entries, jobs.0.licences"),
        (request({"mail": {"types": ["END"] * 1_001}}), "entries, jobs.0.mail.types"),
        (request(scripts={"s": "x" * (MAX_SCRIPT + 1)}), "characters, scripts"),
        (request(scripts={"s": "é" * (MAX_SCRIPT // 2 + 1)}), "bytes, scripts.s, at most 4194304"),
        (
            request(environments={"e": {str(i): "" for i in range(MAX_VARIABLES + 1)}}),
            "more than 20000 entries, environments",
        ),
        (request(environments={"e": {"A": "x" * (MAX_WORD + 1)}}), "characters, environments"),
        (
            request(environments={"e": {str(i): "x" * MAX_WORD for i in range(33)}}),
            "bytes, environments.e, at most 4194304",
        ),
        (request({"constraint": "x" * 32_769}), "characters, jobs.0.constraint"),
        (request({"constraint": "x" * 20_000, "qos": "x" * 20_000}), "characters together"),
        (request(jobs=0), "no job in the request"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_too_large_is_refused_in_one_line(body: bytes, message: str) -> None:
    assert message in refusal(body)


def test_what_sbatch_takes_is_taken() -> None:
    """The largest argument and variable of the kernel, and the largest script of slurmctld."""
    jobs = request(
        {
            "arguments": ["x" * MAX_WORD],
            "array": ",".join(map(str, range(1, 40_000, 2)))[: MAX_WORD - 9],
            "dependency": ",".join(f"afternotok:{10**12 + i}_999999" for i in range(1_000)),
        },
        scripts={"s": "x" * MAX_SCRIPT},
        environments={"e": {f"V{i}": "x" * 1_000 for i in range(900)}},
    )
    assert len(jobs) < MAX_REQUEST_BYTES
    _, sizes = _check_sizes(_decode(SubmitRequest, jobs))  # type: ignore[arg-type]
    assert sizes["s"] == MAX_SCRIPT
    assert len(request(jobs=MAX_JOBS)) < MAX_REQUEST_BYTES


def test_a_long_dependency_is_refused_before_it_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[object] = []
    monkeypatch.setattr("metasched.model.dependencies._parse_terms", parsed.append)
    for text in ("afterok" + ":1" * 2_000_000, "singleton," * 5_000, "afterok" + ":1" * 1_001):
        with pytest.raises(ParseError, match=f"{MAX_DEPENDENCY}|more than 1000 jobs to wait for"):
            parse_dependency(text)
    assert parsed == []
    assert MAX_SUBMITTED_TERMS >= 1_000  # a job may have as many as ever
