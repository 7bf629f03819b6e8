"""The command licence probe: what a licence server says, and what was understood of it."""

import asyncio
import json as json_format
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from metasched.cli.connect import Json, Nearest
from metasched.cli.show import moment, table
from metasched.errors import UserError
from metasched.licence_servers.base import ProbeError, Report

LONGEST = 2**23  # bytes of a stored answer


def probe(
    server: Annotated[str, typer.Argument(metavar="[SERVER]", show_default=False)] = "",
    source: Annotated[
        str,
        typer.Option("--from", metavar="FILE", help="Ask nobody: read this answer (-: stdin)."),
    ] = "",
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Of what kind that answer is.")
    ] = "flexlm",
    json: Json = False,
    config: Nearest = None,
) -> int:
    """Ask a licence server once (all of them: name none) and show what was understood.

    Needs no daemon, and changes nothing: the daemon asks for itself. Lines that could not be read
    are named. Exits with 1 if a server said nothing of licences.

    \b
    Examples:
      metasched licence probe main
      lmutil lmstat -a -c 27000@lic1 | metasched licence probe --from -
      metasched licence probe --from answer.json --kind command --json
    """
    from metasched.licence_servers.process import probe as asked

    shown: list[dict[str, Any]] = []
    for name, question in _questions(server, source, kind, config):
        try:
            report, words = asyncio.run(asked(question)), ""
        except ProbeError as error:
            report, words = Report(()), str(error)
        shown.append({"server": name, "error": words, **_told(report)})
    if json:
        print(json_format.dumps(shown, indent=2))
    else:
        for one in shown:
            _show(one)
    return 1 if any(one["error"] for one in shown) else 0


def _told(report: Report) -> dict[str, Any]:
    """The report with its times as users read them."""
    told = asdict(report)
    told["observed"] = _iso(report.observed)
    told["troubles"] = [str(trouble) for trouble in report.troubles]
    for feature in told["features"]:
        for use in feature["uses"] or ():
            use["since"] = _iso(use["since"])
    return told


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def _questions(server: str, source: str, kind: str, config: Path | None) -> list[tuple[str, Any]]:
    """What to ask, by the name of whom. UserError if there is no such server or file."""
    from metasched.licence_servers.process import Question

    if source and not server:
        return [(source, Question(kind, {}, 60.0, _read(source)))]
    from metasched.config.reading import find, load

    settings = load(find(config))
    servers = {one.name: one for one in settings.licence_servers}
    if server and server not in servers:
        known = ", ".join(servers) or "none"
        raise UserError(f'no licence_server "{server}" in {settings.origin}; it has {known}')
    if not servers:
        raise UserError(f"no [[licence_server]] in {settings.origin}; add one, or use --from FILE")
    text = _read(source) if source else None
    return [
        (one.name, Question(one.kind, one.options, one.timeout, text))
        for one in servers.values()
        if not server or one.name == server
    ]


def _read(source: str) -> str:
    if source == "-":
        found = sys.stdin.buffer.read(LONGEST + 1)
    else:
        with Path(source).open("rb") as file:
            found = file.read(LONGEST + 1)
    if len(found) > LONGEST:
        raise UserError(f"{source} has more than {LONGEST >> 20} MiB; give one answer of a server")
    return found.decode(errors="replace")


def _show(one: dict[str, Any]) -> None:
    if one["error"]:
        print(f"{one['server']}: {one['error']}")
        return
    when = moment(one["observed"])
    print(f"{one['server']}: {len(one['features'])} licences" + (f", as of {when}" if when else ""))
    table(
        ("FEATURE", "ISSUED", "USED", "RESERVED", "QUEUED", "USERS"),
        (
            (
                feature["name"],
                "uncounted" if feature["issued"] is None else feature["issued"],
                *(feature[key] for key in ("used", "reserved", "queued")),
                "not told" if feature["uses"] is None else len(feature["uses"]),
            )
            for feature in one["features"]
        ),
    )
    for trouble in one["troubles"]:
        print(f"not understood: {trouble}")
