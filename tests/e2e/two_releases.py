"""A site that changes between this and the next release, and jobs that outlive it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from metasched.db.schema import REVISION
from tests.e2e.conftest import Site
from tests.harness.next_release import NEXT_REVISION, NextRelease

LICENCE = '[[licence]]\nname = "solver"\ntotal = 2\n'
LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 8\npoll_interval = 0.2\n'


class UpgradedSite(Site):
    """A site whose daemon and commands are those of the next release from `upgrade` on."""

    def __init__(self, folder: Path, next_release: NextRelease) -> None:
        super().__init__(folder)
        self.next_release, self.upgraded = next_release, False

    def launch(self) -> None:
        if not self.upgraded:
            super().launch()
            return
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                [*self.next_release.command, "serve"],
                env=self.next_release.environment(self.environment),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(
        self, *arguments: str | Path, code: int = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        if not self.upgraded:
            return self.run_former(*arguments, code=code, env=env)
        done = subprocess.run(
            [*self.next_release.command, *arguments],
            env=self.next_release.environment(self.environment | (env or {})),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, f"{arguments}: {done}"
        return done

    def run_former(
        self, *arguments: str | Path, code: int = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of this release."""
        return super().run(*arguments, code=code, env=env)

    def upgrade(self) -> None:
        """Start the next release; the daemon of this release must have ended."""
        self.upgraded = True
        self.start()

    def roll_back(self) -> None:
        """Start this release again; the daemon of the next release must have ended."""
        refusal = self.run_former("serve", code=1).stderr
        assert f"or run its `metasched db downgrade --to {REVISION}`" in refusal
        answer = json.loads(self.run("db", "downgrade", "--to", REVISION, "--yes", "--json").stdout)
        assert (answer["from"], answer["to"]) == (NEXT_REVISION, REVISION)
        assert {"table": "remark", "column": None, "rows": 0} in answer["dropped"]
        self.upgraded = False
        self.start()


class Jobs:
    """Jobs that append their names to the file `started` and end when a file appears."""

    def __init__(self, site: UpgradedSite) -> None:
        self.site = site
        self.started, self.ended = site.folder / "started", site.folder / "ended"
        self.exit_codes: dict[tuple[int, int | None], int] = {}  # expected, by job and task
        self.names: list[str] = []

    def submit(
        self,
        name: str,
        code: int,
        *options: str,
        until: str = "",
        tasks: tuple[int, ...] = (),
    ) -> int:
        """Submit a job that exits with `code`, once the file `until` exists.

        Tasks of an array exit with `code` plus their index.
        """
        wait = f"while [ ! -e '{self.site.folder / until}' ]; do sleep 0.2; done; " if until else ""
        task = "$SLURM_ARRAY_TASK_ID" if tasks else ""
        payload = f"echo {name}{task} >> '{self.started}'; echo hello; {wait}"
        payload += f"echo {name}{task} >> '{self.ended}'; "
        payload += f"exit $(({code} + {task}))" if tasks else f"exit {code}"
        output = str(self.site.folder / (f"{name}-%a.out" if tasks else f"{name}.out"))
        job = self.site.submit("-t", "10", "-o", output, *options, "--wrap", payload)
        for index in tasks or (None,):
            self.exit_codes[job, index] = code + (index or 0)
            self.names.append(f"{name}{'' if index is None else index}")
        return job

    def states(self, job: int) -> Counter[tuple[str, str]]:
        """Count the tasks of a job by state and reason."""
        return Counter((row["state"], row["reason"]) for row in self.site.rows(job))

    def story(self, job: int) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.site.json("story", str(job))
        return events


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []
