"""How a job ended: exit code, signal, paths, and the last lines of its output."""

from __future__ import annotations

import os

from metasched.cli.job_commands import ENDED
from metasched.cli.regular_files import open_regular
from metasched.cli.show import printable
from metasched.client.client import Client
from metasched.client.connection import ClientError

TAIL_LINES = 10
TAIL_BYTES = 8192  # of a file that are read for them


def print_end(client: Client, job: str) -> None:
    """Print how a job ended that ran and did not complete; nothing of others."""
    [row, *other_rows] = client.job_details([job])
    if other_rows or row["state"] not in ENDED - {"completed", "rejected"} or not row["started"]:
        return
    try:
        paths = client.output(job)
    except ClientError:  # not the caller's, or pruned meanwhile
        return
    code = "unknown" if row["exit_code"] is None else row["exit_code"]
    signal = f", signal {row['signal']}" if row.get("signal") else ""
    print(f"\nExit code {code}{signal}.")
    for stream, path in (("error", paths["error"]), ("output", paths["output"])):
        if path:
            _print_tail(stream, path)


def _print_tail(stream: str, path: str) -> None:
    print(f"{stream.capitalize()}: {printable(path)}")
    try:
        lines = last_lines(path)
    except OSError as error:
        print(f"  ({error.strerror or error} here)")
        return
    for line in lines:
        print(f"  {printable(line)}")


def last_lines(path: str) -> list[str]:
    """Return the last lines of a regular file. Raises OSError, also for other files."""
    with open_regular(path) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
        text = file.read(TAIL_BYTES).decode(errors="replace")
    return text.splitlines()[-TAIL_LINES:]
