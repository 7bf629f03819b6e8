"""Whether a job can write its output, as far as the host of the submission can see."""

from __future__ import annotations

import os


def output_problem(pattern: str) -> str:
    """Return why no job of the caller can write to an absolute path; "": none is known.

    A directory with fields such as %a, and one of a file system that this host does not mount, are
    not judged.
    """
    folder, name = os.path.split(pattern)
    if "%" in folder:
        return ""
    if os.path.isdir(folder):
        if "%" not in name and os.path.exists(pattern):
            return "" if os.access(pattern, os.W_OK) else "no permission to write"
        return "" if os.access(folder, os.W_OK | os.X_OK) else "no permission to create"
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return "" if folder == "/" else "no directory of"
