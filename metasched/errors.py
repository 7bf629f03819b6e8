"""What a user is told when a command cannot do what was asked."""


class UserError(Exception):
    """One line: what, where; what to do. `exit_code` is what the command ends with."""

    exit_code = 2


class Unreadable(ValueError):
    """A word that means nothing here: what is wrong with it, and what to write instead."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"{what}; {mend}")
        self.what, self.mend = what, mend


def shown(text: str) -> str:
    """A user's word in quotes, short and printable enough for one line of an error."""
    quoted = text if len(text) <= 60 else text[:57] + "..."
    return '"' + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in quoted) + '"'


class Wrong(Exception):
    """A request to the daemon that changes nothing: what, where, what to do; `status` 4xx, 5xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
