"""The clusters' own commands, as the drop-in commands find, choose and read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from metasched.drop_in import job_tools, native_listing
from metasched.drop_in.command import CommandError
from metasched.drop_in.native_clusters import NativeCluster, NativeClusters


def cluster(folder: Path, **values: object) -> NativeCluster:
    """A cluster with the commands of a folder."""
    config = folder / "slurm.conf"
    config.touch()
    row = {
        "cluster": "north",
        "manager_name": "alpha",
        "up": True,
        "accounting": True,
        "config": str(config),
        "bin_dir": str(folder / "bin"),
        "tag_field": "comment",
        "native_jobs": True,
    }
    return NativeCluster({**row, **values})


def command(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_no_name_is_that_of_a_cluster_whose_manager_is_unknown(tmp_path: Path) -> None:
    clusters = NativeClusters({"first_id": 100, "instances": [], "clusters": []})
    clusters.clusters = [cluster(tmp_path, manager_name="")]
    for names in ("", " ", ","):
        with pytest.raises(CommandError, match="No cluster"):
            clusters.choose("squeue", names)
    assert clusters.choose("squeue", "NORTH,") == clusters.clusters


def test_a_folder_is_no_command(tmp_path: Path) -> None:
    (tmp_path / "bin/squeue").mkdir(parents=True)
    assert cluster(tmp_path).program("squeue") is None
    command(tmp_path, "sacct", "true")
    assert cluster(tmp_path).program("sacct") == str(tmp_path / "bin/sacct")


def test_under_sudo_a_configuration_of_others_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path, "squeue", "true")
    for path in (tmp_path / "bin", tmp_path / "bin/squeue"):
        path.chmod(0o755)
    north = cluster(tmp_path)
    (tmp_path / "slurm.conf").chmod(0o644)
    monkeypatch.setenv("SUDO_UID", str(os.geteuid() + 1))
    assert north.required_program("squeue") == str(tmp_path / "bin/squeue")
    (tmp_path / "slurm.conf").chmod(0o664)
    with pytest.raises(CommandError, match=f"others may change {tmp_path}/slurm.conf of cluster"):
        north.required_program("squeue")


def test_an_endless_listing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native_listing, "MAX_OUTPUT", 1 << 20)
    command(tmp_path, "squeue", "exec yes")
    endless = native_listing.Listing("squeue", cluster(tmp_path), lambda _: [], 1)
    other = tmp_path / "other"
    other.mkdir()
    command(other, "squeue", 'printf "17%s" "$1"')
    short = native_listing.Listing("squeue", cluster(other), lambda end: [end], 1)
    answers, code = native_listing.collect("squeue", [endless, short], 60, is_required=False)
    assert (answers, code) == ([(short.cluster, [["17"]])], 0)
    assert len(endless.contents[0]) < 2 << 20
    assert "cluster north: more than 1048576 bytes" in capfd.readouterr().err


@pytest.mark.parametrize("first_id", [18, 1_000_001, 100_000_001])
def test_a_step_goes_to_another_cluster_from_the_first_id_on(
    first_id: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A site whose clusters have low ids has a low first_id, too."""
    command(tmp_path, "srun", "true")
    north, default = cluster(tmp_path), tmp_path / "default"
    default.mkdir()
    command(default, "srun", "true")
    clusters = NativeClusters({"first_id": first_id, "instances": [], "clusters": []})
    clusters.clusters = [north]
    ours = {"job": first_id, "task": None, "number": first_id, "native_id": "5", "cluster": "north"}
    monkeypatch.setenv("PATH", str(default / "bin"))
    monkeypatch.delenv("METASCHED_SLURM_BIN", raising=False)
    monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    monkeypatch.setattr(job_tools, "connect", lambda: None)
    monkeypatch.setattr(job_tools, "read_clusters", lambda _: clusters)
    monkeypatch.setattr(job_tools, "listed_tasks", lambda *_: [ours])

    def run(path: str, words: list[str], _: object) -> None:
        raise SystemExit(" ".join([path, *words[1:]]))

    monkeypatch.setattr(os, "execve", run)

    def step(job: int) -> str:
        options = [("jobid", str(job), [f"--jobid={job}"]), ("ntasks", "1", ["-n1"])]
        with pytest.raises(SystemExit) as started:
            job_tools.exec_step(options, ["a"], str(job))
        return str(started.value)

    assert step(first_id) == f"{tmp_path}/bin/srun --jobid=5 -n1 a"
    assert step(first_id - 1) == f"{default}/bin/srun --jobid={first_id - 1} -n1 a"


def test_many_jobs_of_a_tool_are_looked_up_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = []

    def listed(_: object, query: dict[str, Any]) -> list[dict[str, Any]]:
        requests.append(query["job"])
        array = [(200, 1, 200, "8_1"), (200, 2, 201, "8_2")]
        jobs = [(number, None, number, str(number - 50)) for number in range(300, 10_000)]
        names = ("job", "task", "number", "native_id")
        placed = {"cluster": "north", "state": "running"}
        return [dict(zip(names, row, strict=True), **placed) for row in [*array, *jobs]]

    monkeypatch.setattr(job_tools, "listed_tasks", listed)
    connection: Any = None
    words = ["200", "201.0", "200_1.batch", "150", *map(str, range(300, 10_000))]
    places, missing = job_tools.native_places("sstat", connection, words)
    assert list(places["north"])[:5] == ["8_1", "8_2", "8_2.0", "8_1.batch", "250"]
    assert list(places["north"].values())[:5] == ["200_1", "200_2", "201", "200_1", "300"]
    assert len(places["north"]) == 4 + 9_700
    assert len(requests) == 1
    assert missing == {"150": "Invalid job id specified"}


def test_errors_of_real_commands_name_the_jobs_of_metasched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "echo 'Kill job error on job id 8: 8 CPUs, job step id 9, StepId=8.1, job 8_3' >&2",
        "echo 'job 8 of stdout'; exit 3",
    )
    command(tmp_path, "scancel", "\n".join(lines))
    ids = {"8": "108", "9.2": "109", "8_3": "108_3"}
    assert job_tools.run_for_jobs("scancel", cluster(tmp_path), [], ids) == 3
    assert capfd.readouterr() == (
        "job 8 of stdout\n",
        "Kill job error on job id 108: 8 CPUs, job step id 109, StepId=108.1, job 108_3\n",
    )
