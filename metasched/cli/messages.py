"""Errors and warnings: one line each on stderr."""

import sys


def fail(message: str, code: int) -> int:
    """Tell an error; returns the exit code."""
    _tell("error", message)
    return code


def warn(message: str) -> None:
    _tell("warning", message)


def _tell(kind: str, message: str) -> None:
    line = " ".join(message.split())
    # What a terminal cannot show (a path that is not UTF-8) must not become an error of its own.
    readable = line.encode("utf-8", "backslashreplace").decode()
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    print(
        f"metasched: {kind}:",
        readable.encode(encoding, "backslashreplace").decode(encoding),
        file=sys.stderr,
    )
