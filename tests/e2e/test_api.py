"""The HTTP API itself: its reference."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.e2e.conftest import Site
from tests.harness.http_calls import call

PASSIVE_ELEMENTS = {
    *("html", "head", "meta", "title", "body", "h1", "h2", "p", "details", "summary", "pre"),
}


class _Elements(HTMLParser):
    """The elements of a page, and the attributes that are not plainly harmless."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= set(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_reference_names_every_route_and_loads_nothing(shared: Site) -> None:
    socket = shared.folder / "ms.sock"
    document = call(socket, "GET", "/openapi.json").json
    page = call(socket, "GET", "/docs")
    assert page.status == 200
    assert page.headers["content-security-policy"].startswith("default-src 'none';")
    elements = _Elements(page.content.decode())
    assert elements.names <= PASSIVE_ELEMENTS
    assert elements.attributes == {("lang", "en"), ("charset", "utf-8")}
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"{method.upper()} {path}" in elements.text
    assert "/jobs" in document["paths"]
    assert call(socket, "GET", "/redoc").status == 404
