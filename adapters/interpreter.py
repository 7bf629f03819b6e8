"""Shell code that runs a user's script with the interpreter that the kernel would choose. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote


def interpreter_command(script: str) -> list[str]:
    """Return the script's interpreter and at most one argument, as the kernel parses `#!`."""
    first_line = script.partition("\n")[0]
    if not first_line.startswith("#!") or not first_line[2:].strip():
        return ["/bin/sh"]
    return first_line[2:].strip().split(None, 1)


def exec_lines(script: str, environment: Sequence[str] = ()) -> list[str]:
    """Return lines of sh that exec the script's interpreter with the shell's own arguments.

    `environment` are arguments of env, already quoted. The interpreter reads the script from an
    unlinked open file: no file remains to clean up, and signals reach the interpreter itself. On a
    node whose disk is full the file is in memory: that is not the job's failure.
    """
    command = [
        *(["/usr/bin/env", *environment] if environment else []),
        *map(quote, interpreter_command(script)),
    ]
    return [
        'for _ms_script in "${TMPDIR:-/tmp}" /dev/shm ""; do',
        '  [ -n "$_ms_script" ] || exit 1',
        '  _ms_script=$(/usr/bin/mktemp "$_ms_script/metasched.XXXXXX") || continue',
        '  exec 8>"$_ms_script" 9<"$_ms_script" || exit 1',
        '  /bin/rm -f "$_ms_script"',  # now: a job that is killed cannot remove it later
        f"  printf %s {quote(script)} >&8 && break",
        "done",
        f'exec {" ".join(command)} /proc/self/fd/9 "$@" 8>&-',
    ]
