"""`init site` as root: no account makes it take a slurm.conf or cell which that account can change.

The launcher runs the programs of a cluster as every user, with that configuration.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from metasched import launcher
from metasched.site_setup.activation import require_root_files
from metasched.site_setup.choices import SiteChoices
from metasched.site_setup.discovery import grid_engine_cell, slurm_cluster
from tests.harness.accounts import KEEPER, A, B, as_, make

pytestmark = pytest.mark.root


class Managers:
    """A Slurm cluster and a Grid Engine cell; programs and folders belong to root at first."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "slurm/etc/slurm.conf"
        self.sge_root = folder / "sge"
        self.common = self.sge_root / "default/common"
        for name in ("sbatch", "scancel", "scontrol"):
            self._write(folder / "slurm/bin" / name, "#!/bin/sh\n", 0o755)
        for name in ("qsub", "qdel", "qhold", "qrls"):
            self._write(self.sge_root / "bin/lx-amd64" / name, "#!/bin/sh\n", 0o755)
        self._write(self.config, "ClusterName=trap\n")
        self._write(self.common / "act_qmaster", "master\n")
        self._write(self.common / "sge_request", "\n")

    @staticmethod
    def _write(path: Path, text: str, mode: int = 0o644) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def init(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `init site` on this host; with --dry-run it checks everything, and writes nothing."""
        command = [sys.executable, "-m", "metasched", "init", "site", "--dry-run"]
        return subprocess.run(
            [*command, "--account", KEEPER, *options],
            env={"PATH": "/usr/bin:/bin", "HOME": "/root", **variables},
            **as_("root"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def problems(self) -> list[str]:
        """Return what `init site` says about the files of both."""
        package = Path(launcher.__file__).parent
        clusters = (
            slurm_cluster(Path("/"), str(self.config)),
            grid_engine_cell(Path("/"), str(self.sge_root)),
        )
        python = os.path.realpath(sys.executable)
        return require_root_files(SiteChoices(sys.prefix, str(package), python, clusters))


@pytest.fixture
def managers(tmp_path_factory: pytest.TempPathFactory, common_folder: Path) -> Managers:
    make(A, B)
    return Managers(common_folder / tmp_path_factory.mktemp("x").name)


def give(path: Path, account: str) -> None:
    os.chown(path, pwd.getpwnam(account).pw_uid, -1)


def variables_of(managers: Managers) -> tuple[dict[str, str], ...]:
    """Return environments; a name of a cluster that is refused shows that its file counts."""
    managers.config.write_text("ClusterName=b@d\n")
    managers.common.parent.rename(managers.sge_root / "b@d")
    managers.common = managers.sge_root / "b@d/common"
    return {"SLURM_CONF": str(managers.config)}, {"SGE_ROOT": str(managers.sge_root)}


@pytest.mark.slow("runs init site six times, which examines the whole host")
def test_variables_count_unless_an_account_has_called_sudo(managers: Managers) -> None:
    account = str(pwd.getpwnam(A).pw_uid)
    for variables in variables_of(managers):
        assert "b@d" in managers.init(**variables).stderr
        for caller in (account, "0"):  # root may have been called by sudo before
            done = managers.init(**variables, SUDO_UID=caller)
            assert done.returncode == 0, done
            assert "b@d" not in done.stdout + done.stderr


def test_no_variable_names_files_of_an_account(managers: Managers) -> None:
    """Even if nothing says who called, as with `su -m`."""
    give(managers.config, A)
    give(managers.common, A)
    for variables in (
        {"SLURM_CONF": str(managers.config)},
        {"SGE_ROOT": str(managers.sge_root)},
    ):
        done = managers.init(**variables)
        assert done.returncode == 1
        assert "can be changed by others than root" in done.stderr, done
        assert len(done.stderr.splitlines()) == 1


def test_no_option_names_files_of_an_account(managers: Managers) -> None:
    give(managers.config, A)
    done = managers.init(f"--slurm={managers.config}")
    assert done.returncode == 1
    assert f"{managers.config} can be changed by others than root" in done.stderr
    assert done.stdout == ""
    give(managers.config, "root")
    assert managers.init(f"--slurm={managers.config}").returncode == 0


def test_all_that_the_programs_obey_is_roots(managers: Managers, common_folder: Path) -> None:
    assert managers.problems() == []
    for path in (
        managers.config,
        managers.config.parent,
        managers.common,
        managers.common.parent,
        managers.common / "act_qmaster",
        managers.common / "sge_request",
    ):
        for account in (A, B):
            give(path, account)
            (problem,) = managers.problems()
            assert f"{path} can be changed by others than root" in problem
        give(path, "root")
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        assert len(managers.problems()) == 1
        path.chmod(mode)
    link, config = common_folder / "slurm-link", managers.config
    link.symlink_to(config)
    managers.config = link
    assert managers.problems() == []
    os.chown(link, pwd.getpwnam(A).pw_uid, -1, follow_symlinks=False)
    (problem,) = managers.problems()
    assert f"{link} can be changed" in problem


def test_files_of_the_managers_own_account_count(managers: Managers) -> None:
    """Debian gives a cell to it. It starts the jobs of every user anyway."""
    for path, account in ((managers.config, "slurm"), (managers.common, "sgeadmin")):
        try:
            give(path, account)
        except KeyError:
            pytest.skip(f"no account {account}")
    assert managers.problems() == []
    give(managers.config, "sgeadmin")
    assert len(managers.problems()) == 1
