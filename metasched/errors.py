"""What a user is told when a command cannot do what was asked."""


class UserError(Exception):
    """One line: what, where; what to do. `exit_code` is what the command ends with."""

    exit_code = 2
