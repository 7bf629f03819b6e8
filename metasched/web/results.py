"""The result of an act, shown by the page after its form.

The text is in the address of that page, with a digest that only this session can make: no other
site can have a page say something. So nothing is kept, and a reload shows it again.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlencode

from fastapi import Request
from starlette.responses import RedirectResponse

MAX_TEXT = 1500  # characters; addresses have an end
TEXT_FIELD, DIGEST_FIELD = "result", "result_digest"


def lead_to(request: Request, address: str, text: str) -> RedirectResponse:
    """Return a redirection to a page without a query, which shows the result."""
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    text = text.encode(errors="replace").decode()
    query = urlencode({TEXT_FIELD: text, DIGEST_FIELD: _digest(request, text)})
    return RedirectResponse(f"{address}?{query}", 303)


def result_of(request: Request) -> str:
    """Return the result of an act for the page of a request; "": none."""
    text = request.query_params.get(TEXT_FIELD, "")
    shown = request.query_params.get(DIGEST_FIELD, "")
    expected = _digest(request, text)
    is_ours = bool(expected) and hmac.compare_digest(expected.encode(), shown.encode())
    return text if is_ours else ""


def _digest(request: Request, text: str) -> str:
    secret: str = getattr(request.state, "form_secret", "")
    if not secret:
        return ""
    message = b"results of metasched\0" + text.encode(errors="replace")
    return hmac.digest(secret.encode(), message, "sha256").hex()
