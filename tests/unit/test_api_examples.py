"""The examples of the OpenAPI document are valid by it, and none is missing."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import jsonschema_rs
import pytest

from metasched.api.app import create_app
from metasched.api.examples import ANSWERS, REQUESTS, add_examples

JSON = "application/json"


def described() -> dict[str, Any]:
    """Return the document; nothing of the daemon is in it."""
    daemon = MagicMock()
    daemon.settings.requests.max_answers = daemon.settings.requests.max_bytes = 1 << 30
    document: dict[str, Any] = create_app(daemon).openapi()
    return document


DOCUMENT = described()
ROUTES = {
    (method.upper(), path): operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}


def content(described: dict[str, Any] | None) -> dict[str, Any] | None:
    example: dict[str, Any] | None = (described or {}).get("content", {}).get(JSON)
    return example


def check(example: object, schema: dict[str, Any]) -> None:
    jsonschema_rs.validate(schema | {"components": DOCUMENT["components"]}, example)


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_each_body_and_answer_has_a_valid_example(route: tuple[str, str]) -> None:
    operation = ROUTES[route]
    body = content(operation.get("requestBody"))
    assert (route in REQUESTS) == (body is not None)
    if body is not None:
        check(REQUESTS[route], body["schema"])
    answer = content(operation["responses"]["200"])
    assert (route in ANSWERS) == (answer is not None)
    if answer is None:
        return
    schema = answer["schema"]
    check(ANSWERS[route], schema)
    assert schema, route  # each answer is described
    assert not schema.get("additionalProperties"), route


def test_no_example_is_of_another_route() -> None:
    assert REQUESTS.keys() <= ROUTES.keys()
    assert ANSWERS.keys() <= ROUTES.keys()


def test_the_document_has_the_examples_however_often_they_are_added() -> None:
    document = described()
    add_examples(document)
    add_examples(document)
    operation = document["paths"]["/jobs"]["post"]
    body = operation["requestBody"]["content"][JSON]
    assert body["example"] == REQUESTS["POST", "/jobs"]
    answer = operation["responses"]["200"]["content"][JSON]
    assert answer["example"] == ANSWERS["POST", "/jobs"]
    assert document["servers"] == [{"url": "/v1"}]
