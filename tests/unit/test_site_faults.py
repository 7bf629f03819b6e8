"""Site faults: the command certainly did not run, so the job is queued again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from metasched.adapters.base import Adapter, Submission
from metasched.adapters.launcher_client import LauncherClient
from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.adapters.slurm.access import SlurmOptions
from metasched.adapters.slurm.adapter import Slurm
from metasched.adapters.worker import AdapterHost
from metasched.core.events import Dispatch, DispatchSkipped, DispatchUncertain
from metasched.daemon.command_executor import _result
from metasched.model.adapter_errors import PartlySubmitted, SiteFault
from metasched.model.cluster import Cluster
from metasched.model.job import Payload
from tests.unit.core_site import job

SUBMISSION = Submission(
    tag="ms-0123abcd-1-1",
    job=job(1),
    payload=Payload(script="#!/bin/sh\n", arguments=(), directory="/", output="/dev/null"),
    indices=(0, 1),
)


class FaultyAdapter:
    access = ""
    exclusions = None
    settle = 0.0
    launcher_verbs = ("submit",)

    def submit(self, submission: Submission) -> dict[int, str]:
        raise SiteFault("no program")

    def resume_after(self, cursor: object) -> None:
        pass

    def update_licence_demand(self, rho: object) -> None:
        return None

    def poll(self) -> None:
        raise AssertionError("polled although the launcher cannot change jobs")


class FaultyLauncher:
    def check_cluster(self, verbs: tuple[str, ...]) -> None:
        raise SiteFault(f"no program for {', '.join(verbs)}")


def test_a_worker_reports_a_fault_of_the_site() -> None:
    host = AdapterHost(cast(Adapter, FaultyAdapter()), cast(LauncherClient, FaultyLauncher()))
    reply = host.execute(WorkerCall("submit", submission=SUBMISSION, owner="a"))
    assert (reply.error, reply.site_fault, reply.reason) == ("unreachable", True, "no program")
    reply = host.execute(WorkerCall("poll"))
    assert (reply.error, reply.site_fault) == ("unreachable", True)
    assert reply.reason == "no program for submit"


def test_a_dispatch_that_met_a_fault_of_the_site_is_queued_again() -> None:
    dispatch = Dispatch(cluster="alpha", job=1, dispatch_id=1, indices=(0,))
    fault = WorkerReply("unreachable", "no program", site_fault=True)
    assert isinstance(_result(dispatch, fault, only_user=True), DispatchSkipped)
    silent = WorkerReply("unreachable", "no answer")
    assert isinstance(_result(dispatch, silent, only_user=True), DispatchUncertain)


def test_a_fault_after_an_accepted_task_leaves_that_task_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the worker reported it as certainly not executed, the accepted task would run twice."""

    class Access:
        def submit(self, submission: Submission, index: int) -> str:
            if index:
                raise SiteFault("no program")
            return "17"

    options = SlurmOptions(config="/etc/slurm.conf")
    adapter = Slurm(Cluster(name="alpha", adapter="slurm"), options, "0123abcd", tmp_path)
    monkeypatch.setattr(adapter, "_access_as", lambda user: cast(Any, Access()))
    with pytest.raises(PartlySubmitted, match="no program") as error:
        adapter.submit(SUBMISSION)
    assert (error.value.native_ids, error.value.untried) == ({0: "17"}, (1,))
