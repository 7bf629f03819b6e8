"""Headers of browsers, as hostile programs may send them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from metasched.api.browsers import cookie_name, cookie_path, session_secret
from metasched.api.identity import ForbiddenError
from metasched.config.settings import WebSettings
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


def web(url: str) -> WebSettings:
    return WebSettings(url, None, None, "X-Remote-User")


def with_cookies(*headers: str, is_proxy: bool = False, protocols: Sequence[str] = ()) -> Request:
    host = ("Host", "site.example:6450")
    forwarded = (("X-Forwarded-Proto", protocol) for protocol in protocols)
    request = requested(host, *forwarded, *(("Cookie", header) for header in headers))
    request.scope["state"] = {"connections": SimpleNamespace(is_proxy=is_proxy)}
    return request


TLS, PLAIN = web("https://site.example:6450"), web("http://localhost:6450")


def test_by_tls_the_cookie_has_a_name_that_no_neighbour_can_set() -> None:
    """A browser takes `__Host-` with `Secure` and the path /, from this host alone."""
    request = with_cookies()
    assert cookie_name(request, TLS) == "__Host-metasched-6450"
    assert cookie_path(request, TLS) == "/"
    assert cookie_name(request, PLAIN) == "metasched-6450"
    assert cookie_path(request, PLAIN) == "/web"
    for protocols in ((), ("http",), ("https, http",), ("https", "http")):
        proxied = with_cookies(is_proxy=True, protocols=protocols)
        assert cookie_name(proxied, TLS) == "metasched-6450"
        assert cookie_path(proxied, TLS) == "/web"
    proxied = with_cookies(is_proxy=True, protocols=("https",))
    assert cookie_name(proxied, PLAIN) == "__Host-metasched-6450"
    assert cookie_path(proxied, PLAIN) == "/"
    assert cookie_name(with_cookies(protocols=("https",)), PLAIN) == "metasched-6450"  # no proxy
    # nor does one of the plain name count by TLS
    assert session_secret(with_cookies("metasched-6450=neighbour"), TLS) == ""
    own = "metasched-6450=neighbour; __Host-metasched-6450=own"
    assert session_secret(with_cookies(own), TLS) == "own"


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        (("metasched-6450=own",), "own"),
        (("a=b; metasched-6450=own; metasched-64500=x",), "own"),
        (("metasched-6450=own; metasched-6450=neighbour",), ""),
        (("metasched-6450=neighbour;metasched-6450 =own",), ""),
        (("metasched-6450=own", "metasched-6450=neighbour"), ""),
        ((), ""),
    ],
)
def test_of_two_sessions_none_counts(headers: tuple[str, ...], secret: str) -> None:
    assert session_secret(with_cookies(*headers), PLAIN) == secret
