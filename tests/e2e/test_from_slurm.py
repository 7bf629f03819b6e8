"""The first job of the page for users of Slurm works as it stands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.e2e.conftest import COMMAND, ONE_LOCAL, Site

PAGE = Path(__file__).parents[2] / "docs/from-slurm.md"


def test_the_first_job_of_the_page(site: Site) -> None:
    site.configure(ONE_LOCAL, extra="first_id = 100000001\n")
    site.start()
    section = PAGE.read_text().partition("\n## Your first job\n")[2].partition("\n## ")[0]
    lines = "\n".join(re.findall(r"(?m)^    (\S.*)$", section))
    assert lines.startswith("folder=")
    path = f"{COMMAND.parent}:{site.environment['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-ec", lines],
        env=site.environment | {"PATH": path},
        cwd=site.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout.splitlines()
    assert printed[-1] == "this is 100000001"
    assert printed[-2].split() == ["100000001", "COMPLETED", "0:0"]
