"""A real Slurm cluster whose listing contains garbage, beside an intact cluster."""

from __future__ import annotations

import shutil

from tests.e2e.conftest import Site
from tests.harness.slurm import SEARCH_PATH, SlurmSite

COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "sacct", "sdiag")
# Adds lines that are no records to the real listing, unless it is empty. If the file `broken`
# exists, it also damages the delimiters of metasched's records.
SQUEUE = """#!/bin/sh
squeue={squeue} broken={broken}
answer=$("$squeue" "$@") || exit
[ -e "$broken" ] && answer=$(printf '%s\\n' "$answer" | sed '/|ms-/ s/|[0-9a-f]*|/ /')
[ -n "$answer" ] || exit 0
echo 'squeue: warning: | your account expires || soon |'
printf '%s\\n' "$answer"
echo 'squeue: error: [[['
"""


def test_a_lying_manager_harms_neither_its_own_tasks_nor_others(
    site: Site, slurm_site: SlurmSite
) -> None:
    bin_dir, broken = site.folder / "bin", site.folder / "broken"
    bin_dir.mkdir()
    for command in COMMANDS:
        if path := shutil.which(command, path=SEARCH_PATH):
            (bin_dir / command).symlink_to(path)
    squeue = shutil.which("squeue", path=SEARCH_PATH)
    (bin_dir / "squeue").write_text(SQUEUE.format(squeue=squeue, broken=broken))
    (bin_dir / "squeue").chmod(0o755)
    site.configure(
        "".join(
            slurm_site[name].table(
                f'access = "commands"\n{commands}poll_interval = 0.5\nsettle = 1\n'
            )
            for name, commands in (("alpha", f'bin_dir = "{bin_dir}"\n'), ("beta", ""))
        )
    )
    site.start()

    run_log, go_on = site.folder / "ran", site.folder / "go-on"
    script = f'echo ran >> "{run_log}"; until [ -e "{go_on}" ]; do sleep 0.2; done; exit 3'
    job = site.submit("--wrap", script, "-t", "5", "--cluster", "alpha")
    site.until(lambda: site.row(job)["state"] == "running")
    broken.touch()
    site.until(lambda: site.row(job)["state"] == "unknown")
    # the job is neither dispatched again nor lost, and other jobs continue
    honest = site.submit("--wrap", "exit 4", "-t", "1", "--cluster", "beta")
    assert site.until_ended(honest)[0]["exit_code"] == 4
    assert site.row(job)["state"] == "unknown"
    [row] = [row for row in site.cluster_rows() if row["cluster"] == "alpha"]
    assert (row["state"], row["set_aside"]) == ("up", 1)
    broken.unlink()
    site.until(lambda: site.row(job)["state"] == "running")
    other = site.submit("--wrap", "exit 5", "-t", "1", "--cluster", "alpha")
    assert site.until_ended(other)[0]["exit_code"] == 5
    go_on.touch()
    assert site.until_ended(job)[0]["exit_code"] == 3
    assert run_log.read_text() == "ran\n"
    assert site.stop() == 0
    site.replayed()
