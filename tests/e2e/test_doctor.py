"""`metasched doctor` on a healthy site, and on sites with one problem each."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from tests.e2e.conftest import TWO_LOCAL, Site


def findings(site: Site, code: int) -> dict[str, dict[str, Any]]:
    return {f["check"]: f for f in json.loads(site.run("doctor", "--json", code=code).stdout)}


def test_a_healthy_site_then_one_problem_after_the_other(running: Site) -> None:
    job = running.submit("--wrap", "sleep 300", "--cluster", "right")
    running.until(lambda: running.row(job)["state"] == "running")
    checks = findings(running, 0)
    assert {"configuration", "filesystem", "database", "daemon", "cluster left"} <= set(checks)
    assert checks["clock of right"]["ok"]
    listener = checks[f"listener {running.folder / 'ms.sock'}"]["text"]
    assert "of 1024 connections, 0 of 512 wait for jobs; refused since the start: none" in listener
    assert checks["file descriptors"]["ok"]
    running.stop()
    check = findings(running, 1)["daemon"]
    assert "no daemon answers" in check["text"]
    assert "metasched serve" in check["mend"]

    whole = running.config.read_text()
    running.configure(TWO_LOCAL.partition('\n[[cluster]]\nname = "right"')[0])
    with sqlite3.connect(running.database) as other:
        other.execute("UPDATE attempt SET started = started - 100")
    other.close()
    running.start()
    checks = findings(running, 1)
    assert not checks[f"job {job}"]["ok"]
    assert f"metasched resolve {job} lost" in checks[f"job {job}"]["mend"]
    clock = checks["clock of right"]
    assert not clock["ok"]
    assert "s behind this host's" in clock["text"]
    assert "resolve" in running.run("doctor", code=1).stdout
    running.stop()

    running.config.write_text(whole.replace("cpus = 8", "cups = 8"))
    wrong = findings(running, 1)
    assert list(wrong) == ["configuration"]
    assert 'write "cpus"' in wrong["configuration"]["mend"]
    running.config.write_text(whole)
    running.start()
    running.run("cancel", str(job))
    running.until_ended(job)


def test_a_cluster_that_does_not_answer(site: Site) -> None:
    missing = site.folder / "none.conf"
    site.configure(
        f'[[cluster]]\nname = "alpha"\nadapter = "slurm"\nconfig = "{missing}"\n'
        f'bin_dir = "{site.folder}"\naccess = "commands"\npoll_interval = 0.2\n'
    )
    site.start("down:")
    site.until(lambda: "squeue" in findings(site, 1)["cluster alpha"]["text"])
    check = findings(site, 1)["cluster alpha"]
    assert "next try" in check["text"]
    assert check["mend"]
