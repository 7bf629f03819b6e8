"""Options that managers honour, not metasched: signal, open mode, nice, nodes, no time limit.

The drop-in commands import this module: it keeps to Python 3.9 and imports nothing slow.
"""

from __future__ import annotations

from metasched.errors import ParseError, quote_for_error

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from typing import Any

DEFAULT_NICE = "100"  # of --nice without a value, as in sbatch
_DEFAULT_SECONDS = 60  # of --signal
_MAX_NICE = 2**31 - 6
# fmt: off
_SIGNALS = {  # of Linux; the module `signal` is slow to import
    "HUP": 1, "INT": 2, "QUIT": 3, "ABRT": 6, "KILL": 9, "USR1": 10, "USR2": 12, "ALRM": 14,
    "TERM": 15, "CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23,
}
# fmt: on


def parse_signal(text: str) -> dict[str, Any]:
    """Parse `[B:]SIGNAL[@SECONDS]`, with `R` of Slurm. ParseError for any other text."""
    target, colon, rest = text.strip().upper().rpartition(":")
    name, at, seconds = rest.partition("@")
    number = int(name) if _is_number(name, 2) else _SIGNALS.get(name.removeprefix("SIG"), 0)
    if (
        (colon and not (0 < len(target) <= 2 and set(target) <= set("RB")))
        or (at and not _is_number(seconds, 5))
        or not 1 <= number <= 64
        or int(seconds or 0) > 65535
    ):
        raise ParseError(
            f"{quote_for_error(text)} is no signal before the end", "write USR1@60 or B:USR1@60"
        )
    return {
        "number": number,
        "seconds": int(seconds) if at else _DEFAULT_SECONDS,
        "batch_only": "B" in target,
        "may_overlap": "R" in target,
    }


def parse_open_mode(text: str) -> bool:
    """Return whether `--open-mode` means to append. ParseError if it is neither."""
    if text[:1].lower() not in ("a", "t"):
        raise ParseError(f"{quote_for_error(text)} is no open mode", "write append or truncate")
    return text[:1].lower() == "a"


def parse_nice(text: str) -> int:
    """Parse the value of `--nice`. ParseError for any other text."""
    digits = text.strip().removeprefix("-")
    if not _is_number(digits, 10) or int(digits) > _MAX_NICE:
        raise ParseError(f"{quote_for_error(text)} is no nice value", f"write 0 to {_MAX_NICE}")
    return int(text)


def parse_nodes_by_name(text: str) -> str:
    """Check a list of nodes such as `n[1-3],m1`; return it. ParseError for any other text."""
    from metasched.model.host_lists import count_hosts  # few jobs name nodes

    problem = f"{quote_for_error(text)} is no list of nodes"
    is_plain = text.isascii() and all(letter.isalnum() or letter in "_.-,[]" for letter in text)
    if is_plain and all(text.split(",")):
        try:
            count_hosts(text)
        except ValueError as error:
            problem = str(error)
        else:
            return text
    raise ParseError(problem, "write n1,n2 or n[1-2]")


def _is_number(text: str, digits: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= digits
