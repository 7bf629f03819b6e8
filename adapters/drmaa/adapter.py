"""DRMAA clusters: Grid Engine, with its gaps filled by its own commands, or any by DRMAA alone.

The library is named by the key `library`; everything else that it needs in the environment
before the worker starts (SGE_ROOT, SGE_CELL) by the cluster's key `environment`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from metasched.adapters.base import Adapter, Capabilities, Submission, Withdrawal
from metasched.adapters.drmaa.generic import DeclaredResources, GenericDrmaa, NativeTemplates
from metasched.adapters.drmaa.session import DrmaaSession
from metasched.adapters.gridengine.adapter import CellSettings, GridEngine
from metasched.adapters.launcher_client import LauncherClient
from metasched.model.cluster import Cluster
from metasched.model.listing import Listing
from metasched.model.survey import ReservationSpec, Survey


@dataclass(frozen=True)
class DrmaaOptions:
    """Keys of a DRMAA cluster in metasched.toml; ValueError names the one that is wrong.

    `library` is the DRMAA library. For `profile` gridengine, `bin_dir` is where qstat and its
    like are (None: on the PATH). Jobs of several processors ask for `parallel_environment`,
    memory is asked for by the consumable `memory` (None: not at all). A job without h_rt is
    taken to need `default_time` seconds, a command that gives no answer for `timeout` seconds
    counts as unanswered, one that was under way when its caller died may still arrive for
    `settle` seconds, and ended jobs stay listed for `keep` seconds. Profile generic needs `cpus`,
    the processors that the site lets us count on, may have `partitions` and `licences` (see
    `drmaa_generic.Sizes`), and `native`, its templates (see `drmaa_generic.Templates`).
    """

    library: str
    profile: Literal["gridengine", "generic"] = "gridengine"
    bin_dir: str | None = None
    parallel_environment: str = "smp"
    memory: str | None = None
    default_time: float = 86400.0
    timeout: float = 15.0
    settle: float = 20.0
    keep: float = 3 * 86400.0
    cpus: int | None = None
    partitions: tuple[str, ...] = ()
    licences: Mapping[str, int] = field(default_factory=dict)
    native: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, path in (("library", self.library), ("bin_dir", self.bin_dir)):
            if path is not None and not os.path.isabs(path):
                raise ValueError(f"{key} is {path!r}; it must be an absolute path")
        for key in ("default_time", "timeout", "keep"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{key} is {value!r}; it must be a positive number")
        if not (math.isfinite(self.settle) and self.settle >= 0):
            raise ValueError(f"settle is {self.settle!r}; it must be 0 or more")
        if self.profile == "generic" and (self.cpus is None or self.cpus < 1):
            raise ValueError("profile generic needs cpus, the number of its processors")
        if unknown := set(self.native) - {option.name for option in fields(NativeTemplates)}:
            allowed = ", ".join(option.name for option in fields(NativeTemplates))
            raise ValueError(f"native {min(unknown)!r} is none of {allowed}")
        templates = NativeTemplates(**self.native)
        for declared, template, name in (
            (self.partitions, templates.partition, "partition"),
            (self.licences, templates.licences, "licences"),
        ):
            if declared and not template:
                raise ValueError(f"native lacks {name}; say how the manager is asked for it")
        for name, count in self.licences.items():
            if count < 0:
                raise ValueError(f"licences {name} is {count}; it must be 0 or more")


class Drmaa(Adapter):
    """One cluster through its DRMAA library, by the profile that fits it."""

    Options: ClassVar[type[Any]] = DrmaaOptions
    # The library holds its thread's data in the space that the C library keeps for programs
    # that are there from the start ("cannot allocate memory in static TLS block").
    environment: ClassVar[Mapping[str, str]] = {
        "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=4096"
    }

    def __init__(
        self,
        cluster: Cluster,
        options: DrmaaOptions,
        instance: str,
        folder: Path,
        launcher: LauncherClient | None = None,
    ) -> None:
        super().__init__(cluster, options, instance, folder, launcher)
        session = DrmaaSession(options.library)
        self.capabilities = self.capabilities_for(options)  # type: ignore[misc]
        self._profile: GridEngine | GenericDrmaa
        if options.profile == "generic":
            if launcher is not None:
                raise ValueError("profile generic: one DRMAA session cannot act as many users")
            self._profile = GenericDrmaa(
                cluster,
                session,
                NativeTemplates(**options.native),
                DeclaredResources(
                    cpus=options.cpus or 1,
                    partitions=options.partitions,
                    licences=options.licences,
                ),
                options.keep,
                instance,
                folder,
            )
            return
        settings = CellSettings(
            **{option.name: getattr(options, option.name) for option in fields(CellSettings)}
        )
        self._profile = GridEngine(cluster, session, settings, instance, folder, launcher)

    @classmethod
    def capabilities_for(cls, options: DrmaaOptions) -> Capabilities:
        if options.profile == "generic":
            return Capabilities(licences=bool(options.licences), proves_absence=False)
        return Capabilities(
            gres=True,
            licences=True,
            memory=options.memory is not None,
            reservations=True,
        )

    def submit(self, submission: Submission) -> dict[int, str]:
        return self._profile.submit(submission)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        self.withdraw_all([withdrawal])

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        self._profile.withdraw_all(withdrawals)

    def poll(self) -> Listing:
        return self._profile.poll()

    def survey(self) -> Survey:
        return self._reservation_cell().survey()

    def reserve(self, spec: ReservationSpec) -> None:
        self._reservation_cell().reserve(spec)

    def delete_reservation(self, name: str) -> None:
        self._reservation_cell().unreserve(name)

    def _reservation_cell(self) -> GridEngine:
        if isinstance(self._profile, GenericDrmaa):
            raise NotImplementedError
        return self._profile

    def close(self) -> None:
        self._profile.close()
