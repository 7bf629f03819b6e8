"""Errors and warnings: one line each on stderr."""

import sys


def fail(message: str, code: int) -> int:
    """Tell an error; returns the exit code."""
    _tell("error", message)
    return code


def warn(message: str) -> None:
    _tell("warning", message)


def _tell(kind: str, message: str) -> None:
    print(f"metasched: {kind}:", " ".join(message.split()), file=sys.stderr)
