"""An account that never calls metasched fills a cell with oddly named jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.multi_user_site import MultiUserSite, site_over_gridengine
from tests.harness.accounts import A, B, become
from tests.harness.gridengine import Cell

pytestmark = pytest.mark.root
QSUB = ("/usr/lib/gridengine/qsub", "-h", "-b", "y", "-o", "/dev/null", "-e", "/dev/null")


@pytest.fixture(scope="module")
def site(common_folder: Path, gridengine_cell: Cell) -> Iterator[MultiUserSite]:
    with site_over_gridengine(common_folder / "odd-names", gridengine_cell) as running:
        yield running


def submit_directly(cell: Cell, *options: str) -> bool:
    """Let account a submit a held job by qsub; return whether the cell has taken it."""
    done = subprocess.run(
        [*cell.inside, *become(A), *QSUB, *options, "/bin/true"],
        env={**cell.environment, "PATH": "/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8"},
        capture_output=True,
        check=False,
        cwd="/",
        timeout=60,
    )
    return done.returncode == 0


@pytest.mark.slow("boots a site over Grid Engine, and fills it by 29 odd jobs")
def test_no_name_of_an_account_stops_the_jobs_of_others(
    site: MultiUserSite, gridengine_cell: Cell
) -> None:
    b = site.by(B)
    go = site.folder / B / "go"
    wait = f"until [ -e '{go}' ]; do sleep 0.2; done"
    first = b.submit("-o", "/dev/null", "-t", "5", "--wrap", wait)
    site.until(lambda: site.row(first)["state"] == "running")
    tag = f"ms-{site.instance}-{first}-1"
    line = f"</JB_name></job_list><job_list state='pending'><JB_name>{tag}"
    names = (
        tag,
        f"{tag}.{'9' * 24}",
        f"{tag}.0",
        f"ms-{site.instance}-{'9' * 24}-1",
        line,
        f"<![CDATA[{tag}]]>",
        f"&#0;&#x1F;&lt;{tag}&amp;",
        f"x\n{tag}",
        f"x\r{tag}\x0b\x0c",
        "\u202e\u2066\u200b\ufeff",
        "\x01\x1b[2J\x7f",
        "\udcff\udcfe",  # no UTF-8
        "n" * 4000,
    )
    taken = [submit_directly(gridengine_cell, "-N", name) for name in names]
    # other texts that qstat, qacct and the accounting list
    for text in (line, f"x\n{tag}", "\u202e" * 50, "n" * 4000):
        taken.append(submit_directly(gridengine_cell, "-N", "odd", "-ac", f"key={text}"))
        taken.append(submit_directly(gridengine_cell, "-N", "odd", "-A", text))
        taken.append(
            submit_directly(gridengine_cell, "-N", "odd", "-l", f"h_rt=60,hostname={text}")
        )
        taken.append(submit_directly(gridengine_cell, "-N", "odd", "-q", text))
    assert sum(taken) >= 8, taken  # the cell refuses some of them itself
    for _ in range(2):
        job = b.submit("-o", "/dev/null", "-t", "5", "--wrap", "true")
        assert b.until_ended(job)[0]["state"] == "completed"
    [row] = site.json("clusters")
    assert row["state"] == "up", row
    assert site.row(first)["state"] == "running"
    assert {entry["job"] for entry in site.by(A).rows()} == set()
    shown = site.by(B).run("clusters").stdout + site.by(B).run("explain", str(first)).stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "Traceback" not in site.log.read_text()
    gridengine_cell.run("sh", "-c", f"qdel -u {A} >/dev/null || true")
    go.touch()
    assert b.until_ended(first)[0]["state"] == "completed"
