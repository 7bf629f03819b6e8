"""Warnings of `doctor` about a cluster's records."""

from __future__ import annotations

from pathlib import Path

import pytest

from metasched.config.reading import load_settings
from metasched.daemon.doctor import check_evidence

SITE = """[daemon]
database = "sqlite:///ms.db"
[[cluster]]
name = "alpha"
adapter = "slurm"
config = "/etc/slurm/slurm.conf"
[[cluster]]
name = "beta"
adapter = "slurm"
config = "/etc/slurm/slurm.conf"
fence_dir = "/scratch/claims"
"""


@pytest.mark.parametrize(
    ("cluster", "adapter", "records", "state", "warned"),
    [
        ("alpha", "slurm", "", "up", True),
        ("alpha", "slurm", "slurmdbd", "up", False),
        ("alpha", "slurm", "", "down: silent", False),
        ("alpha", "local", "", "up", False),
        ("beta", "slurm", "", "up", False),
    ],
)
def test_a_slurm_without_accounting_and_claims_is_reported(
    tmp_path: Path, cluster: str, adapter: str, records: str, state: str, warned: bool
) -> None:
    (tmp_path / "metasched.toml").write_text(SITE)
    settings = load_settings(tmp_path / "metasched.toml")
    row = {"cluster": cluster, "adapter": adapter, "records": records, "state": state}
    diagnoses = list(check_evidence(row, settings))
    assert [d.check for d in diagnoses] == (["records of alpha"] if warned else [])
    assert all("neither accounting nor claims" in d.text for d in diagnoses)


def test_a_file_of_completions_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "metasched.toml").write_text(SITE)
    settings = load_settings(tmp_path / "metasched.toml")
    row = {
        "cluster": "beta",
        "adapter": "slurm",
        "records": "jobcomp/filetxt, by id",
        "state": "up",
    }
    [diagnosis] = check_evidence(row, settings)
    assert "any account can write lines of others" in diagnosis.text
