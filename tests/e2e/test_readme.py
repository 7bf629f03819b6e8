"""The commands of the README work as they stand, for an account without any configuration."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def commands() -> list[str]:
    """Return the command lines of the section Use, without comments."""
    section = README.read_text().partition("\n## Use\n")[2].partition("\n## ")[0]
    return [line.partition(" #")[0].strip() for line in re.findall(r"(?m)^    (\S.*)$", section)]


def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    activate, serve, *commands_after = commands()
    assert (activate, serve) == (". .venv/bin/activate", "metasched serve &")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("METASCHED_")} | {
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("XDG_CONFIG_HOME", None)

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    with (tmp_path / "log").open("wb") as log:
        daemon = subprocess.Popen(
            ["metasched", "serve"], cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 60
        while shell("metasched status").returncode == 4:
            assert daemon.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.2)
        done = [shell(line) for line in commands_after]
    finally:
        daemon.terminate()
        daemon.wait(timeout=60)
    for line, result in zip(commands_after, done, strict=True):
        assert result.returncode == 0, (line, result.stdout, result.stderr)
    assert done[-1].stdout.count("hello") == 1
