"""A second host on this machine: a network and mounts of its own, beside the same files.

A socket can be reached by its path from any network namespace. So the folders of sockets are
hidden there, as if they were on a local disk of the first host.
"""

from __future__ import annotations

from pathlib import Path

from tests.harness.daemons import NAMESPACE, DaemonGroup, output_of
from tests.harness.reaper import Reaper

FIRST_ADDRESS, ADDRESS = "10.98.0.1", "10.98.0.2"
_BEGIN = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
_LINK = """
ip link set lo up && ip link add far type veth peer name far netns {pid} &&
ip address add {first}/24 dev far && ip link set far up &&
nsenter --net --target {pid} sh -c 'ip address add {second}/24 dev far && ip link set far up' &&
exec "$@"
"""


class SecondHost(DaemonGroup):
    """A host with the address `ADDRESS`, alive as long as the `with` block. Needs root."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("unshare", "--net", "--mount", "--", *_BEGIN))

    @property
    def first_host(self) -> tuple[str, ...]:
        """Command that enters a new network with `FIRST_ADDRESS`, linked to this host."""
        script = _LINK.format(pid=self._reaper.pid, first=FIRST_ADDRESS, second=ADDRESS)
        return (*NAMESPACE, "sh", "-c", script, "sh")

    @property
    def reaper(self) -> Reaper:
        """The reaper of this host, which starts and ends its daemons."""
        return self._reaper

    @property
    def inside(self) -> tuple[str, ...]:
        return ("nsenter", "--net", "--mount", "--target", str(self._reaper.pid), "--")

    def replace(self, folder: Path, content: Path) -> None:
        """Show the folder `content` in the place of another."""
        self._run("mount", "--bind", str(content), str(folder))

    def hide(self, folder: Path) -> None:
        """Show an empty folder in its place."""
        self._run("mount", "-t", "tmpfs", "none", str(folder))

    def _run(self, *command: str) -> None:
        output_of([*self.inside, *command], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, self.folder)

    def _boot(self) -> None:
        pass
