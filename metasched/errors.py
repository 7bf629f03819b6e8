"""What a user is told when a command cannot do what was asked."""


class UserError(Exception):
    """One line: what, where; what to do. `exit_code` is what the command ends with."""

    exit_code = 2


class ParseError(ValueError):
    """A word that means nothing here: what is wrong with it, and what to write instead."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
        self.problem, self.fix = problem, fix


def quote_for_error(text: str) -> str:
    """A user's word in quotes, short and printable enough for one line of an error."""
    shortened = text if len(text) <= 60 else text[:57] + "..."
    return (
        '"'
        + "".join(
            character if character.isprintable() else ascii(character)[1:-1]
            for character in shortened
        )
        + '"'
    )


class ApiError(Exception):
    """A request to the daemon that changes nothing: what, where, what to do; `status` 4xx, 5xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
