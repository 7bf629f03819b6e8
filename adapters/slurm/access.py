"""The operations of a Slurm cluster, common to the commands and pyslurm; the cluster's options."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from metasched.adapters.base import Submission
from metasched.adapters.slurm.listing import ControllerInfo, QueueListing, SinfoRecord
from metasched.model.cluster import ManagerLicences


@dataclass(frozen=True)
class SlurmOptions:
    """Keys of a Slurm cluster in metasched.toml; ValueError names the invalid key."""

    config: str  # path of slurm.conf
    bin_dir: str | None = None  # folder of Slurm's commands; None: they are on the PATH
    access: Literal["auto", "pyslurm", "commands"] = "auto"
    tag_field: Literal["comment", "wckey", "name"] = "comment"  # the job field with the tag
    timeout: float = 15.0  # seconds until a command counts as unanswered
    settle: float = 20.0  # seconds: see `Adapter.settle`
    reservation_unit: Literal["node", "processor"] = "node"
    native_jobs: bool = True  # users' squeue and sacct also list jobs that metasched did not send
    trust_completions: bool = False  # jobcomp/filetxt counts in site mode: see SlurmAccounting

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
    """An interface to a cluster. Every call raises Unreachable if no answer comes in time."""

    @property
    def name(self) -> str:
        """The name that users see, such as `commands`."""

    def submit(self, submission: Submission, index: int) -> str:
        """Queue a task; return its native id. Raises Refused if it is certainly not queued."""

    def submit_array(self, submission: Submission, indices: Sequence[int]) -> str:
        """Queue tasks as an array with `indices` as its task ids; return the array's job id."""

    def jobs(
        self,
        *,
        ids: Sequence[str] = (),
        user: int | None = None,
        split_arrays: bool = False,
        known: Collection[str] = (),
    ) -> QueueListing:
        """List jobs, at least the jobs `ids` or the jobs of `user`; all jobs by default.

        The list is empty if Slurm has none of `ids`. Pending tasks of an array may share a line.
        With `split_arrays` each task with a record of its own has a line of its own. A single task
        of the others may then be missing. `known`: ids that are metasched's also without a tag.
        """

    def nodes(self) -> list[SinfoRecord]:
        """List each node in each of its partitions."""

    def controller(self) -> ControllerInfo:
        """Return the controller's current times and configuration."""

    def licences(self) -> dict[str, ManagerLicences]:
        """Return the licences that Slurm counts, local and of slurmdbd, by name."""

    def hold(self, ids: Collection[str]) -> str:
        """Hold jobs; return Slurm's error message. Only a listing shows whether they are held."""

    def release(self, ids: Collection[str]) -> None:
        """Release held jobs; ignore jobs that cannot be released."""

    def cancel(self, ids: Collection[str]) -> None:
        """Cancel jobs; ended and unknown jobs are no error."""
