"""The previous release, unpacked from the git history, to be run beside the present one.

`python tests/harness/previous_release.py FOLDER` unpacks it. tests/run does so, since the copy of
the checkout in which it runs the tests has no history. A process runs the previous release if its
PYTHONPATH begins with that folder: the modules and entry points there hide those of the installed
release.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The last commit before modules, classes and messages were renamed. At each release this becomes
# the commit of the release before it.
COMMIT = "8a6966f"

_CHECKOUT = Path(__file__).parents[2]
# Tests may run as another account than the owner of the checkout, which git refuses otherwise.
_GIT = ("git", "-c", "safe.directory=*", "-C", str(_CHECKOUT))


class PreviousReleaseError(Exception):
    """The previous release cannot be unpacked; the message gives the reason."""


class PreviousRelease:
    """The previous release in `folder`, run by the present interpreter and its dependencies."""

    command = (sys.executable, "-m", "metasched")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` changed so that Python imports the previous release, and measures no coverage.

        The working directory must not be a checkout: `python -m` imports from there first.
        """
        variables = {k: v for k, v in base.items() if not k.startswith("COVERAGE_")}
        return variables | {"PYTHONPATH": str(self.folder)}


def unpack(folder: Path) -> PreviousRelease:
    """Unpack the previous release into `folder`, with the metadata of an installation."""
    try:
        archive = subprocess.run(
            [*_GIT, "archive", "--format=tar", COMMIT], capture_output=True, check=False
        )
    except FileNotFoundError:
        raise PreviousReleaseError("git not found; apt-get install git") from None
    if archive.returncode != 0:
        lines = archive.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise PreviousReleaseError(
            f"git has no commit {COMMIT} of {_CHECKOUT} ({lines[0]}); "
            "clone the repository with its whole history"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder)
    _write_metadata(folder)
    return PreviousRelease(folder)


def _write_metadata(folder: Path) -> None:
    """Write what `importlib.metadata` reads: name, version and entry points."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name']}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups: dict[str, dict[str, str]] = project["entry-points"]
    lines = []
    for group, entry_points in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {target}" for name, target in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def unpacked(folder: Path) -> PreviousRelease:
    """Return the previous release as unpacked by tests/run; else unpack it into `folder`."""
    if existing := os.environ.get("METASCHED_PREVIOUS"):
        return PreviousRelease(Path(existing))
    return unpack(folder)


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]))
    except PreviousReleaseError as error:
        sys.exit(f"metasched: error: {error}")
