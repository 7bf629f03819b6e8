"""The commands of pages of the documents print what the pages show."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.conftest import COMMAND, Site

DOCS = Path(__file__).parents[2] / "docs"
SEPARATOR = "--- next ---"


def steps(page: Path) -> list[tuple[str, str]]:
    """Return each command with its continuation lines, and what the page shows below it."""
    blocks: list[tuple[str, str]] = []
    for block in re.findall(r"(?ms)^```console\n(.*?)^```$", page.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                blocks.append((line[2:] + "\n", ""))
            elif line[:1] == ">":
                blocks[-1] = (blocks[-1][0] + line[2:] + "\n", "")
            else:
                blocks[-1] = (blocks[-1][0], blocks[-1][1] + line + "\n")
    return blocks


def pattern(shown: str) -> str:
    """Return the regular expression of an output in which `...` stands for any text."""
    return r".*".join(map(re.escape, shown.split("...")))


def check_page(site: Site, name: str, **variables: str) -> None:
    """Run the commands of a page in one shell, with these variables."""
    page = steps(DOCS / name)
    script = "".join(f"{command}printf '%s\\n' '{SEPARATOR}'\n" for command, _ in page)
    environment = site.environment | {"PATH": f"{COMMAND.parent}:{site.environment['PATH']}"}
    del environment["METASCHED_CONFIG"]
    done = subprocess.run(
        ["/bin/bash", "-c", f"trap 'kill $daemon 2>/dev/null' EXIT\nexec 2>&1\n{script}"],
        env=environment | variables,
        cwd=site.folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    outputs = done.stdout.split(f"{SEPARATOR}\n")
    assert len(outputs) == len(page) + 1, done.stdout
    for (command, shown), output in zip(page, outputs, strict=False):
        lines = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
        assert re.fullmatch(pattern(shown), lines, re.DOTALL), f"{command}{shown}=====\n{lines}"


@pytest.mark.slow("runs every command of a page")
def test_the_tutorial(site: Site) -> None:
    assert len(steps(DOCS / "tutorial.md")) > 20
    check_page(site, "tutorial.md")


def test_the_http_api(running: Site) -> None:
    if shutil.which("curl") is None:
        require("curl", "curl not found; apt-get install curl")
    assert len(steps(DOCS / "http-api.md")) > 5
    check_page(running, "http-api.md", socket=str(running.folder / "ms.sock"))
