"""The command `licence probe`: query a licence server and show the parsed report."""

import asyncio
import json as json_format
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from metasched.cli.common_options import JsonOption, NearestConfigOption
from metasched.cli.show import format_time, print_table
from metasched.errors import UserError
from metasched.licence_servers.base import LicenceServerError, UsageReport

MAX_ANSWER_BYTES = 2**23  # of a stored response


def probe(
    server: Annotated[str, typer.Argument(metavar="[SERVER]", show_default=False)] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="FILE", help="Parse this response (-: stdin), query no server."
        ),
    ] = "",
    server_kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Type of the server of that response.")
    ] = "flexlm",
    json: JsonOption = False,
    config: NearestConfigOption = None,
) -> int:
    """Query a licence server, or all of them, and show the parsed report.

    Needs no daemon and changes nothing: the daemon queries the servers itself. Lines that cannot be
    parsed are listed. Exits with 1 if a server reports no licences.

    \b
    Examples:
      metasched licence probe main
      lmutil lmstat -a -c 27000@lic1 | metasched licence probe --from -
      metasched licence probe --from answer.json --kind command --json
    """
    from metasched.licence_servers.process import query_server

    probed_servers: list[dict[str, Any]] = []
    for name, query in _queries(server, source, server_kind, config):
        try:
            report, error_message = asyncio.run(query_server(query)), ""
        except LicenceServerError as error:
            report, error_message = UsageReport(()), str(error)
        probed_servers.append({"server": name, "error": error_message, **_report_row(report)})
    if json:
        print(json_format.dumps(probed_servers, indent=2))
    else:
        for probed in probed_servers:
            _print_result(probed)
    return 1 if any(probed["error"] for probed in probed_servers) else 0


def _report_row(report: UsageReport) -> dict[str, Any]:
    """Return the report for JSON, with ISO 8601 times."""
    row = asdict(report)
    row["observed"] = _iso_time(report.observed)
    row["troubles"] = [str(trouble) for trouble in report.troubles]
    for feature in row["features"]:
        for use in feature["uses"] or ():
            use["since"] = _iso_time(use["since"])
    return row


def _iso_time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def _queries(
    server: str, source: str, server_kind: str, config: Path | None
) -> list[tuple[str, Any]]:
    """Return (server, query) pairs. Raise UserError if there is no such server or file."""
    from metasched.licence_servers.process import ServerQuery

    if source and not server:
        return [(source, ServerQuery(server_kind, {}, 60.0, _read_answer(source)))]
    from metasched.config.reading import find_config, load_settings

    settings = load_settings(find_config(config))
    servers = {configured.name: configured for configured in settings.licence_servers}
    if server and server not in servers:
        names = ", ".join(servers) or "none"
        raise UserError(f'no licence_server "{server}" in {settings.config_path}; it has {names}')
    if not servers:
        raise UserError(
            f"no [[licence_server]] in {settings.config_path}; add one, or use --from FILE"
        )
    stored_answer = _read_answer(source) if source else None
    return [
        (
            configured.name,
            ServerQuery(
                configured.server_type, configured.options, configured.timeout, stored_answer
            ),
        )
        for configured in servers.values()
        if not server or configured.name == server
    ]


def _read_answer(source: str) -> str:
    if source == "-":
        content = sys.stdin.buffer.read(MAX_ANSWER_BYTES + 1)
    else:
        with Path(source).open("rb") as file:
            content = file.read(MAX_ANSWER_BYTES + 1)
    if len(content) > MAX_ANSWER_BYTES:
        raise UserError(
            f"{source} has more than {MAX_ANSWER_BYTES >> 20} MiB; give a single response"
        )
    return content.decode(errors="replace")


def _print_result(result: dict[str, Any]) -> None:
    if result["error"]:
        print(f"{result['server']}: {result['error']}")
        return
    observed = format_time(result["observed"])
    print(
        f"{result['server']}: {len(result['features'])} licences"
        + (f", as of {observed}" if observed else "")
    )
    print_table(
        ("FEATURE", "ISSUED", "USED", "RESERVED", "QUEUED", "USERS"),
        (
            (
                feature["name"],
                "uncounted" if feature["issued"] is None else feature["issued"],
                *(feature[key] for key in ("used", "reserved", "queued")),
                "not reported" if feature["uses"] is None else len(feature["uses"]),
            )
            for feature in result["features"]
        ),
    )
    for trouble in result["troubles"]:
        print(f"not understood: {trouble}")
