"""How wrappers in plain sh run the user's script: by what the kernel would. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote


def interpreter_command(script: str) -> list[str]:
    """The command that the kernel would run the script by: at most one argument."""
    first_line = script.partition("\n")[0]
    if not first_line.startswith("#!") or not first_line[2:].strip():
        return ["/bin/sh"]
    return first_line[2:].strip().split(None, 1)


def exec_lines(script: str, environment: Sequence[str] = ()) -> list[str]:
    """Lines of sh that end in the script's interpreter, with the shell's own arguments.

    `environment` are words for env, already quoted. The script is read from an open file without
    a name: nothing is left to clean up, and signals reach the interpreter itself.
    """
    command = [
        *(["/usr/bin/env", *environment] if environment else []),
        *map(quote, interpreter_command(script)),
    ]
    return [
        '_ms_script=$(/usr/bin/mktemp "${TMPDIR:-/tmp}/metasched.XXXXXX") || exit 1',
        'exec 8>"$_ms_script" 9<"$_ms_script" || exit 1',
        '/bin/rm -f "$_ms_script"',  # at once: who is killed has no time for it
        f"printf %s {quote(script)} >&8 || exit 1",
        f'exec {" ".join(command)} /proc/self/fd/9 "$@" 8>&-',
    ]
