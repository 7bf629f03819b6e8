"""A mutant: a patch that restores a repaired defect, with a header that names its harness."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from tests.chaos.mutants.harnesses import Harness, harness_named

FOLDER = Path(__file__).parent
CHECKOUT = Path(__file__).parents[3]
FIELDS = ("Defect", "Repaired", "Harness")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
# what a checkout has besides its source
_NOT_SOURCE = shutil.ignore_patterns(
    *(".git", ".venv", ".compiled", ".lowest", ".*_cache", ".hypothesis", ".chaos"),
    *("__pycache__", "*.so", "site"),
)


class MutantError(Exception):
    """A patch has no complete header, or does not apply; the message names it."""


@dataclass(frozen=True)
class Mutant:
    """A repaired defect that a patch restores."""

    name: str  # of the file, without suffix
    defect: str  # what was wrong, in a sentence
    repaired: str  # the commit that repaired it
    harness: Harness
    patch: Path

    def apply(self, tree: Path, check_only: bool = False) -> None:
        """Restore the defect in a copy of the checkout. Raises MutantError."""
        options = ["--check"] if check_only else []
        # the copy may lie below a repository, in which git would skip all files
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
        done = subprocess.run(
            ["git", "apply", *options, self.patch],
            *(),
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            reason = done.stderr.strip().splitlines() or ["no message"]
            raise MutantError(f"{self.patch.name} does not apply: {reason[0]}; make it again")

    def changed_files(self) -> list[str]:
        """Return the paths of the files that the patch changes, relative to the checkout."""
        return re.findall(r"^\+\+\+ b/(\S+)", self.patch.read_text(), re.MULTILINE)


def read_mutant(path: Path) -> Mutant:
    """Read the header of a patch: lines as of mail, up to an empty line. Raises MutantError."""
    header = Parser().parsestr(path.read_text(), headersonly=True)
    values = {name: " ".join(str(header[name] or "").split()) for name in FIELDS}
    if missing := [name for name in FIELDS if not values[name]]:
        raise MutantError(f"{path.name} has no {', '.join(missing)} in its header; add it")
    if not _COMMIT.fullmatch(values["Repaired"]):
        raise MutantError(f"{path.name}: Repaired must be the hash of a commit")
    try:
        harness = harness_named(values["Harness"])
    except ValueError as error:
        raise MutantError(f"{path.name}: Harness: {error}") from None
    return Mutant(path.stem, values["Defect"], values["Repaired"], harness, path)


def all_mutants() -> list[Mutant]:
    """Read all patches of this folder, by name. Raises MutantError."""
    return [read_mutant(path) for path in sorted(FOLDER.glob("*.patch"))]


def copy_checkout(tree: Path) -> None:
    """Copy the source of the checkout, with an environment whose Python imports the copy."""
    shutil.copytree(CHECKOUT, tree, symlinks=True, ignore=_NOT_SOURCE)
    tree.chmod(0o755)
    environment = tree / ".venv"
    venv.create(environment, symlinks=True)
    bin_dir = Path(sys.executable).parent  # of this process' environment
    [packages] = environment.glob("lib/python*/site-packages")
    [installed] = bin_dir.parent.glob("lib/python*/site-packages")
    (packages / "checkout.pth").write_text(f"{tree}\n{installed}\n")
    for name in ("metasched", "metasched-launcher"):
        script = (bin_dir / name).read_text()
        (environment / "bin" / name).write_text(script.replace(str(bin_dir), f"{environment}/bin"))
        (environment / "bin" / name).chmod(0o755)
