"""Kinds of mails about a job, as in `--mail-type` of sbatch. Pure.

The drop-in commands import this module: it keeps to Python 3.9 and imports nothing slow.
"""

from __future__ import annotations

from metasched.errors import ParseError, quote_for_error

BEGIN, END, FAIL, REQUEUE = "BEGIN", "END", "FAIL", "REQUEUE"
TIME_LIMIT, ARRAY_TASKS = "TIME_LIMIT", "ARRAY_TASKS"
SHARES_OF_LIMIT = {f"TIME_LIMIT_{percent}": percent for percent in (50, 80, 90)}
MAIL_TYPES = (BEGIN, END, FAIL, REQUEUE, TIME_LIMIT, *SHARES_OF_LIMIT, ARRAY_TASKS)
_ALL = (BEGIN, END, FAIL, REQUEUE)  # of ALL
# Slurm has these, too; no mail of metasched is about them
UNSENT_TYPES = ("INVALID_DEPEND", "STAGE_OUT")


def parse_mail_types(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of mails that a list names, and those that are never sent.

    Case does not count; NONE turns off all before it. ParseError for any other name.
    """
    sent: set[str] = set()
    unsent: set[str] = set()
    for name in text.upper().split(","):
        if name == "NONE":
            return (), ()
        if name == "ALL":
            sent.update(_ALL)
        elif name in MAIL_TYPES:
            sent.add(name)
        elif name in UNSENT_TYPES:
            unsent.add(name)
        else:
            raise ParseError(
                f"{quote_for_error(name)} is no kind of mail", "write BEGIN, END, FAIL or ALL"
            )
    return tuple(t for t in MAIL_TYPES if t in sent), tuple(sorted(unsent))


def unsent_warning(unsent: tuple[str, ...]) -> str:
    """Return the warning about kinds of mails that are never sent."""
    return f"--mail-type: no mail is sent for {', '.join(unsent)}"
