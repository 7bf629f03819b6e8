"""A folder of claims on a filesystem with root_squash.

A daemon with an account of its own can use it; a daemon that runs as root refuses it.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness import root_squash
from tests.harness.accounts import KEEPER, A

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def squashed(common_folder: Path) -> Iterator[Path]:
    """A filesystem with root_squash."""
    if (reason := root_squash.missing()) is not None:
        require("fuse", reason)
    folder = common_folder / "squashed"
    with root_squash.mounted(common_folder / "export", folder):
        yield folder


def cluster_table(name: str, more: str) -> str:
    return f'[[cluster]]\nname = "{name}"\nadapter = "local"\ncpus = 2\npoll_interval = 0.2\n{more}'


def claims_folder(squashed: Path, name: str, mode: int, owner: int) -> Path:
    """Create a folder on the server, as its administrator does."""
    exported = squashed.parent / "export" / name
    exported.mkdir()
    exported.chmod(mode)
    os.chown(exported, owner, owner)
    return squashed / name


def test_the_filesystem_squashes_root(squashed: Path) -> None:
    shared = claims_folder(squashed, "shared", 0o1777, 0)
    (shared / "new").mkdir()
    assert (shared / "new").stat().st_uid == root_squash.NOBODY
    closed = claims_folder(squashed, "closed", 0o711, 0)
    with pytest.raises(PermissionError):
        (closed / "new").mkdir()


def test_a_daemon_of_root_refuses_it_in_one_line(squashed: Path, tmp_path: Path) -> None:
    reasons = {
        "closed": "Permission denied",  # mode 711, as the documents say
        "open": "belongs to nobody, not to the daemon's account root",  # mode 1777
    }
    site = Site(tmp_path)
    tables = [cluster_table("spare", "")]
    for name, mode in (("closed", 0o711), ("open", 0o1777)):
        fence_dir = claims_folder(squashed, f"of-root-{name}", mode, 0)
        tables.append(cluster_table(name, f'fence_dir = "{fence_dir}"\n'))
    site.configure("".join(tables))
    try:
        site.start()
        jobs = {name: site.submit("--cluster", name, "--wrap", "true") for name in reasons}
        for job in jobs.values():
            site.until(lambda job=job: "no claim can be created" in story(site, job))  # type: ignore[misc]
        log = site.log.read_text().splitlines()
        diagnoses = json.loads(site.run("doctor", "--json", code=1).stdout)
        for name, reason in reasons.items():
            warning = next(
                line for line in log if f"cluster {name} takes no jobs: fence_dir" in line
            )
            [row] = [row for row in diagnoses if row["check"] == f"claims of {name}"]
            assert not row["ok"]
            for text in (warning, f"{row['text']}; {row['mend']}"):
                assert reason in text
                assert "root_squash" in text
            # it is tried again after a while
            assert site.row(jobs[name])["state"] in ("queued", "dispatching")
    finally:
        site.close()


def story(site: Site, job: int) -> str:
    return site.run("story", str(job)).stdout


def test_a_daemon_with_an_account_of_its_own_uses_it(squashed: Path, common_folder: Path) -> None:
    site = MultiUserSite(common_folder / "squashed-site")
    keeper, owner = pwd.getpwnam(KEEPER), pwd.getpwnam(A)
    fence_dir = claims_folder(squashed, "of-keeper", 0o711, keeper.pw_uid)
    table = cluster_table("left", f'fence_dir = "{fence_dir}"\n')
    site.set_up(table, f"[cluster.left]\n{SUPERVISE}")
    try:
        site.start()
        user = site.by(A)
        job = user.submit("-t", "1", "--wrap", "exit 3")
        assert user.until_ended(job)[0]["exit_code"] == 3
        assert "fence_dir" not in site.log.read_text()
        [claim] = (squashed.parent / "export" / "of-keeper").glob("jobs-*/claims-*/task.0")
        assert claim.stat().st_uid == owner.pw_uid
        assert claim.read_text().splitlines()[-1].startswith("ended 3 ")
    finally:
        site.close()
