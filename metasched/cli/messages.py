"""Errors and warnings, a line each on stderr."""

import sys


def fail(message: str, code: int) -> int:
    """Print an error and return the exit code."""
    _report("error", message)
    return code


def warn(message: str) -> None:
    _report("warning", message)


def _report(severity: str, message: str) -> None:
    print(f"metasched: {severity}:", " ".join(message.split()), file=sys.stderr)
