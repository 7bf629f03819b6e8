"""Each command of the page on incidents is one that an operator can run as it stands."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.e2e.conftest import COMMAND, ONE_LOCAL, Site
from tests.unit.test_documents import commands

PAGE = Path(__file__).parents[2] / "docs/admin/incidents.md"
# what stands for the site's own: the cluster alpha is `here`
SITE = {"alpha": "here"}
LICENCE = """
[[licence_server]]
name = "main"
kind = "command"
command = ["/bin/false"]
[[licence]]
name = "matlab"
server = "main"
"""
# a bare name of a command stands in the text for any of its uses
NAMES = {"db prune", "story", "doctor"}
PROBE = "doctor --probe"  # has tests of its own: it needs site mode


def lines() -> list[str]:
    found = dict.fromkeys(line.strip() for line in commands(PAGE.read_text()))
    return [line for line in found if line not in NAMES and line != PROBE]


def test_the_commands_of_the_page_run(site: Site) -> None:
    """A licence server is down, a job failed, another is held: nothing is said to be misused."""
    site.configure(ONE_LOCAL, LICENCE)
    site.start()
    job = site.submit("--wrap", "exit 3")
    site.until_ended(job)
    site.submit("--licence", "matlab", "--wrap", "true")
    assert len(lines()) > 12
    for line in lines():
        words = shlex.split(line.replace("JOB", str(job)).replace("-N", "3").replace(" N", " 3"))
        done = subprocess.run(
            [COMMAND, *(SITE.get(word, word) for word in words)],
            env=site.environment,
            cwd=site.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        # 0, or refused in the present state; 2 is a mistake in the command itself
        assert done.returncode in (0, 1, 3, 5), (line, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
