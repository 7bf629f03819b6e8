"""The commands of docs/admin/install.md, as they stand there, in a container with real managers.

`tests/systemd` makes the container: two Slurm clusters and a Grid Engine cell of Debian's packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.harness.container import Container, missing

TESTS = Path(__file__).parents[1]
PAGE = TESTS.with_name("docs") / "admin/install.md"
MANAGERS = TESTS / "harness/debian_managers"
USER = "ada"
CLUSTERS = ("alpha", "beta", "grid")
NAME = "metasched-VERSION-..."  # stands for the archive's folder


def blocks(title: str) -> list[list[str]]:
    """Return the commands of each block of code in a section: whole ones, without comments."""
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", section, re.MULTILINE)
    joined = (block.replace("\\\n", " ") for block in found)
    return [
        [" ".join(line.partition(" # ")[0].split()) for line in block.splitlines() if line.strip()]
        for block in joined
    ]


@pytest.fixture
def container() -> Iterator[Container]:
    """A host with managers, an ordinary account, and the archive in root's home."""
    source = os.environ.get("METASCHED_MANAGERS", "")
    if (reason := missing(source)) is not None:
        require("systemd", reason)
    archive = Path(os.environ["METASCHED_DIST"])
    with tempfile.TemporaryDirectory(prefix="metasched-container-") as folder:
        made = Container(Path(source), Path(folder, "root"))
        try:
            (made.folder / "etc/hosts").write_text("127.0.0.1 localhost\n10.99.0.1 site\n")
            for path in (archive, MANAGERS):
                subprocess.run(["cp", path, made.folder / "root"], check=True)
            made.boot()
            made.run(f"/root/{MANAGERS.name}")
            made.run("useradd", "--create-home", USER)
            made.run("groupadd", "hpc-operators")
            yield made
        finally:
            made.remove()


class Terminal:
    """Runs lines one after another, each in the folder in which the one before ended."""

    def __init__(self, container: Container, account: str = "") -> None:
        self._container, self._account = container, account
        self._folder = f"/home/{account}" if account else "/root"
        self.seconds: dict[str, float] = {}  # of each line

    def run(self, line: str) -> str:
        """Run a line; return its output. AssertionError if it fails."""
        begun = time.monotonic()
        script = f"set -e\ncd '{self._folder}'\n{line}\necho; pwd"
        output = self._container.run("sh", "-c", script, account=self._account)
        self.seconds[line] = time.monotonic() - begun
        printed, _, self._folder = output.rstrip("\n").rpartition("\n")
        return printed.rstrip("\n")


def test_the_page_has_the_commands_of_a_site() -> None:
    """Whatever else it says, these are run by the test below."""
    dist, root, user = blocks("A site in ten minutes")
    assert dist == ["make dist"]  # tests/systemd runs it
    assert root[0] == f"tar -xf {NAME}.tar.gz && cd {NAME}"
    assert all(line.startswith("metasched submit --wait ") for line in user)


@pytest.mark.root
@pytest.mark.slow("installs Slurm and Grid Engine in a container")
@pytest.mark.timeout(1800)
def test_a_site_in_ten_minutes_by_its_page(
    container: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    _, of_root, of_user = blocks("A site in ten minutes")
    folder = Path(os.environ["METASCHED_DIST"]).name.removesuffix(".tar.gz")
    root, user = Terminal(container), Terminal(container, USER)
    *before, doctor = of_root
    for line in before:
        root.run(line.replace(NAME, folder))
    # what the page says of Debian's cell; its remedy is a command
    findings = json.loads(root.run(f"{doctor} --json || true"))
    [error] = [finding for finding in findings if finding["severity"] == "error"]
    assert error["check"] == "manager of grid"
    root.run(error["mend"])
    root.run(doctor)
    on_any, on_alpha = of_user
    user.run(on_any)
    for cluster in CLUSTERS:
        user.run(on_alpha.replace("alpha", cluster))
    seconds = root.seconds | user.seconds
    rows = json.loads(container.run("metasched", "status", "--all", "--json", account=USER))
    assert len(rows) == 4
    assert {row["state"] for row in rows} == {"completed"}
    assert {row["cluster"] for row in rows} == set(CLUSTERS)
    for row in rows:
        assert user.run(f"metasched output {row['job']}") == "site"
    with capsys.disabled():
        print(f"\n{PAGE.name}: {sum(seconds.values()):.0f} s in all")
        for line, taken in seconds.items():
            print(f"{taken:6.1f} s  {line}")

    # the same clusters named by options, and a group of operators
    [named, *_], *_ = blocks("Two Slurm clusters and a Grid Engine cell")
    assert named.startswith("metasched init site --yes --slurm ")
    changed = root.run(named.replace("/opt/sge:", "/var/lib/gridengine:"))
    assert "/etc/metasched/metasched.toml" in changed
    for line in re.findall(r"After a change: `(.*?)`, then\s+`(.*?)`", PAGE.read_text())[0]:
        root.run(line)
    assert "hpc-operators" in (container.folder / "etc/metasched/metasched.toml").read_text()
    user.run(on_alpha)
