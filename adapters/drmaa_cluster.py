"""The adapter of DRMAA clusters: Grid Engine with its own commands, or any system by DRMAA alone.

The key `library` names the DRMAA library. The cluster's key `environment` sets variables that the
library needs before the worker starts (SGE_ROOT, SGE_CELL).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from metasched.adapters.base import (
    CHANGE_VERBS,
    NO_RESERVATIONS,
    Adapter,
    Capabilities,
    ManagerState,
    Submission,
    Withdrawal,
)
from metasched.adapters.drmaa.generic import DeclaredResources, GenericDrmaa, NativeTemplates
from metasched.adapters.drmaa.session import DrmaaSession
from metasched.adapters.gridengine.adapter import CellSettings, GridEngine
from metasched.adapters.gridengine.cell_files import open_script_folder
from metasched.adapters.launcher_client import LauncherClient
from metasched.model.adapter_errors import Refused
from metasched.model.cluster import Cluster
from metasched.model.foreign_use import UseAnswer, UseQuery
from metasched.model.listing import Listing
from metasched.model.manager_options import APPEND, EXCLUDE, NICE, NODELIST, SIGNAL, UNLIMITED
from metasched.model.survey import ReservationSpec, Survey


@dataclass(frozen=True)
class DrmaaOptions:
    """Keys of a DRMAA cluster in metasched.toml. ValueError names the wrong key."""

    library: str  # absolute path of the DRMAA library
    profile: Literal["gridengine", "generic"] = "gridengine"
    # profile gridengine
    bin_dir: str | None = None  # folder of qstat etc.; None: found on the PATH
    parallel_environment: str = "smp"  # of jobs with several processors
    memory: str | None = None  # consumable that counts memory; None: memory is not requested
    default_time: float = 86400.0  # seconds; run time of a job without h_rt
    timeout: float = 15.0  # seconds until a command counts as unanswered
    settle: float = 20.0  # seconds: see `Adapter.settle`
    # both profiles
    keep: float = 3 * 86400.0  # seconds for which ended jobs stay listed
    # profile generic
    cpus: int | None = None  # processors that metasched may count on; required
    partitions: tuple[str, ...] = ()  # names that jobs may request
    licences: Mapping[str, int] = field(default_factory=dict)  # counted by the manager
    native: Mapping[str, str] = field(default_factory=dict)  # see `NativeTemplates`

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
                raise ValueError(f"native has no key {name}; add the option that requests it")
        for name, count in self.licences.items():
            if count < 0:
                raise ValueError(f"licences {name} is {count}; it must be 0 or more")


class Drmaa(Adapter):
    """The adapter of a DRMAA cluster, with the profile that its options choose."""

    Options: ClassVar[type[Any]] = DrmaaOptions
    concurrent_owners: ClassVar[bool] = True  # a DRMAA session is not used in site mode
    launcher_verbs: ClassVar[tuple[str, ...]] = CHANGE_VERBS
    # The library needs thread-local storage that the C library reserves for programs at their
    # start ("cannot allocate memory in static TLS block").
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
        self.settle = options.settle
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
    def configuration_warnings(
        cls, options: DrmaaOptions, environment: Mapping[str, str], site_mode: bool
    ) -> list[tuple[str, str]]:
        if options.profile == "generic" or not site_mode:
            return []
        if (folder := open_script_folder(environment)) is None:
            return []
        return [(f"every account can read the scripts of jobs, {folder}", f"chmod 700 {folder}")]

    @classmethod
    def capabilities_for(cls, options: DrmaaOptions) -> Capabilities:
        if options.profile == "generic":
            return Capabilities(
                licences=bool(options.licences),
                proves_absence=False,
                job_options=(SIGNAL, APPEND),
                local_policy="easy",  # PBS, LSF and Slurm, whose DRMAA is used so, backfill
            )
        return Capabilities(
            gres=True,
            job_options=(SIGNAL, APPEND, NICE, NODELIST, EXCLUDE, UNLIMITED),
            licences=True,
            memory=options.memory is not None,
            reservations=True,
            local_policy="first-fit",
        )

    def add_former_instances(self, names: frozenset[str]) -> None:
        super().add_former_instances(names)
        self._profile.add_former_instances(names)

    def submit(self, submission: Submission) -> dict[int, str]:
        return self._profile.submit(submission)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        self.withdraw_all([withdrawal])

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        self._profile.withdraw_all(withdrawals)

    def poll(self) -> Listing:
        return self._profile.poll(self.known_jobs)

    def inspect(self) -> ManagerState:
        if isinstance(self._profile, GenericDrmaa):
            return super().inspect()
        return self._profile.inspect()

    def query_foreign_use(self, query: UseQuery) -> UseAnswer:
        if isinstance(self._profile, GenericDrmaa):
            return super().query_foreign_use(query)
        return self._profile.query_foreign_use(query)

    def survey(self) -> Survey:
        return self._reservation_cell().survey()

    def reserve(self, spec: ReservationSpec) -> None:
        self._reservation_cell().reserve(spec)

    def delete_reservation(self, name: str) -> None:
        self._reservation_cell().unreserve(name)

    def _reservation_cell(self) -> GridEngine:
        if isinstance(self._profile, GenericDrmaa):
            raise Refused(NO_RESERVATIONS)
        return self._profile

    def close(self) -> None:
        self._profile.close()
