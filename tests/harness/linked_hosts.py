"""Hosts of a test, each with a network of its own, linked by cables that can be pulled.

They share the files of this host: a socket would be reached by its path from all of them.
"""

from __future__ import annotations

from tests.harness.daemons import NAMESPACE, DaemonGroup, output_of

# command that enters a new network and replaces itself with its arguments
NETWORK = (*NAMESPACE, "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
_TOOLS = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


class LinkedHost(DaemonGroup):
    """A host that lives as long as the `with` block. Needs root."""

    def _boot(self) -> None:
        pass


class Cable:
    """A link between two hosts; each end has the name of the cable and an address."""

    def __init__(self, name: str, hub: DaemonGroup, host: DaemonGroup, network: int) -> None:
        """`name` has at most 15 letters; `network` is the third byte of the addresses."""
        self._name, self._hub = name, hub
        self.hub_address, self.host_address = (f"10.97.{network}.{end}" for end in (1, 2))
        far = host.inside[host.inside.index("--target") + 1]
        self._ip(hub, "link", "add", name, "type", "veth", "peer", "name", name, "netns", far)
        for end, address in ((hub, self.hub_address), (host, self.host_address)):
            self._ip(end, "address", "add", f"{address}/24", "dev", name)
            self._ip(end, "link", "set", name, "up")

    def pull(self) -> None:
        """Let nothing through. Neither end is told: connections stay open."""
        self._ip(self._hub, "link", "set", self._name, "down")

    def plug(self) -> None:
        """Let everything through again."""
        self._ip(self._hub, "link", "set", self._name, "up")

    @staticmethod
    def _ip(host: DaemonGroup, *words: str) -> None:
        output_of([*host.inside, "ip", *words], _TOOLS, host.folder)
