"""What the Slurm adapter asks of its cluster, whichever way the cluster is asked."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from metasched.adapters.base import Submission
from metasched.adapters.slurm.listing import ControllerInfo, NodeLine, QueueLine
from metasched.model.cluster import ManagerLicences


@dataclass(frozen=True)
class SlurmOptions:
    """Keys of a Slurm cluster in metasched.toml; ValueError names the one that is wrong.

    `config` is its slurm.conf, `bin_dir` where its commands are (None: on the PATH), `timeout`
    the seconds after which a command counts as unanswered. A command of ours that was under way
    when its caller died may still arrive for `settle` seconds. `reservation_unit` is what one can
    reserve: whole nodes, or processors anywhere.
    """

    config: str
    bin_dir: str | None = None
    access: Literal["auto", "pyslurm", "commands"] = "auto"
    tag_field: Literal["comment", "wckey", "name"] = "comment"
    timeout: float = 15.0
    settle: float = 20.0
    reservation_unit: Literal["node", "processor"] = "node"

    def __post_init__(self) -> None:
        for key, path in (("config", self.config), ("bin_dir", self.bin_dir)):
            if path is not None and not os.path.isabs(path):
                raise ValueError(f"{key} is {path!r}; it must be an absolute path")
        for key, value, choices in (
            ("access", self.access, ("auto", "pyslurm", "commands")),
            ("tag_field", self.tag_field, ("comment", "wckey", "name")),
            ("reservation_unit", self.reservation_unit, ("node", "processor")),
        ):
            if value not in choices:
                raise ValueError(f"{key} is {value!r}; it must be one of {', '.join(choices)}")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise ValueError(f"timeout is {self.timeout!r}; it must be a positive number")
        if not (math.isfinite(self.settle) and self.settle >= 0):
            raise ValueError(f"settle is {self.settle!r}; it must be 0 or more")


class SlurmAccess(Protocol):
    """One way to speak to a cluster. Every call raises Unreachable if no answer came in time."""

    @property
    def name(self) -> str:
        """What users are told of it, such as `commands`."""

    def submit(self, submission: Submission, index: int) -> str:
        """Queue one task of the order; its native id. Refused: it is certainly not queued."""

    def submit_array(self, submission: Submission, indices: Sequence[int]) -> str:
        """Queue these tasks as one array, their indices its task ids; its native id."""

    def jobs(
        self, *, ids: Sequence[str] = (), user: int | None = None, split_arrays: bool = False
    ) -> list[QueueLine]:
        """What Slurm lists, and at the least these jobs, or those of this user.

        An empty list if it knows none of `ids`. Pending tasks of an array may share the line of
        one of them; `apart`: those with a record of their own do not, but of the others one may
        be lacking.
        """

    def nodes(self) -> list[NodeLine]:
        """Each node in each of its partitions."""

    def controller(self) -> ControllerInfo:
        """The times by which a listing is judged, read from the controller now."""

    def licences(self) -> dict[str, ManagerLicences]:
        """The licences that Slurm counts, its own and those of slurmdbd."""

    def hold(self, ids: Collection[str]) -> str:
        """Let none of these begin; what was said against it, which only a listing can confirm."""

    def release(self, ids: Collection[str]) -> None:
        """Let these begin again; what cannot be released is left as it is."""

    def cancel(self, ids: Collection[str]) -> None:
        """End these. It is no error that one has ended or is not known."""
