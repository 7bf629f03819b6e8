"""`metasched reload` and SIGHUP: a changed configuration without a restart, all or nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import COMMAND, ONE_LOCAL, TWO_LOCAL, Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness.accounts import KEEPER, OPERATOR, A

THIRD = '\n[[cluster]]\nname = "third"\nadapter = "local"\ncpus = 2\npoll_interval = 0.2\n'
WITHOUT_RIGHT = TWO_LOCAL.partition('\n[[cluster]]\nname = "right"')[0]


def replayed(site: Site) -> None:
    assert {row["ok"] for row in site.json("db", "check")} == {True}


def test_policy_limits_and_clusters_change_while_a_job_runs(running: Site) -> None:
    go = running.folder / "go"
    job = running.submit("--wrap", f"while [ ! -e '{go}' ]; do sleep 0.1; done; exit 7")
    running.until(lambda: running.row(job)["state"] == "running")
    daemon = running.pid
    assert running.json("reload") == {"changes": [], "restart_needed": [], "findings": []}

    (running.folder / "policy.toml").write_text("[weights]\nuser = 2.5\n")
    changed = TWO_LOCAL.replace("cpus = 4", "cpus = 6") + THIRD + "[limits]\nqueued = 5\n"
    running.configure(changed, extra='[policy]\nfile = "policy.toml"\n')
    shown = running.run("reload").stdout
    assert 'cluster "right" cpus' in shown
    assert 'cluster "third" added' in shown
    assert "[limits] queued" in shown
    assert "restart" not in shown
    running.until(lambda: {r["state"] for r in running.cluster_rows()} == {"up"})
    assert {r["cluster"]: r["cpus"] for r in running.cluster_rows()} == {
        "left": 8,
        "right": 6,
        "third": 2,
    }
    there = running.submit("--cluster", "third", "--wrap", "true")
    assert running.until_ended(there)[0]["cluster"] == "third"
    assert "queued" in running.error("submit", "--array", "1-9", "--wrap", "true", code=3)
    assert running.row(job)["state"] == "running"
    go.touch()
    assert running.until_ended(job)[0]["exit_code"] == 7
    assert running.pid == daemon
    assert 'cluster "third" added' in running.log.read_text()
    assert running.json("doctor")  # exits with 0
    assert running.stop() == 0
    replayed(running)
    running.start()
    assert len(running.cluster_rows()) == 3


def test_a_mistake_changes_nothing(running: Site) -> None:
    before = running.config.read_text()
    running.config.write_text(before.replace("cpus = 4", 'cpus = "four"') + THIRD)
    error = running.error("reload", code=1)
    assert error == (f'cpus = "four", {running.config}, cluster "right"; write a whole number')
    assert [row["cluster"] for row in running.cluster_rows()] == ["left", "right"]
    running.config.write_text(f'{before}[policy]\nfile = "none.toml"\n')
    assert running.error("reload", code=1).startswith(f"no file {running.folder}/none.toml")
    assert running.json("clusters")
    running.config.write_text(before)
    assert running.run("reload").stdout == "nothing changed\n"


def test_a_cluster_with_tasks_is_not_removed(running: Site) -> None:
    job = running.submit("--wrap", "sleep 300", "--cluster", "right")
    running.until(lambda: running.row(job)["state"] == "running")
    running.configure(WITHOUT_RIGHT)
    error = running.error("reload", code=1)
    assert error.startswith("it is removed, but has 1 tasks and 0 reservations, ")
    assert 'cluster "right"; put it back, `metasched cluster drain right`, and wait' in error
    # the refusal has not stopped dispatches
    assert running.until_ended(running.submit("--cluster", "right", "--wrap", "true"))
    running.run("cancel", str(job))
    running.until_ended(job)
    assert 'cluster "right" removed' in running.run("reload").stdout
    assert [row["cluster"] for row in running.cluster_rows()] == ["left"]
    assert running.until_ended(running.submit("--wrap", "true"))[0]["state"] == "completed"
    assert running.stop() == 0
    replayed(running)


def test_keys_that_need_a_restart_are_named_and_the_others_change(running: Site) -> None:
    client = running._client  # at the old socket
    text = running.config.read_text().replace("ms.sock", "other.sock")
    running.config.write_text(
        text.replace("[daemon]\n", "[daemon]\nkeep = '30d'\nfirst_id = 1000\n", 1)
        + '[tcp]\nlisten = "127.0.0.1:0"\n'
    )
    answer = client.reload()
    assert answer["changes"] == ["[daemon] keep"]
    assert answer["restart_needed"] == ["[daemon] socket", "[daemon] first_id", "[tcp]"]
    assert client.health()["first_id"] == 1


def test_a_hangup_reloads_and_the_log_says_what(running: Site) -> None:
    running.config.write_text(running.config.read_text() + THIRD)
    psutil.Process(running.pid).send_signal(signal.SIGHUP)
    running.until(lambda: len(running.cluster_rows()) == 3)
    assert 'configuration reloaded by SIGHUP: changed: cluster "third" added' in (
        running.log.read_text()
    )
    text = running.config.read_text()
    running.config.write_text(text + "[deamon]\n")
    psutil.Process(running.pid).send_signal(signal.SIGHUP)
    running.until(lambda: "reload by SIGHUP refused: unknown table" in running.log.read_text())
    running.config.write_text(text)
    assert len(running.cluster_rows()) == 3


def test_a_dead_cluster_is_reported_and_refuses_nothing(running: Site) -> None:
    dead = (
        f'[[cluster]]\nname = "dead"\nadapter = "slurm"\nconfig = "{running.folder}/none.conf"\n'
        f'bin_dir = "{running.folder}"\naccess = "commands"\n'
    )
    running.config.write_text(running.config.read_text() + dead)
    checked = running.run("serve", "--check").stdout
    assert re.search("manager of dead +error", checked)
    assert re.search("manager of left +ok", checked)
    answer = running.json("reload")
    assert answer["changes"] == ['cluster "dead" added']
    assert {finding["id"] for finding in answer["findings"]} == {"cluster-unreachable"}
    [act] = running.json("events", "--kind", "configuration_changed")
    assert act["cause"] == 'cluster "dead" added'
    assert running.until_ended(running.submit("--cluster", "left", "--wrap", "true"))


def test_no_job_is_lost_or_repeated_by_reloads(running: Site) -> None:
    """Jobs are submitted and start while the configuration changes again and again."""
    record, jobs = running.folder / "ran", []
    errors: list[str] = []

    def submit() -> None:
        for _ in range(12):
            done = subprocess.run(
                [COMMAND, "submit", "--parsable", "--wrap", f"echo $METASCHED_JOB_ID >>'{record}'"],
                env=running.environment,
                cwd=running.folder,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                errors.append(done.stderr)
            else:
                jobs.append(int(done.stdout))

    thread = threading.Thread(target=submit)
    thread.start()
    cpus = 4
    while thread.is_alive():
        cpus += 1
        running.configure(TWO_LOCAL.replace("cpus = 4", f"cpus = {cpus}"))
        assert running.json("reload")["changes"] == ['cluster "right" cpus']
    thread.join()
    assert cpus > 5
    assert {row["state"] for row in running.until_ended(*jobs)} == {"completed"}
    assert sorted(map(int, record.read_text().split())) == sorted(jobs)
    for error in errors:  # a request that met the change was told so, and did nothing
        assert "takes over its changed configuration" in error
    assert running.stop() == 0
    replayed(running)


def test_a_daemon_that_is_killed_after_a_reload_has_the_new_configuration(running: Site) -> None:
    job = running.submit("--wrap", "sleep 5", "--cluster", "right")
    running.until(lambda: running.row(job)["state"] == "running")
    running.config.write_text(running.config.read_text() + THIRD)
    with subprocess.Popen([COMMAND, "reload"], env=running.environment) as reloading:
        running.until(lambda: "third" in running.log.read_text() or reloading.poll() is not None)
        running.stop(signal.SIGKILL)
    running.start()
    assert len(running.cluster_rows()) == 3
    assert running.until_ended(job)[0]["state"] == "completed"
    assert running.stop() == 0
    replayed(running)


def test_a_hangup_does_not_end_a_standby(running: Site) -> None:
    standby = subprocess.Popen([COMMAND, "serve", "--standby"], env=running.environment)
    caught = re.compile(r"^SigCgt:\s+[0-9a-f]*[13579bdf]$", re.MULTILINE)  # signal 1
    try:
        running.until(lambda: caught.search(Path(f"/proc/{standby.pid}/status").read_text()))
        standby.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            standby.wait(1)
    finally:
        standby.kill()
        standby.wait()


@pytest.mark.root
def test_only_operators_reload_and_rights_end_with_it(common_folder: Path) -> None:
    site = MultiUserSite(common_folder / "reload")
    site.set_up(ONE_LOCAL, f"[cluster.here]\n{SUPERVISE}")
    try:
        site.start()
        a, operator = site.by(A), site.by(OPERATOR)
        refusal = a.error("reload", code=3)
        assert refusal.startswith(f"only operators may reload the configuration, and you are {A}")
        text = site.config.read_text()
        assert operator.json("reload")["changes"] == []
        site.config.write_text(text.replace(f'operator_groups = ["{OPERATOR}"]', ""))
        assert operator.json("reload")["changes"] == ["[site] operator_groups"]
        assert "only operators" in operator.error("reload", code=3)
        site.config.write_text(text.replace("operator_groups", f'operators = ["{A}"]\n#'))
        assert site.by(KEEPER).json("reload")["changes"] == ["[site] operators"]
        assert a.json("reload")["changes"] == []
        acts = site.by(KEEPER).json("events", "--kind", "configuration_changed")
        assert {(act["actor"], act["cause"]) for act in acts} == {
            (OPERATOR, "[site] operator_groups"),
            (KEEPER, "[site] operators"),
        }
        assert json.loads(a.run("clusters", "--json").stdout)
        assert site.stop() == 0
    finally:
        site.close()
