"""Templates of pages, and how values are written there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from metasched.api.browsers import PAGES
from metasched.api.identity import Caller
from metasched.web import charts
from metasched.web.forms import TOKEN_FIELD, form_token
from metasched.web.results import result_of
from metasched.web.visible import visible

TEMPLATES = Path(__file__).with_name("templates")
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\+00:00", re.ASCII)


def time_element(value: str | None, missing: str = "–") -> Markup:
    """Return an element with a time in ISO 8601, for the script to write in the reader's zone."""
    if value is None:
        return Markup(missing)
    text = value[:16].replace("T", " ")
    return Markup('<time datetime="{}">{} UTC</time>').format(value, text)


def with_times(text: str) -> Markup:
    """Return a text with the times of messages as elements, as of `time_element`."""
    begin, parts = 0, []
    for match in _ISO_TIME.finditer(text):
        parts += [Markup.escape(visible(text[begin : match.start()])), time_element(match[0])]
        begin = match.end()
    return Markup().join([*parts, Markup.escape(visible(text[begin:]))])


def short_number(value: float) -> str:
    """Return a number with four digits."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration_text(seconds: float | None, missing: str = "–") -> str:
    """Return a duration as managers write it: `2-03:04:05`, `3:04:05` or `4:05`."""
    if seconds is None:
        return missing
    days, rest = divmod(max(round(seconds), 0), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def memory_text(mib: float | None, missing: str = "–") -> str:
    """Return an amount of memory, given in MiB."""
    if mib is None:
        return missing
    return f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{mib:.4g} MiB"


def counts_text(counts: Mapping[str, int]) -> str:
    """Write counts as in `gpu:2, disk:1`."""
    return ", ".join(f"{name}:{count}" for name, count in counts.items())


def link(path: str, **parameters: object) -> str:
    """Return the address of a page; parameters without a value are left out."""
    query = urlencode({name: value for name, value in parameters.items() if value})
    return f"{PAGES}{path}" + (f"?{query}" if query else "")


_templates = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=visible,
)
_templates.globals |= {
    "link": link,
    "bar": charts.bar,
    "columns": charts.columns,
    "TOKEN_FIELD": TOKEN_FIELD,
}
_templates.filters |= {
    "time": time_element,
    "with_times": with_times,
    "short": short_number,
    "duration": duration_text,
    "memory": memory_text,
    "counts": counts_text,
}


def page(request: Request, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
    """Render a template for the caller of a request; there may be none."""
    caller: Caller | None = getattr(request.state, "caller", None)
    text = _templates.get_template(template).render(
        caller=caller,
        path=request.scope["path"],
        form_token=form_token(request),
        result=result_of(request),
        **values,
    )
    return HTMLResponse(text.encode(errors="backslashreplace"), status)
