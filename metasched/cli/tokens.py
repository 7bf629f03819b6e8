"""The commands `token create`, `token list` and `token revoke`."""

import json as json_format
import os
from pathlib import Path
from typing import Annotated

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.show import format_time, print_table
from metasched.errors import UserError
from metasched.model.units import ParseError, parse_duration

token = typer.Typer(
    help="""Manage tokens, which authenticate you on hosts without MUNGE.

    \b
    Examples:
      metasched token create --expires 30-00:00:00 --file ~/.config/metasched/token
      metasched token list
      metasched token revoke 3
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@token.command()
def create(
    expires: Annotated[
        str, typer.Option("--expires", metavar="DUR", help="Lifetime of the token.")
    ] = "30-00:00:00",
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="PATH", help="Write the token to this file (0600) instead."),
    ] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="For Prometheus: it reads /metrics, nothing else.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Create a token. It is shown only once: the daemon stores a hash of it.

    \b
    Examples:
      metasched token create > token && chmod 600 token
      metasched token create --metrics --expires 365-00:00:00 --file /etc/prometheus/metasched
      metasched token create --expires 8:00:00 --file ~/.config/metasched/token
    """
    try:
        seconds = parse_duration(expires)
    except ParseError as error:
        raise UserError(f"{error.problem}, --expires; {error.fix}") from None
    client = connect(config)
    if file is None:
        new_token = client.create_token(seconds, for_metrics=metrics)
        print(json_format.dumps(new_token) if json else new_token["token"])
        return
    # the file is created first: a token that cannot be stored is never created
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as target:
        try:
            new_token = client.create_token(seconds, for_metrics=metrics)
        except BaseException:
            file.unlink()
            raise
        target.write(f"{new_token['token']}\n")
    message = (
        f"Token {new_token['id']} in {file} is valid until {format_time(new_token['expires'])}"
    )
    public = {key: value for key, value in new_token.items() if key != "token"}
    print(json_format.dumps(public) if json else message)


@token.command(name="list")
def list_tokens(json: JsonOption = False, config: ConfigOption = None) -> None:
    """List your tokens; operators see all tokens.

    \b
    Examples:
      metasched token list
      metasched token list --json
    """
    rows = connect(config).tokens()
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    print_table(
        ("ID", "USER", "SCOPE", "CREATED", "EXPIRES", "REVOKED"),
        (
            (
                *(row["id"], row["user"], row.get("scope", "user"), format_time(row["created"])),
                *(format_time(row["expires"]), format_time(row["revoked"])),
            )
            for row in rows
        ),
    )


@token.command()
def revoke(
    token_id: Annotated[int, typer.Argument(metavar="ID", show_default=False)],
    config: ConfigOption = None,
) -> None:
    """Revoke a token, with immediate effect.

    \b
    Examples:
      metasched token revoke 3
    """
    connect(config).revoke_token(token_id)
