"""A second host on this machine: a network and mounts of its own, beside the same files.

A socket can be reached by its path from any network namespace. So the folders of sockets are
hidden there, as if they were on a local disk of the first host.
"""

from __future__ import annotations

from pathlib import Path

from tests.harness.daemons import HOST, NAMESPACE, DaemonGroup
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
        super().__init__(folder, (*HOST, *_BEGIN))

    @property
    def first_host(self) -> tuple[str, ...]:
        """Command that enters a new network with `FIRST_ADDRESS`, linked to this host."""
        script = _LINK.format(pid=self._reaper.pid, first=FIRST_ADDRESS, second=ADDRESS)
        return (*NAMESPACE, "sh", "-c", script, "sh")

    @property
    def reaper(self) -> Reaper:
        """The reaper of this host, which starts and ends its daemons."""
        return self._reaper

    def _boot(self) -> None:
        pass
