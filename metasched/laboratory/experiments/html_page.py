"""A self-contained HTML page: tables, and plots as embedded images."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2330; background: #fff; margin: 0 auto;
       max-width: 1080px; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.about { color: #57606f; margin-top: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #e3e6ea; text-align: right; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
"""


def html_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are escaped."""
    header = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><tr>{header}</tr>\n{body}</table></div>'


def image(figure: Figure, about: str) -> str:
    """Return the plot as an embedded image, an SVG with ids of its own."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.hashsalt": about}):
        figure.savefig(file, format="svg", dpi=150, metadata={"Date": None})
    data = b64encode(file.getvalue()).decode("ascii")
    return f'<figure><img alt="{escape(about)}" src="data:image/svg+xml;base64,{data}"></figure>'


def section(title: str, body: str, text: str = "") -> str:
    """Return a part of a page under a heading; `body` is HTML."""
    paragraph = f"<p>{escape(text)}</p>\n" if text else ""
    return f"<h2>{escape(title)}</h2>\n{paragraph}{body}\n"


def page(title: str, about: Mapping[str, object], parts: Iterable[str]) -> str:
    """Return the page; `about` is listed below its title, `parts` are HTML."""
    subtitle = " · ".join(f"{escape(key)} {escape(str(value))}" for key, value in about.items())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="about">{subtitle}</p>\n{"".join(parts)}'
        "</body>\n</html>\n"
    )
