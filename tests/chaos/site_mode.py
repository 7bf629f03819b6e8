"""Sites in site mode under faults: root's launcher, a daemon of its own account, two job owners."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import pwd
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from metasched.client.client import Client
from metasched.client.connection import Connection
from tests.chaos.points import FOLDER, ROOT
from tests.chaos.site import CALL_TIMEOUT, ChaosSite
from tests.harness import accounts
from tests.harness.accounts import KEEPER, A, B
from tests.harness.root_launcher import RootLauncher

# glibc's function changes the account of all threads, the system call that of the calling thread
_SETRESUID = {"x86_64": 117, "aarch64": 147}


def missing() -> str | None:
    """Return why this host has no site mode, or None."""
    if os.geteuid() != 0:
        return "needs root, which makes accounts"
    if platform.machine() not in _SETRESUID:
        return f"no number of setresuid for {platform.machine()}"
    return accounts.cannot_read_checkout(KEEPER, A, B)


class AccountClient(Client):
    """A client whose connections have the uid of another account."""

    def __init__(self, path: Path, uid: int) -> None:
        super().__init__(path, retry_time=0)
        self._connection = AccountConnection(path, uid)


class AccountConnection(Connection):
    """Connections with the uid of another account."""

    def __init__(self, path: Path, uid: int) -> None:
        super().__init__(path, CALL_TIMEOUT)
        self._uid = uid

    def _connect_unix(self) -> socket.socket:
        with _thread_of(self._uid):
            return super()._connect_unix()


@contextlib.contextmanager
def _thread_of(uid: int) -> Iterator[None]:
    """Give this thread of root the effective uid of another account."""
    libc, number = ctypes.CDLL(None, use_errno=True), _SETRESUID[platform.machine()]
    if libc.syscall(number, -1, uid, -1) != 0:
        raise OSError(ctypes.get_errno(), "setresuid failed")
    try:
        yield
    finally:
        libc.syscall(number, -1, 0, -1)


class MultiUserChaosSite(ChaosSite):
    """A site in site mode whose jobs belong to two accounts; root is its operator."""

    account = KEEPER

    def __init__(self, folder: Path, clusters: str, programs: str) -> None:
        """`clusters` are tables as for `ChaosSite`, `programs` those of launcher.toml."""
        self.launcher = RootLauncher(folder, KEEPER)
        super().__init__(folder, clusters)
        self.launcher.configure(programs)
        self.launcher.start()

    def prepare(self) -> None:
        super().prepare()
        self.folder.chmod(0o711)
        for path in self.run_log.parent.glob(f"{self.run_log.name}*"):
            path.chmod(0o666)
        self.database = self.own_folder("state") / "metasched.db"
        self.url = f"sqlite:///{self.database}"

    def configure(self, clusters: str = "", extra: str = "") -> None:
        self.config.write_text(
            f'[daemon]\ndatabase = "{self.url}"\nfolder = "{self.clusters}"\n'
            f'socket = "{self.socket}"\n[site]\nlauncher = "{self.launcher.socket}"\n'
            f"{extra}{clusters}"
        )

    def own_folder(self, name: str) -> Path:
        path = super().own_folder(name)
        path.chmod(0o711)
        owner = pwd.getpwnam(KEEPER)
        os.chown(path, owner.pw_uid, owner.pw_gid)
        return path

    @property
    def socket(self) -> Path:
        return self.database.with_name("ms.sock")

    @property
    def submitters(self) -> Mapping[int, Client]:
        uids = (pwd.getpwnam(name).pw_uid for name in (A, B))
        return {uid: AccountClient(self.socket, uid) for uid in uids}

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "METASCHED_CONFIG": str(self.config),
            FOLDER: str(self.chaos),
            "PYTHONPATH": ROOT,
        }

    def log_tail(self) -> str:
        return super().log_tail() + self.launcher.log.read_text()[-2000:]

    def close(self) -> None:
        super().close()
        self.launcher.kill()
