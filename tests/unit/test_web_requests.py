"""Headers of browsers, as hostile programs may send them."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from metasched.api.identity import ForbiddenError
from metasched.web.forms import require_same_origin


def requested(*headers: tuple[str, str]) -> Request:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return Request({"type": "http", "method": "POST", "path": "/web/", "headers": raw})


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "http://[x]", "http://]", "\x85", "null", ""]
)
def test_an_origin_that_is_no_url_is_foreign(origin: str) -> None:
    for host in ("site.example", "["):
        for site in ((), (("Sec-Fetch-Site", "same-origin"),)):
            with pytest.raises(ForbiddenError):
                require_same_origin(requested(("Host", host), ("Origin", origin), *site))


def test_a_form_of_the_own_host_counts() -> None:
    require_same_origin(requested(("Host", "site.example"), ("Origin", "http://SITE.example")))
