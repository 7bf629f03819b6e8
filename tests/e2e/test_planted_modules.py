"""Commands that start Python themselves import nothing from the folder in which they are called."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMAND, ONE_LOCAL, Site

ROOT = Path(__file__).parents[2]
STARTS_PYTHON = re.compile(r'(?:sys\.executable|\[python)\S*,\s*"(-\w)"')


def plant(folder: Path, mark: Path) -> None:
    """Write modules that leave a mark when they are imported."""
    trap = f"open({str(mark)!r}, 'a').write(__file__ + '\\n')\n"
    for package in ("metasched", "metasched/adapters", "metasched/licence_servers"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(trap)
    for module in ("metasched/__main__.py", "json.py", "msgspec.py"):
        (folder / module).write_text(trap)


@pytest.mark.parametrize(
    "words", [("doctor",), ("init", "site", "--dry-run", "--local", "here=4"), ("licence", "probe")]
)
def test_nothing_of_the_callers_folder_runs(site: Site, words: tuple[str, ...]) -> None:
    site.configure(
        ONE_LOCAL,
        '[[licence_server]]\nname = "main"\nkind = "command"\ncommand = ["/bin/false"]\n'
        '[[licence]]\nname = "matlab"\nserver = "main"\n',
    )
    folder, mark = site.folder / "planted", site.folder / "mark"
    folder.mkdir()
    plant(folder, mark)
    daemon = subprocess.Popen(
        [COMMAND, "serve"], cwd=folder, env=site.environment, stderr=subprocess.DEVNULL
    )
    try:
        site.until(lambda: site.rows() == [] and site.cluster_rows()[0]["state"] == "up")
        subprocess.run(
            [COMMAND, *words], cwd=folder, env=site.environment, capture_output=True, check=False
        )
    finally:
        daemon.terminate()
        daemon.wait(30)
    assert not mark.exists(), mark.read_text()


def test_every_interpreter_is_started_apart_from_its_folder() -> None:
    number = 0
    for folder in ("metasched", "adapters"):
        for path in (ROOT / folder).rglob("*.py"):
            for option in STARTS_PYTHON.findall(path.read_text()):
                assert option in ("-P", "-I"), path
                number += 1
    assert number >= 6
