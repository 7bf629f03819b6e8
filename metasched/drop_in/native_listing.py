"""Listings by the real commands of several clusters at once, each with a time limit."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time

from metasched.drop_in.command import real_environment, real_path
from metasched.drop_in.format_language import printable

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metasched.drop_in.native_clusters import NativeCluster

MAX_OUTPUT = 256 << 20  # bytes that are read of a command: some hundred thousand jobs
_READ_AS_OPTIONS = ("SQUEUE_", "SACCT_")  # variables of the user


class NoListing(Exception):
    """A real command has not listed its jobs; the message says why."""


class Listing:
    """A real command that lists jobs of a cluster. It runs while this process goes on."""

    def __init__(
        self,
        command: str,
        cluster: NativeCluster | None,
        arguments: Callable[[str], list[str]],
        width: int,
    ) -> None:
        """Start the command; `cluster` None: for the default cluster of this host.

        `arguments` are those with which it ends each field by a delimiter. Its records have
        `width` fields.
        """
        self.cluster, self._width = cluster, width
        self._delimiter = f"|{os.urandom(4).hex()}|"  # unknown to those who name jobs
        path = real_path(command) if cluster is None else cluster.required_program(command)
        environment = os.environ if cluster is None else cluster.environment()
        variables = {
            name: value
            for name, value in environment.items()
            if not name.startswith(_READ_AS_OPTIONS)
        }
        self._process = subprocess.Popen(
            [path, *arguments(self._delimiter)],
            env=real_environment(path, variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.pipes = (self._process.stdout, self._process.stderr)
        self.contents = (bytearray(), bytearray())  # read from the pipes

    def stop(self) -> None:
        """End the command at once."""
        self._process.kill()

    def records(self, has_ended: bool) -> list[list[str]]:
        """Return the fields of each job. Raises NoListing, also if the command has not ended."""
        if not has_ended:
            self.stop()
            is_long = max(map(len, self.contents)) > MAX_OUTPUT
            raise NoListing(f"more than {MAX_OUTPUT} bytes" if is_long else "no answer in time")
        output, errors = (content.decode(errors="replace") for content in self.contents)
        if (code := self._process.wait()) != 0:
            lines = errors.strip().splitlines()
            raise NoListing(lines[-1] if lines else f"exit code {code}")
        # names may contain line breaks
        *fields, rest = output.split(self._delimiter)
        if rest.strip() or len(fields) % self._width:
            raise NoListing("unexpected output")
        records = [
            fields[start : start + self._width] for start in range(0, len(fields), self._width)
        ]
        for record in records:
            record[0] = record[0].lstrip("\n")
        return records


def collect(
    command: str, listings: Sequence[Listing], seconds: float, is_required: bool
) -> tuple[list[tuple[NativeCluster | None, list[list[str]]]], int]:
    """Return the records of each cluster that answers within `seconds`, and an exit code.

    For the others a line is printed. It is an error only if the user has named these clusters or
    their jobs: a dead controller must not hide the jobs of metasched.
    """
    ended = _read(listings, seconds)
    answers, code = [], 0
    for listing in listings:
        try:
            answers.append((listing.cluster, listing.records(listing in ended)))
        except NoListing as problem:
            cluster = f"cluster {listing.cluster.name}: " if listing.cluster else ""
            report(command, f"{cluster}{printable(str(problem))}", is_required)
            code = 1 if is_required else 0
    return answers, code


def _read(listings: Sequence[Listing], seconds: float) -> list[Listing]:
    """Read what the commands print. Return those that have closed their pipes in time.

    Of one that prints too much no more is read.
    """
    deadline = time.monotonic() + seconds
    late = []
    with selectors.DefaultSelector() as selector:
        for listing in listings:
            for pipe, content in zip(listing.pipes, listing.contents):
                selector.register(pipe, selectors.EVENT_READ, (listing, content))
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                part = os.read(key.fd, 1 << 16)
                key.data[1].extend(part)
                if not part:
                    selector.unregister(key.fileobj)
                elif len(key.data[1]) > MAX_OUTPUT:
                    selector.unregister(key.fileobj)
                    late.append(key.data[0])
                    key.data[0].stop()  # its other pipe ends with it
        late += [key.data[0] for key in selector.get_map().values()]
    return [listing for listing in listings if listing not in late]


def report(command: str, problem: str, is_required: bool) -> None:
    """Print why jobs are not listed."""
    kind = "error: " if is_required else "warning: native jobs are not listed, "
    print(f"{command}: {kind}{problem}", file=sys.stderr)
