"""Answers of the installed Slurm in a known state, and how they are parsed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from tests.conftest import require
from tests.harness import slurm_recordings as answers
from tests.harness.slurm import SlurmSite, missing


def test_answers_of_this_release(tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        require("slurm", reason)
    completions = tmp_path / "completions"
    completions.touch()
    settings = ("JobCompType=jobcomp/filetxt", f"JobCompLoc={completions}")
    with SlurmSite(tmp_path / "site", [replace(answers.CLUSTER, settings=settings)]) as site:
        recorded = answers.record(site["alpha"], tmp_path, completions)
    answers.check(recorded, os.geteuid())
    if os.environ.get("METASCHED_RECORD"):
        file = answers.RECORDED / f"{recorded['version'][0].replace(' ', '-')}.json"
        file.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
