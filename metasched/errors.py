"""Errors that are shown to users."""


class UserError(Exception):
    """An error of a single line: problem, place; remedy. The command exits with `exit_code`."""

    exit_code = 2


class ParseError(ValueError):
    """A text that cannot be parsed: `problem` describes it, `fix` says what to write instead."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
        self.problem, self.fix = problem, fix


def quote_for_error(text: str) -> str:
    """Quote a user's text for an error message: shortened, and with escapes if unprintable."""
    shortened = text if len(text) <= 60 else text[:57] + "..."
    escaped = (c if c.isprintable() else ascii(c)[1:-1] for c in shortened)
    return '"' + "".join(escaped) + '"'


class ApiError(Exception):
    """A request failed and changed nothing. The message gives problem, place and remedy.

    `status` is the HTTP status, 4xx or 5xx.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
