"""What adapters declare: it decides how clusters are forecast and checked, never their names."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from metasched.adapters.base import Adapter, ManagerState, Submission
from metasched.adapters.inspection import InspectionReport
from metasched.adapters.worker import AdapterHost
from metasched.api.clusters import _native_row
from metasched.config.reading import load_settings
from metasched.config.settings import ConfigError, Settings
from metasched.daemon.doctor import cluster_checks
from metasched.daemon.doctor.cluster_checks import check_manager
from metasched.model.job import Job, Payload
from tests.harness.plug_in_packages import install
from tests.unit.core_site import Site

PLUG_IN = """
from dataclasses import dataclass
from metasched.adapters.base import Adapter, Capabilities

@dataclass(frozen=True)
class Options:
    config: str = "/etc/other.conf"
    policy: str = ""

class Silent(Adapter):
    Options = Options

class Open(Silent):
    @classmethod
    def capabilities_for(cls, options):
        return Capabilities(local_policy=options.policy, orders_by_priority=True)
"""


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters of another package: `silent` declares nothing, `open` the policy of its options."""
    classes = {"silent": "Silent", "open": "Open"}
    install(tmp_path, "their_adapters", PLUG_IN, {"metasched.adapters": classes})
    monkeypatch.syspath_prepend(tmp_path)


def settings_of(folder: Path, adapter: str, *keys: str) -> Settings:
    """The settings of a site with a single cluster."""
    path = folder / "metasched.toml"
    table = ("[[cluster]]", 'name = "c"', f'adapter = "{adapter}"', *keys)
    path.write_text("\n".join(('[daemon]\ndatabase = "sqlite:///ms.db"', *table, "")))
    return load_settings(path)


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("adapter", "keys", "policy", "by_priority"),
    [
        ("local", ["cpus = 4"], "fb-unmod", True),
        ("local", ["cpus = 4", 'policy = "fcfs"'], "fcfs", True),
        ("slurm", ['config = "/etc/slurm.conf"'], "easy", False),
        ("drmaa", ['library = "/lib/drmaa.so"'], "first-fit", False),
        ("drmaa", ['library = "/d.so"', 'profile = "generic"', "cpus = 4"], "easy", False),
        ("open", ['policy = "conservative"'], "conservative", True),
        ("silent", [], "fcfs", False),
    ],
)
def test_each_adapter_declares_the_policy_of_its_forecasts(
    tmp_path: Path, adapter: str, keys: list[str], policy: str, by_priority: bool
) -> None:
    [entry] = settings_of(tmp_path, adapter, *keys).clusters
    assert entry.cluster.local_policy_or_fcfs == policy
    assert entry.cluster.orders_by_priority == by_priority


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("esay", 'unknown policy "esay", local_policy of the adapter, .*"c"; write "easy"'),
        ("edf-p", 'suspends running jobs, .*local_policy of the adapter, .*; write "edf"'),
    ],
)
def test_a_policy_that_cannot_stand_for_a_manager_is_refused(
    tmp_path: Path, policy: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(tmp_path, "open", f'policy = "{policy}"')


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize("value", ["None", "5", '["easy"]'])
def test_a_policy_that_is_no_name_is_refused(tmp_path: Path, value: str) -> None:
    """Stored as it is, it would make the event of the start unreadable."""
    package = tmp_path / "their_adapters.py"
    package.write_text(PLUG_IN.replace("local_policy=options.policy", f"local_policy={value}"))
    sys.modules.pop("their_adapters", None)
    try:
        with pytest.raises(ConfigError, match="no name of a policy, local_policy of the adapter"):
            settings_of(tmp_path, "open")
    finally:
        sys.modules.pop("their_adapters", None)


@pytest.mark.usefixtures("plug_ins")
def test_doctor_notes_an_adapter_that_declares_no_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = InspectionReport(state=ManagerState(cpus=4))
    monkeypatch.setattr(cluster_checks, "_inspect", lambda *_: report)
    for adapter, noted in (("silent", 1), ("open", 0)):
        settings = settings_of(tmp_path, adapter, *['policy = "easy"'] * (not noted))
        findings = [*check_manager(settings.clusters[0], settings, 5.0)]
        assert [f.check for f in findings if f.kind] == ["expected starts on c"] * noted
        assert all(f.ok for f in findings)


def test_doctor_compares_processors_with_those_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 1 + (os.cpu_count() or 1)
    report = InspectionReport(state=ManagerState(cpus=many, records="accounting"))
    monkeypatch.setattr(cluster_checks, "_inspect", lambda *_: report)
    for adapter, key, over in (
        ("local", f"cpus = {many}", ["cluster-overcommitted"]),
        ("slurm", 'config = "/etc/slurm.conf"', []),
    ):
        settings = settings_of(tmp_path, adapter, key)
        findings = check_manager(settings.clusters[0], settings, 5.0)
        assert [finding.kind.id for finding in findings if finding.kind] == over


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("adapter", "keys", "config"),
    [
        ("slurm", ['config = "/etc/slurm.conf"'], "/etc/slurm.conf"),
        ("silent", ['config = "/etc/other.conf"'], None),
    ],
)
def test_only_commands_of_slurm_reach_a_cluster(
    tmp_path: Path, adapter: str, keys: list[str], config: str | None
) -> None:
    class Service:
        core = Site().core

    [entry] = settings_of(tmp_path, adapter, *keys).clusters
    entry = replace(entry, cluster=Service.core.clusters[0])
    row = _native_row(Service(), entry)  # type: ignore[arg-type]
    assert row["config"] == config


@pytest.mark.parametrize(("dialect", "seen"), [("slurm", True), ("gridengine", False)])
def test_only_scripts_of_slurm_see_an_id_in_its_variables(dialect: str, seen: bool) -> None:
    submitted: list[Submission] = []

    class Recording:
        options = None
        settle = 0.0
        cluster = Site().core.clusters[0]
        access, exclusions = "", None

        def submit(self, submission: Submission) -> dict[int, str]:
            submitted.append(submission)
            return {0: "1"}

    host = AdapterHost(cast(Adapter, Recording()))
    job = Job(id=7, submitted=0.0, estimated=60.0)
    payload = Payload(script="#!/bin/sh\ntrue\n")
    submission = Submission(tag="t", job=job, payload=payload, exports_job_id=True)
    host._submit(structs.replace(submission, dialect=dialect))
    variables = submitted[0].environment(0, "left")
    assert ("SLURM_JOB_ID" in variables) == seen
