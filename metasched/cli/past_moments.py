"""Options that name a moment in the past, such as `--since 2h`."""

from __future__ import annotations

from metasched.errors import ParseError, UserError
from metasched.model.units import parse_moment


def parse_past_moment(text: str | None, now: float, option: str) -> float | None:
    """Return the moment that an option names, in epoch seconds; None: it was left out.

    UserError, which names the option, if the text is no moment.
    """
    if text is None:
        return None
    try:
        return parse_moment(text, now, past=True)
    except ParseError as error:
        raise UserError(f"{error.problem}, {option}; {error.fix}") from None
