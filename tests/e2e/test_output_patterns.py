"""Patterns of output paths: names of files of metasched's jobs beside those of a real sbatch."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import metasched
from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness.slurm import ALPHA, SlurmCluster, SlurmSite, missing

SBATCH = Path(metasched.__file__).parent / "drop_in/slurm/sbatch"
DOCUMENT = Path(__file__).parents[2] / "docs/slurm-words.md"
FIRST_ID = 100_000_001


@pytest.fixture(scope="module")
def alpha(common_folder: Path) -> Iterator[SlurmCluster]:
    if reason := missing():
        require("slurm", reason)
    with SlurmSite(common_folder / "pattern-slurm", [ALPHA]) as booted:
        yield booted["alpha"]


def read_table() -> dict[str, tuple[str, str]]:
    """Return the texts of each pattern in the document: of a job, and of a task of an array."""
    section = DOCUMENT.read_text().partition("## Patterns of output files")[2]
    rows = re.findall(r"^\| `(%\S+)` \| `(\S+)` \| `(\S+)` \|", section, re.MULTILINE)
    return {pattern: (single, task) for pattern, single, task in rows}


TABLE = read_table()


class Submitter:
    """A sbatch, and the folder of the files that its jobs write."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self.command, self.environment, self.folder = command, environment, folder
        folder.mkdir()

    def run(self, *options: str) -> tuple[int, list[dict[str, str]]]:
        """Submit and wait. Return the job's id, and the text of each pattern for each file."""
        arguments = ["-W", "-J", "sim", "-o", f"{self.folder}/{'@'.join(TABLE)}", *options]
        done = subprocess.run(
            [*self.command, *arguments, "--wrap", "true"],
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert done.stderr == ""
        texts = [path.name.split("@") for path in self.folder.iterdir()]
        for path in self.folder.iterdir():
            path.unlink()
        rows = [dict(zip(TABLE, line, strict=True)) for line in texts]
        return int(done.stdout.split()[3]), sorted(rows, key=lambda texts: texts["%a"])


def test_files_have_the_names_of_the_document(
    site: Site, alpha: SlurmCluster, tmp_path: Path
) -> None:
    assert {pattern.lstrip("%0123456789") for pattern in TABLE} == {*"AajJNnstux", ""}
    site.configure(
        alpha.table("poll_interval = 0.5\n") + ONE_LOCAL, extra=f"first_id = {FIRST_ID}\n"
    )
    site.start()
    node = os.uname().nodename.partition(".")[0]

    def expect(job: int, number: int, position: int) -> dict[str, str]:
        replacements = {"17": str(job), "18": str(number), "ada": getpass.getuser(), "n1": node}
        replacements |= {f"{n:010}": f"{int(replacements[str(n)]):010}" for n in (17, 18)}
        return {
            pattern: replacements.get(texts[position], texts[position])
            for pattern, texts in TABLE.items()
        }

    real = Submitter(["sbatch"], alpha.environment, tmp_path / "real")
    job, [single] = real.run()
    assert single == expect(job, job, 0)
    array, tasks = real.run("-a", "4-5")
    numbers = [int(task["%j"]) for task in tasks]
    # Slurm keeps the array's own id for the task that starts last
    assert sorted(numbers) == [array, array + 1]
    assert tasks[1] == expect(array, numbers[1], 1)

    for cluster in ("alpha", "here"):
        own = Submitter([str(SBATCH), "-M", cluster], site.environment, tmp_path / cluster)
        job, [single] = own.run()
        # Slurm writes 4294967294 for the task of a job without an array
        assert single == expect(job, job, 0) | {"%a": "0", "%3a": "000"}
        array, tasks = own.run("-a", "4-5")
        assert tasks[1] == expect(array, array + 1, 1)
        assert [task["%j"] for task in tasks] == [str(array), str(array + 1)]
        path = Path(site.json("output", f"{array}_5")["output"])
        named = tasks[1] | {"%N": "a1" if cluster == "alpha" else node}  # all slurmd are on a host
        assert path == own.folder / "@".join(named.values())
    assert site.stop() == 0
    site.replayed()
