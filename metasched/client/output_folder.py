"""Whether a job can write its output, as far as the host of the submission can see."""

from __future__ import annotations

import os


def output_problem(directory: str, pattern: str) -> str:
    """Return why no job of the caller can write to `pattern`; "": none is known.

    Only outputs within the job's working directory are judged. Elsewhere this host may have an
    empty mount point, a local folder, or a read-only mount where the nodes have a file system.
    """
    path = os.path.join(directory, pattern)
    folder, name = os.path.split(path)
    home, resolved = os.path.realpath(directory), os.path.realpath(folder)
    if "%" in folder or os.path.commonpath((home, resolved)) != home:
        return ""
    if os.path.isdir(folder):
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return ""
        if "%" not in name and os.path.exists(path):
            return "" if os.access(path, os.W_OK) else "no permission to write"
        return "" if os.access(folder, os.W_OK | os.X_OK) else "no permission to create"
    return "no directory of"
