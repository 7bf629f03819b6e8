"""Warnings of `doctor` about a cluster's records, its use, and webhooks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metasched.adapters.base import ManagerState, least_clock_lead
from metasched.adapters.inspection import InspectionReport
from metasched.client.site_answers import AlteredRow
from metasched.config.reading import load_settings
from metasched.config.settings import LicenceServerSettings, WebhookSettings
from metasched.daemon.doctor import cluster_checks
from metasched.daemon.doctor.checks import prevents_start, run_checks
from metasched.daemon.doctor.cluster_checks import check_licence_server, check_manager
from metasched.daemon.doctor.daemon_checks import (
    check_altered,
    check_evidence,
    check_heuristic,
    check_listing_age,
    check_local_policy,
    check_use,
    check_webhook,
)
from metasched.daemon.doctor.findings import found, passed
from metasched.daemon.doctor.launcher_checks import check_webhooks
from metasched.licence_servers.base import UsageReport
from metasched.licence_servers.process import ServerQuery

SITE = """[daemon]
database = "sqlite:///ms.db"
[[cluster]]
name = "alpha"
adapter = "slurm"
config = "/etc/slurm/slurm.conf"
[[cluster]]
name = "beta"
adapter = "slurm"
config = "/etc/slurm/slurm.conf"
fence_dir = "/scratch/claims"
"""


@pytest.mark.parametrize(
    ("cluster", "records", "state", "warned"),
    [
        ("alpha", "", "up", True),
        ("alpha", "slurmdbd", "up", False),
        ("alpha", "", "down: silent", False),
        ("here", "", "up", False),
        ("beta", "", "up", False),
        ("unknown", "", "up", False),  # the daemon reads another file
    ],
)
def test_a_manager_that_lacks_accounting_and_claims_is_reported(
    tmp_path: Path, cluster: str, records: str, state: str, warned: bool
) -> None:
    here = '[[cluster]]\nname = "here"\nadapter = "local"\ncpus = 4\n'
    (tmp_path / "metasched.toml").write_text(SITE + here)
    settings = load_settings(tmp_path / "metasched.toml")
    row = {"cluster": cluster, "records": records, "state": state}
    diagnoses = list(check_evidence(row, settings))
    assert [d.check for d in diagnoses] == (["records of alpha"] if warned else [])
    assert all("neither accounting nor claims" in d.text for d in diagnoses)


@pytest.mark.parametrize(
    ("minutes", "state", "old"),
    [(1, "up", False), (90, "up", True), (90, "down: silent", False), (90, "drained", True)],
)
def test_a_listing_that_is_old_is_reported(minutes: int, state: str, old: bool) -> None:
    listed = datetime.now(UTC) - timedelta(minutes=minutes)
    row = {"cluster": "alpha", "state": state, "listed": listed.isoformat()}
    findings = list(check_listing_age(row))
    assert [finding.kind.id for finding in findings if finding.kind] == ["listing-old"] * old
    assert all(f"listed {minutes} minutes ago" in finding.text for finding in findings)
    assert not list(check_listing_age(row | {"listed": None}))


@pytest.mark.parametrize(
    ("lead", "text"),
    [(None, ""), (1.5, ""), (100.0, "100 s ahead of this host"), (-7.0, "7 s behind this host")],
)
def test_the_clock_of_a_controller_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lead: float | None, text: str
) -> None:
    (tmp_path / "metasched.toml").write_text(SITE)
    settings = load_settings(tmp_path / "metasched.toml")
    state = ManagerState(cpus=4, records="slurmdbd", clock_lead=lead)
    report = InspectionReport(state=state)
    monkeypatch.setattr(cluster_checks, "_inspect", lambda *_: report)
    findings = {each.check: each for each in check_manager(settings.clusters[0], settings, 5.0)}
    assert findings["manager of alpha"].ok
    assert findings["controller of alpha"].text.endswith(text) if text else len(findings) == 1


@pytest.mark.parametrize(
    ("reported", "asked_at", "answered_at", "lead"),
    [
        (100.0, 100.9, 101.0, 0.0),  # it was 100.95
        (100.0, 99.0, 105.0, 0.0),  # a slow answer
        (110.0, 99.0, 105.0, 5.0),
        (90.0, 99.0, 105.0, -8.0),
        (105.5, 99.0, 105.0, 0.5),
    ],
)
def test_the_delay_of_an_answer_is_no_difference_of_clocks(
    reported: float, asked_at: float, answered_at: float, lead: float
) -> None:
    assert least_clock_lead(reported, asked_at, answered_at) == lead


def test_a_file_of_completions_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "metasched.toml").write_text(SITE)
    settings = load_settings(tmp_path / "metasched.toml")
    row = {
        "cluster": "beta",
        "records": "jobcomp/filetxt, by id",
        "state": "up",
    }
    [diagnosis] = check_evidence(row, settings)
    assert "any account can write lines of others" in diagnosis.text


CALM = {"failures": 0, "since": None, "words": ""}
FAILING = {"failures": 3, "since": "2026-01-01T00:00:00Z", "words": "sacct: no"}


@pytest.mark.parametrize(
    ("shares_from", "source", "use", "shares", "ok", "text"),
    [
        ("", "sacct", CALM, CALM, True, "sacct, use until"),
        ("", "sacct", FAILING, CALM, False, "no use since 2026-01-01T00:00:00Z: sacct: no"),
        ("alpha", "sacct", CALM, FAILING, False, "no shares since"),
        ("", "", CALM, CALM, True, "only jobs of metasched count"),
        ("alpha", "", CALM, CALM, False, "it reports no shares"),
    ],
)
def test_with_fair_share_the_accounting_of_a_cluster_is_checked(
    tmp_path: Path,
    shares_from: str,
    source: str,
    use: dict[str, object],
    shares: dict[str, object],
    ok: bool,
    text: str,
) -> None:
    key = f'shares_from = "{shares_from}"' if shares_from else ""
    (tmp_path / "metasched.toml").write_text(f"{SITE}[fair_share]\n{key}\n")
    settings = load_settings(tmp_path / "metasched.toml")
    row = {
        "cluster": "alpha",
        "state": "up",
        "use": {"source": source, "until": None, "breaker": use, "shares": shares},
    }
    [diagnosis] = check_use(row, settings)
    assert diagnosis.ok is ok
    assert text in diagnosis.text
    assert ok or diagnosis.fix
    assert list(check_use({**row, "state": "down: silent"}, settings)) == []
    (tmp_path / "metasched.toml").write_text(SITE)
    assert list(check_use(row, load_settings(tmp_path / "metasched.toml"))) == []


def test_a_folder_of_claims_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "usable").mkdir(mode=0o711)
    tables = [
        f'[[cluster]]\nname = "{name}"\nadapter = "slurm"\nconfig = "/etc/slurm.conf"\n'
        f'fence_dir = "{tmp_path / name}"\n'
        for name in ("usable", "missing")
    ]
    config = tmp_path / "metasched.toml"
    config.write_text('[daemon]\ndatabase = "sqlite:///ms.db"\n' + "".join(tables))
    checks = {diagnosis.check: diagnosis for diagnosis in run_checks(config)}
    assert checks["claims of usable"].ok
    assert not checks["claims of missing"].ok
    assert str(tmp_path / "missing") in checks["claims of missing"].text
    assert checks["claims of missing"].fix


@pytest.mark.parametrize("timeout", [0.5, 1.0, 3.5, 600.0])
def test_most_of_the_time_of_a_check_is_that_of_the_licence_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, timeout: float
) -> None:
    (tmp_path / "metasched.toml").write_text(SITE)
    settings = load_settings(tmp_path / "metasched.toml")
    limits: list[tuple[float, float]] = []

    async def query_server(query: ServerQuery, grace: float) -> UsageReport:
        limits.append((query.timeout, query.timeout + grace))
        return UsageReport((), ())

    monkeypatch.setattr(cluster_checks, "query_server", query_server)
    server = LicenceServerSettings("flex", "text", {}, 60.0, 600.0, {})
    assert [finding.severity for finding in check_licence_server(server, settings, timeout)] == [
        "ok"
    ]
    [(limit, end)] = limits
    assert timeout / 2 < limit < end < timeout


def test_a_webhook_whose_receiver_does_not_confirm_is_a_warning() -> None:
    row = {"name": "ops", "waiting": 3, "failures": 0, "last_error": "", "next_try": None}
    assert check_webhook(row) == passed("webhook ops", "3 groups of events wait")
    failing = row | {"failures": 2, "last_error": "it answered 500", "next_try": "2026-01-01"}
    finding = check_webhook(failing)
    assert finding.kind is not None
    assert (finding.kind.id, finding.kind.severity) == ("webhook-failed", "warning")
    assert finding.text == "it answered 500; 3 groups of events wait, next try 2026-01-01"


def test_a_heuristic_without_part_in_decisions_is_a_warning() -> None:
    row = {"table": "placement", "heuristic": "quiet", "problem": "", "excluded": 0}
    assert check_heuristic(row) == passed("heuristic quiet", "[placement.quiet] is asked")
    for failing, text in (
        (row | {"problem": "no answer within 2 s"}, "no answer within 2 s"),
        (row | {"excluded": 7}, "excluded for 7 jobs since the start; the log has reasons"),
    ):
        finding = check_heuristic(failing)
        assert finding.kind is not None
        assert (finding.kind.id, finding.kind.severity) == ("heuristic-excluded", "warning")
        assert finding.text == text


def test_a_local_policy_that_fails_is_a_warning() -> None:
    fine = {"excluded": False, "excluded_passes": 0}
    for policy in (None, fine):
        assert not [*check_local_policy({"cluster": "here", "local_policy": policy})]
    for excluded, end in ((False, "daemon"), (True, "daemon, and still does")):
        row = {"excluded": excluded, "excluded_passes": 7}
        [finding] = check_local_policy({"cluster": "here", "local_policy": row})
        assert finding.kind is not None
        assert (finding.kind.id, finding.kind.severity) == ("local-policy-excluded", "warning")
        assert finding.text.startswith("FCFS decided 7 passes in its place")
        assert finding.text.endswith(end)


@pytest.mark.parametrize(("kind", "finding_id"), [("tag", "job-altered"), ("copy", "tag-copied")])
def test_what_a_cluster_changes_in_jobs_is_a_warning(kind: str, finding_id: str) -> None:
    row: AlteredRow = {"cluster": "a", "kind": kind, "jobs": 3, "first": "job 7 was changed"}
    finding = check_altered(row)
    assert finding.kind is not None
    assert (finding.kind.id, finding.kind.severity) == (finding_id, "warning")
    assert "3 jobs" in finding.text
    assert finding.text.endswith("job 7 was changed")


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_the_secret_of_a_webhook_is_checked(tmp_path: Path, mode: int) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"whsec_{'A' * 44}\n")
    secret.chmod(mode)
    hook = WebhookSettings("ops", "https://h/", secret, frozenset(), False)
    settings = replace(load_settings(None), webhooks=(hook,))
    [finding] = check_webhooks(settings)
    assert finding.ok is (mode == 0o600)
    assert finding.check == "secret of webhook ops"


@pytest.mark.parametrize("kind", ["check-timeout", "check-failed"])
def test_a_check_without_a_result_prevents_a_start_that_needs_its_subject(kind: str) -> None:
    assert prevents_start(found(kind, "database", "no result"))
    assert not prevents_start(found(kind, "manager of alpha", "no result"))
