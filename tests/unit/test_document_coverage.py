"""Completeness of the documents: every key, command, state and reason must appear."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from metasched.adapters.drmaa_cluster import DrmaaOptions
from metasched.adapters.local.adapter import LocalOptions
from metasched.adapters.slurm.adapter import SlurmOptions
from metasched.cli.app import COMMANDS
from metasched.config.tables import (
    CalendarTable,
    ClusterTable,
    ConfigFile,
    DaemonTable,
    LicenceServerTable,
    LicenceTable,
    MailTable,
    PolicyTable,
    ReservationsTable,
    SiteTable,
    TcpTable,
    UserClassTable,
    WebhookTable,
    WebTable,
)
from metasched.laboratory.experiments.federation_file import FederationSiteTable, FederationTable
from metasched.laboratory.simulate.settings import GENERATORS
from metasched.laboratory.simulate.workload import Overlay
from metasched.licence_servers.command import CommandOptions
from metasched.licence_servers.flexlm import FlexlmOptions
from metasched.model.job import Reason, State
from metasched.model.reservation import ReservationState
from metasched.policies.local import registry as named
from metasched.policies.policy import Policy

ROOT = Path(__file__).parents[2]
USER, POLICY, README = (
    (ROOT / name).read_text() for name in ("docs/user.md", "docs/policy.md", "README.md")
)
ADMIN = "".join(page.read_text() for page in sorted((ROOT / "docs/admin").glob("*.md")))


@pytest.mark.parametrize(
    "table",
    [
        *(DaemonTable, SiteTable, TcpTable, PolicyTable, UserClassTable, ClusterTable),
        *(LicenceTable, LicenceServerTable, ReservationsTable, ConfigFile, CalendarTable),
        *(MailTable, WebhookTable, WebTable),
    ],
)
def test_every_key_of_the_configuration(table: type[ConfigFile]) -> None:
    for key in table.model_fields:
        assert f"`{key}`" in ADMIN or f"[{key}]" in ADMIN, key


@pytest.mark.parametrize(
    "options", [LocalOptions, SlurmOptions, DrmaaOptions, FlexlmOptions, CommandOptions]
)
def test_every_key_of_what_is_plugged_in(options: type[LocalOptions]) -> None:
    for field in fields(options):
        assert f"`{field.name}`" in ADMIN, field.name


def test_every_key_of_the_policy() -> None:
    for field in fields(Policy):
        assert f"`{field.name}`" in POLICY or f"[{field.name}]" in POLICY, field.name


def test_every_key_of_a_federation() -> None:
    for table in (FederationTable, FederationSiteTable):
        for key in table.model_fields:
            assert f"`{key}`" in POLICY or f"[[{key}]]" in POLICY, key


def test_every_command_state_and_reason() -> None:
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", USER + ADMIN + POLICY), name
    for state in State:
        if state not in (State.NODE_FAIL, State.PREEMPTED, State.OUT_OF_MEMORY):
            assert f"`{state}`" in USER, state
    for reason in Reason:
        assert f"`{reason}`" in USER, reason
    for stage in ReservationState:
        assert f"`{stage}`" in USER, stage


def test_every_local_policy_its_parameters_and_the_rules_of_simulate() -> None:
    names = {*named.POLICIES, *(p for own in named.PARAMETERS.values() for p in own)}
    names |= {field.name for field in fields(Overlay)} | set(GENERATORS)
    for name in names:
        assert f"`{name}`" in POLICY, name
