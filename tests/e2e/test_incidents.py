"""Each command of the pages on incidents, growing and site policy can be run as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMAND, ONE_LOCAL, Site

TESTS = Path(__file__).parents[1]
PAGES = ("incidents", "growing", "site-policy")
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
PROGRAMS = {"metasched", "journalctl", "qdel", "scancel", "scontrol", "squeue", "systemctl"}
# programs of this host that the pages have as words
WORDS = {"r", "t", "w", "true", "false", "free"}
# a bare name of a command stands in the text for a use that the page has, too
BARE = {"metasched story", "metasched db prune", "scancel", "squeue"}
# commands that need more than this site: where they are run, and what is written there
ELSEWHERE = {
    "metasched doctor --probe": ("e2e/test_probe_jobs.py", '"doctor", "--probe"'),
    "metasched db move": ("e2e/test_moved_database.py", '"db", "move", new'),
    "journalctl -u metasched": ("e2e/test_systemd.py", '"journalctl", "-u", "metasched"'),
    "scontrol update NodeName=NODE State=RESUME": (
        "e2e/test_slurm.py",
        '"scontrol", "update", "NodeName=a2", "State=RESUME"',
    ),
    "scancel": ("e2e/test_lost_controller.py", '"scancel"'),
    "squeue": ("e2e/test_lost_controller.py", '"squeue"'),
    "qdel -f": ("real/test_gridengine.py", '"qdel", "-f"'),
}


def commands() -> list[str]:
    """Return all code of the pages that is a command: of metasched, or a program of this host."""
    distinct = dict[str, None]()
    for name in PAGES:
        text = TESTS.with_name("docs").joinpath("admin", f"{name}.md").read_text()
        assert "\n    " not in text.replace("\n    --", "")  # all code is in the text
        for code in re.findall(r"`([^`]+)`", text):
            first = code.split()[0]
            if first in PROGRAMS or (first not in WORDS and shutil.which(first)):
                distinct[" ".join(code.split())] = None
    return list(distinct)


def test_a_command_that_is_run_elsewhere_is_run_there() -> None:
    assert ELSEWHERE.keys() <= set(commands())
    for command, (file, text) in ELSEWHERE.items():
        assert text in (TESTS / file).read_text(), command


@pytest.mark.slow("runs 21 commands of three pages")
def test_the_commands_of_the_pages_run(site: Site) -> None:
    """A licence server is down, a job failed, another is held: nothing is said to be misused."""
    site.configure(ONE_LOCAL, LICENCE)
    site.start()
    job = site.submit("--wrap", "exit 3")
    site.until_ended(job)
    site.submit("--licence", "matlab", "--wrap", "true")
    lines = [command for command in commands() if command not in BARE | ELSEWHERE.keys()]
    assert len(lines) > 17
    for line in lines:
        program, *arguments = shlex.split(line.replace("JOB", str(job)))
        assert program == "metasched", f"{line}: name a test that runs it"
        done = subprocess.run(
            [COMMAND, *(SITE.get(argument, argument) for argument in arguments)],
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
