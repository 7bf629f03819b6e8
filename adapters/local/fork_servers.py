"""The fork servers of a local cluster: each for an account that runs tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from metasched.adapters.launcher_client import LauncherClient
from metasched.adapters.local.host import ForkServer
from metasched.model.adapter_errors import Unreachable


class ForkServers:
    """Requests to fork servers, by account; "" is this account.

    In site mode each account has a thread that waits for its fork server: the user may have
    stopped it.
    """

    def __init__(self, error_log: Path, launcher: LauncherClient | None) -> None:
        self._error_log, self._launcher = error_log, launcher
        self._servers: dict[str, ForkServer] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def close(self) -> None:
        for account, server in self._servers.items():
            if self._launcher is None:
                server.close()
            else:  # behind the requests under way
                self._thread_of(account).submit(server.close)
                self._thread_of(account).shutdown(wait=False)

    @property
    def site_mode(self) -> bool:
        """Whether tasks run as their owners."""
        return self._launcher is not None

    def server_of(self, account: str) -> ForkServer:
        if account not in self._servers:
            self._servers[account] = ForkServer(self._error_log, self._launcher, account)
        return self._servers[account]

    def submit(self, account: str, request: Callable[[], None]) -> None:
        """Site mode: have the account's thread execute a request, after those before it."""
        self._thread_of(account).submit(request)

    def cancel(self, account: str, folders: Iterable[Path], tag: str) -> Future[None] | None:
        """Have supervisors end the jobs of a submission.

        In site mode return a future, which raises OSError. Else raise Unreachable.
        """
        server, paths = self.server_of(account), list(folders)
        if self.site_mode:
            return self._thread_of(account).submit(server.cancel, paths)
        try:
            server.cancel(paths)
        except OSError as error:
            raise Unreachable(f"tasks of {tag}: {error}") from None
        return None

    def _thread_of(self, account: str) -> ThreadPoolExecutor:
        if account not in self._threads:
            name = f"fork server of {account}"
            self._threads[account] = ThreadPoolExecutor(1, thread_name_prefix=name)
        return self._threads[account]
