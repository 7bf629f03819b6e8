"""Site mode: one daemon serves all users and acts as the owner of each job."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

import metasched
from tests.e2e.multi_user_site import (
    SUPERVISE,
    MultiUserSite,
    running_site,
    site_over_gridengine,
    site_over_slurm,
)
from tests.harness import accounts
from tests.harness.accounts import KEEPER, OPERATOR, A, B
from tests.harness.gridengine import GROUPS, Cell
from tests.harness.slurm import SlurmSite

pytestmark = pytest.mark.root

LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
LICENCE = '[[licence]]\nname = "matlab"\ntotal = 1\n'
DROP_INS = Path(metasched.__file__).parent / "drop_in/slurm"
WHO = "#!/bin/sh\nid -u; id -g; id -G; umask; pwd; echo $0\n"


def check_identity(site: MultiUserSite, account: str, **options: str) -> None:
    """Assert that a job's process and output have the owner's ids, groups and umask."""
    user = site.by(account)
    home = site.folder / account
    (home / "who.sh").write_text(WHO)
    arguments = [argument for key, value in options.items() for argument in (f"--{key}", value)]
    before = os.umask(0o027)
    try:
        job = user.submit(*arguments, "-o", "out", "-t", "5", home / "who.sh")
    finally:
        os.umask(before)
    [row] = user.until_ended(job)
    assert (row["state"], row["user"]) == ("completed", account), user.run("story", str(job)).stdout
    owner = pwd.getpwnam(account)
    file_status = (home / "out").stat()
    assert (file_status.st_uid, file_status.st_gid, file_status.st_mode & 0o777) == (
        owner.pw_uid,
        owner.pw_gid,
        0o640,
    )
    uid, gid, groups, umask, directory, _ = (home / "out").read_text().splitlines()
    assert (uid, gid, umask) == (str(owner.pw_uid), str(owner.pw_gid), "0027")
    expected = set(os.getgrouplist(account, owner.pw_gid))
    # a manager may mark a job's processes by an additional group
    assert expected <= set(map(int, groups.split())) <= expected | set(GROUPS)
    assert directory == str(home)


def check_cancel(site: MultiUserSite, **options: str) -> None:
    """Assert that another user can neither see nor change a job, and an operator can."""
    arguments = [argument for key, value in options.items() for argument in (f"--{key}", value)]
    a, b = site.by(A), site.by(B)
    job = a.submit(*arguments, "-t", "5", "-o", "/dev/null", "--wrap", "sleep 600")
    a.until(lambda: a.row(job)["state"] == "running")
    for command in ("cancel", "hold", "status", "story", "explain", "output", "wait"):
        # the error for an unknown job, which hides the owner
        refusal, unknown = b.error(command, str(job), code=5), b.error(command, "999999", code=5)
        assert refusal == unknown.replace("999999", str(job)), command
    assert "operators" in b.error("resolve", str(job), "lost", code=3)
    assert a.row(job)["state"] == "running"
    site.by(OPERATOR).run("cancel", str(job))
    assert a.until_ended(job)[0]["state"] == "cancelled"


@pytest.fixture(scope="module")
def local(common_folder: Path) -> Iterator[MultiUserSite]:
    folder, tables = common_folder / "local", LICENCE + LOCAL
    deny = f'deny = ["{accounts.KEEPER}"]\n'
    with running_site(folder, tables, f"[cluster.left]\n{SUPERVISE}", deny) as site:
        yield site


def test_jobs_are_their_owners_on_local(local: MultiUserSite) -> None:
    check_identity(local, A)
    check_identity(local, B)


def test_only_owner_and_operator_change_a_job_on_local(local: MultiUserSite) -> None:
    check_cancel(local)


def test_users_see_their_own_jobs_and_operators_all(local: MultiUserSite) -> None:
    a, b = local.by(A), local.by(B)
    jobs = {
        user: site.submit("-o", "/dev/null", "--wrap", "true") for user, site in ((A, a), (B, b))
    }
    a.until_ended(jobs[A])
    b.until_ended(jobs[B])
    assert {row["user"] for row in a.json("status", "--all")} == {A}
    assert B in a.error("status", "--user", B, code=3)
    for operator in (local, local.by(OPERATOR)):  # root is an operator, too
        assert {A, B} <= {row["user"] for row in operator.json("status", "--all")}
    assert a.run("cancel", "--state", "completed", "--json").stdout.strip() == "[]"


def test_licences_are_set_by_operators_and_holders_shown_by_permission(
    local: MultiUserSite,
) -> None:
    a, b, operator = local.by(A), local.by(B), local.by(OPERATOR)
    arguments = ("-L", "matlab", "-t", "5", "-o", "/dev/null", "--wrap")
    holder = a.submit(*arguments, "sleep 600")
    a.until(lambda: a.row(holder)["state"] == "running")
    waiting = b.submit(*arguments, "true")
    explanation = b.json("explain", str(waiting))
    [holds] = explanation["licences"][0]["holders"]
    assert (holds["job"], holds["user"], holds["count"]) == (None, None, 1)
    assert holds["expected"]
    assert (
        f"1 of matlab with another user's job, expected back at {holds['expected']}"
        in explanation["text"]
    )
    assert A not in json.dumps(explanation)
    assert f"with job {holder} of {A}" in operator.json("explain", str(waiting))["text"]
    for command in (("set", "matlab", "9"), ("release", str(holder))):
        assert "operators" in b.error("licence", *command, code=3), command
    assert local.json("licences")[0]["total"] == 1
    [note] = operator.json("licence", "release", str(holder))
    assert "only unknown jobs can lose their licences" in note["note"]
    operator.run("licence", "set", "matlab", "2")
    assert b.until_ended(waiting)[0]["state"] == "completed"
    operator.run("licence", "set", "matlab", "configured")
    a.run("cancel", str(holder))
    a.until_ended(holder)


def test_a_directory_that_is_closed_to_the_user_is_refused(local: MultiUserSite) -> None:
    a = local.by(A)
    local.by(B)
    before = len(local.json("status", "--all"))
    message = a.error("submit", "--chdir", local.folder / B, "--wrap", "true", code=3)
    assert message.startswith(f"directory {local.folder / B}: Permission denied; ")
    assert len(local.json("status", "--all")) == before


def test_root_may_have_no_jobs(local: MultiUserSite) -> None:
    assert "user id 0 may not have jobs here" in local.error("submit", "--wrap", "true", code=3)


def test_a_user_who_spoils_a_jobs_folder_harms_no_other_user(local: MultiUserSite) -> None:
    a, b = local.by(A), local.by(B)
    job = a.submit("-o", "/dev/null", "--wrap", "sleep 600")
    a.until(lambda: a.row(job)["state"] == "running")
    jobs = local.state / "metasched.clusters" / "left" / "jobs"
    spoil = (
        "pid=$(sed -n s/^pid=//p claim); kill -STOP $pid; rm claim; mkdir claim ended keep;"
        "touch keep/it; chmod 0 keep; ln -s ../../../../metasched.db spec.draft;"
        "echo mine > spec && exit 1; rm -f spec && exit 1; kill -KILL $pid"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", spoil],
        capture_output=True,
        text=True,
        **{**accounts.as_(A), "cwd": jobs / a.row(job)["native_id"]},
    )
    assert done.returncode == 0, done
    [row] = a.until_ended(job)
    assert row["state"] == "failed"
    assert b.until_ended(b.submit("-o", "/dev/null", "--wrap", "true"))[0]["state"] == "completed"
    again = local.by(A).submit("-o", "/dev/null", "--wrap", "sleep 600")
    a.until(lambda: a.row(again)["state"] == "running")
    a.run("cancel", str(again))
    assert a.until_ended(again)[0]["state"] == "cancelled"


def test_the_doctor_asks_the_launcher(local: MultiUserSite) -> None:
    findings = {finding["check"]: finding for finding in local.by(KEEPER).json("doctor")}
    assert findings["launcher"]["ok"]
    by_root = json.loads(local.run("doctor", "--json", code=1).stdout)
    [wrong] = [finding for finding in by_root if not finding["ok"]]
    assert (wrong["check"], "daemon's account" in wrong["mend"]) == ("launcher", True)


def test_the_daemon_is_not_root(local: MultiUserSite) -> None:
    assert "start it by its own account" in local.error("serve", code=2)


def test_jobs_outlive_launcher_and_daemon(common_folder: Path) -> None:
    site = MultiUserSite(common_folder / "outlive")
    site.set_up(LOCAL, f"[cluster.left]\n{SUPERVISE}")
    try:
        site.start()
        a = site.by(A)
        go = site.folder / A / "go"
        job = a.submit(
            "-o", "out", "--wrap", f"until test -e {go}; do sleep 0.1; done; echo done; exit 7"
        )
        a.until(lambda: a.row(job)["state"] == "running")
        site.stop()
        site.launcher.kill()
        go.touch()
        go.chmod(0o644)
        site.set_up(LOCAL, f"[cluster.left]\n{SUPERVISE}")
        site.start()
        [row] = a.until_ended(job)
        assert (row["state"], row["exit_code"]) == ("failed", 7)
        assert (site.folder / A / "out").read_text() == "done\n"
        site.stop()
        site.replayed()
    finally:
        site.close()


def test_a_large_array_of_one_user_leaves_room_for_another(common_folder: Path) -> None:
    """5 tasks wait in the cluster before b's job, not 1,000."""
    tables = f"{LOCAL}queue_depth = 5\n"
    with running_site(common_folder / "turns", tables, f"[cluster.left]\n{SUPERVISE}") as site:
        a, b = site.by(A), site.by(B)
        array = a.submit("-o", "/dev/null", "--array", "1-1000", "--wrap", "sleep 0.2")
        explained = a.run("explain", f"{array}_1000").stdout
        assert "it follows in turn when tasks that wait there have started" in explained
        [ended] = b.until_ended(b.submit("-o", "/dev/null", "--wrap", "true"))
        assert ended["state"] == "completed"
        states = Counter(row["state"] for row in a.rows(array))
        assert states["dispatching"] + states["pending"] <= 5
        assert states["queued"] > 0
        a.run("cancel", str(array))


def test_shares_details_and_waiting_tasks_are_their_owners(common_folder: Path) -> None:
    tables = f"{LOCAL}[fair_share]\nusers = {{ {A} = 2, {B} = 1 }}\n"
    with running_site(common_folder / "shares", tables, f"[cluster.left]\n{SUPERVISE}") as site:
        a, b = site.by(A), site.by(B)
        array = a.submit("--hold", "--array", "1-5000", "-o", "/dev/null", "--wrap", "true")
        own = b.submit("--hold", "-o", "/dev/null", "--wrap", "true")
        [shares] = b.json("shares")
        assert (shares["user"], shares["weight"]) == (B, 1)
        assert f"shares of {A}" in b.error("shares", "--user", A, code=3)
        operator = site.by(OPERATOR)
        assert {row["user"] for row in operator.json("shares")} >= {A, B}
        # waiting tasks of the array have no rows of their own
        for name in (array, f"{array}_5000", f"{array}_[2-7]"):
            for command in ("status", "cancel", "hold", "release"):
                assert b.error(command, str(name), code=5).startswith(f"no job {array}")
        assert [row["job"] for row in b.json("status")] == [own]
        b.run("cancel", "--state", "held")
        assert operator.row(own)["state"] == "cancelled"
        assert {row["state"] for row in a.rows(array)} == {"held"}
        listed = subprocess.run(
            [DROP_INS / "squeue", "-h", "-r", "-o", "%u"],
            env=b.environment,
            capture_output=True,
            text=True,
            check=True,
            **b.caller,
        )
        assert listed.stdout == ""
        arguments = ["--parsable", "-D", "/", "-o", "/dev/null", "-H", "--wrap", "true"]
        for target, message in ((array, f"no job {array} of yours to wait for"), (own, "")):
            submitted = subprocess.run(
                [DROP_INS / "sbatch", "-d", f"afterok:{target}", *arguments],
                env=b.environment,
                capture_output=True,
                text=True,
                check=False,
                **b.caller,
            )
            assert message in submitted.stderr
        assert operator.row(int(submitted.stdout))["user"] == B
        a.run("cancel", str(array))
        assert Counter(row["state"] for row in a.rows(array)) == {"cancelled": 5000}


@pytest.fixture(scope="module")
def over_slurm(common_folder: Path, slurm_site: SlurmSite) -> Iterator[MultiUserSite]:
    with site_over_slurm(common_folder / "over-slurm", slurm_site["beta"]) as site:
        yield site


@pytest.mark.slow("boots a site over Slurm, on which 20 commands act on two jobs")
def test_jobs_are_their_owners_on_slurm(over_slurm: MultiUserSite) -> None:
    check_identity(over_slurm, A)
    check_cancel(over_slurm)


def test_a_user_can_neither_hide_nor_steal_anothers_job_by_its_tag(
    over_slurm: MultiUserSite, slurm_site: SlurmSite
) -> None:
    cluster, a, b = slurm_site["beta"], over_slurm.by(A), over_slurm.by(B)
    job = a.submit("-t", "5", "-o", "/dev/null", "--wrap", "sleep 600")
    a.until(lambda: a.row(job)["state"] == "running")
    native = a.row(job)["native_id"]
    tag = cluster.run("squeue", "-h", "-j", native, "-O", "comment:100").strip()
    fake = subprocess.run(
        [
            "/usr/bin/sbatch",
            "--parsable",
            f"--comment={tag}",
            "-o",
            "/dev/null",
            "--wrap",
            "exit 3",
        ],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=True,
        **accounts.as_(B),
    ).stdout.strip()

    def ended() -> bool:
        return (
            cluster.run("squeue", "-h", "-t", "all", "-j", fake, "-O", "state").strip() == "FAILED"
        )

    a.until(ended)
    # a listing with the end of this job has the end of the forged job, too
    other = b.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
    b.until_ended(other)
    assert a.row(job)["state"] == "running"
    assert a.row(job)["native_id"] == native
    a.run("cancel", str(job))
    assert a.until_ended(job)[0]["state"] == "cancelled"


def test_no_account_can_forge_a_tag_from_the_future(
    over_slurm: MultiUserSite, slurm_site: SlurmSite
) -> None:
    """Such a tag would prove that the database went back, and hold the whole site."""
    cluster, a = slurm_site["beta"], over_slurm.by(A)
    job = a.submit("-t", "5", "-o", "/dev/null", "--wrap", "sleep 600")
    a.until(lambda: a.row(job)["state"] == "running")
    native, instance = a.row(job)["native_id"], over_slurm.instance
    tag = cluster.run("squeue", "-h", "-j", native, "-O", "comment:100").strip()
    *parts, dispatch, digest = tag.split("-")
    later, unknown = str(int(dispatch) + 1), f"ms-{instance}-{job + 1000}-1"
    name = "-".join(parts)
    forged = (
        *(f"{name}-{later}", f"{name}-{later}-{digest}"),
        *(unknown, f"{unknown}-{digest}", f"{unknown}-{'a' * 12}/7"),
    )
    for account in (A, B):
        for text in forged:
            subprocess.run(
                ["/usr/bin/sbatch", "-H", f"--comment={text}", "-o", "/dev/null", "--wrap=true"],
                env=cluster.environment,
                capture_output=True,
                check=True,
                **accounts.as_(account),
            )
    a.until(lambda: "looks like a tag" in over_slurm.log.read_text())
    other = a.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
    a.until_ended(other)
    assert over_slurm.instance == instance
    assert over_slurm.log.read_text().count("looks like a tag") == 1
    assert a.row(job)["state"] == "running"
    a.run("cancel", str(job))
    a.until_ended(job)
    for account in (A, B):
        cluster.run("scancel", "-u", account)


def test_tags_that_users_move_change_no_job_of_anybody(
    over_slurm: MultiUserSite, slurm_site: SlurmSite
) -> None:
    """A gives his jobs each other's tag, or none; B puts a tag of A on his own job."""
    cluster, a, b = slurm_site["beta"], over_slurm.by(A), over_slurm.by(B)
    users = (a, a, a, b)
    jobs = [u.submit("-t", "5", "-o", "/dev/null", "--wrap", "sleep 600") for u in users]

    def states() -> list[str]:
        return [u.row(j)["state"] for u, j in zip(users, jobs, strict=True)]

    a.until(lambda: states() == ["running"] * 4)
    natives = [u.row(j)["native_id"] for u, j in zip(users, jobs, strict=True)]

    def comment(native: str) -> str:
        return cluster.run("squeue", "-h", "-j", native, "-O", "comment:100").strip()

    tags = [comment(native) for native in natives]
    texts = (tags[1], tags[0], "", tags[0])
    for user, native, text in zip((A, A, A, B), natives, texts, strict=True):
        subprocess.run(
            ["/usr/bin/scontrol", "update", f"job={native}", f"comment={text}"],
            env=cluster.environment,
            check=True,
            **accounts.as_(user),
        )
    probe = b.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
    b.until_ended(probe)  # so the cluster was listed since
    assert states() == ["running"] * 4
    a.run("cancel", str(jobs[0]))
    a.until(lambda: states() == ["cancelled", "running", "running", "running"])
    for native in natives[1:]:
        assert cluster.run("squeue", "-h", "-j", native, "-O", "state").strip() == "RUNNING"
    a.run("cancel", str(jobs[2]))
    b.run("cancel", str(jobs[3]))
    a.until(lambda: states() == ["cancelled", "running", "cancelled", "cancelled"])
    assert cluster.run("squeue", "-h", "-j", natives[1], "-O", "state").strip() == "RUNNING"
    a.run("cancel", str(jobs[1]))
    assert a.until_ended(jobs[1])[0]["state"] == "cancelled"


def test_hold_and_move_are_done_as_the_owner_on_slurm(over_slurm: MultiUserSite) -> None:
    a = over_slurm.by(A)
    full = a.submit("-n", "24", "-t", "5", "-o", "/dev/null", "--wrap", "sleep 600")
    a.until(lambda: a.row(full)["state"] == "running")
    waiting = a.submit("-n", "8", "-t", "5", "-o", "/dev/null", "--wrap", "true")
    a.until(lambda: a.row(waiting)["state"] == "pending")
    a.run("hold", str(waiting))
    a.until(lambda: a.row(waiting)["state"] == "held")
    a.run("cancel", str(full))
    a.run("release", str(waiting))
    assert a.until_ended(waiting)[0]["state"] == "completed"


def test_an_array_is_its_owners_on_slurm(over_slurm: MultiUserSite) -> None:
    a = over_slurm.by(A)
    job = a.submit("--array", "1-3", "-t", "5", "-o", "task-%a", "--wrap", "id -un")
    assert {row["state"] for row in a.until_ended(job)} == {"completed"}
    text = [(over_slurm.folder / A / f"task-{task}").read_text() for task in (1, 2, 3)]
    assert text == [f"{A}\n"] * 3
    waiting = a.submit(
        *("--array", "1-4", "-n", "24", "-t", "5", "-o", "/dev/null", "--wrap", "sleep 600")
    )
    a.until(lambda: "running" in {row["state"] for row in a.json("status", str(waiting))})
    assert f"no job {waiting}_2" in over_slurm.by(B).error("cancel", f"{waiting}_2", code=5)
    a.run("cancel", str(waiting))
    assert {row["state"] for row in a.until_ended(waiting)} == {"cancelled"}


def test_native_options_do_not_escape(over_slurm: MultiUserSite) -> None:
    a = over_slurm.by(A)
    jobs = [
        a.submit("-t", "5", "-o", f"{name}.out", "--native", f"beta:{arguments}", "--wrap", "id -u")
        for name, arguments in (
            ("uid", "--uid=0"),
            ("chdir", "-D /"),
            ("script", "--exclusive /tmp/other.sh"),
            ("program", "/bin/sh"),
            ("output", "--output=/tmp/elsewhere"),
        )
    ]
    assert {row["state"] for row in a.until_ended(*jobs)} == {"rejected"}
    assert list((over_slurm.folder / A).glob("*.out")) == []


@pytest.fixture(scope="module")
def over_gridengine(common_folder: Path, gridengine_cell: Cell) -> Iterator[MultiUserSite]:
    cell = gridengine_cell
    cell.run("qconf", "-au", accounts.KEEPER, "arusers")
    try:
        mapped = 'map.account = { "*" = "*" }\n'
        with site_over_gridengine(common_folder / "over-gridengine", cell, mapped) as site:
            yield site
    finally:
        cell.run("qconf", "-du", accounts.KEEPER, "arusers")


@pytest.mark.slow("boots a site over Grid Engine, on which 20 commands act on two jobs")
def test_jobs_are_their_owners_on_gridengine(over_gridengine: MultiUserSite) -> None:
    check_identity(over_gridengine, A)
    check_cancel(over_gridengine)


def test_the_use_of_two_accounts_is_that_of_qacct(
    over_gridengine: MultiUserSite, gridengine_cell: Cell
) -> None:
    """qacct may round each run to whole seconds."""
    project = over_gridengine.folder / "project"
    project.write_text("name audited\noticket 0\nfshare 0\nacl NONE\nxacl NONE\n")
    gridengine_cell.run("qconf", "-Aprj", str(project))
    a, b = over_gridengine.by(A), over_gridengine.by(B)
    audited = ("-A", "audited", "-t", "1", "-o", "/dev/null")
    wide = a.submit("-n", "3", *audited, "--wrap", "sleep 2")
    failed = b.submit(*audited, "--wrap", "sleep 1; exit 3")
    array = b.submit("--array", "1-2", *audited, "--wrap", "sleep 1")
    try:
        over_gridengine.until_ended(wide, failed, array)
    finally:
        gridengine_cell.run("qconf", "-dprj", "audited")
    rows = over_gridengine.json(
        *("report", "use", "--by", "user,cluster", "--account", "audited"),
        *("--since", "2d", "--until", (date.today() + timedelta(days=1)).isoformat()),
    )["rows"]
    assert {row["cluster"] for row in rows} == {gridengine_cell.name}
    figures = {row["user"]: row for row in rows}
    for user, runs, slots in ((A, 1, 3), (B, 3, 1)):
        listed = gridengine_cell.run("qacct", "-P", "audited", "-o", user, "-j")
        records = re.findall(r"(?m)^slots +(\d+)[^=]*?^ru_wallclock +(\d+)", listed)
        assert {int(count) for count, _ in records} == {slots}
        assert figures[user]["jobs"] == len(records) == runs
        accounted = sum(int(count) * int(seconds) for count, seconds in records)
        assert accounted >= 3
        assert figures[user]["cpu_seconds"] == pytest.approx(accounted, abs=runs * slots)
    assert (figures[A]["completed"], figures[B]["completed"], figures[B]["failed"]) == (1, 2, 1)


def test_an_option_that_qsub_does_not_know_is_refused(over_gridengine: MultiUserSite) -> None:
    a = over_gridengine.by(A)
    job = a.submit("--native", "cell:--comment=x", "-o", "/dev/null", "--wrap", "true")
    assert a.until_ended(job)[0]["state"] == "rejected"
    assert "invalid option argument" in a.run("story", str(job)).stdout


def test_the_doctor_reports_that_every_account_can_read_job_scripts(
    over_gridengine: MultiUserSite, gridengine_cell: Cell
) -> None:
    folder = gridengine_cell.script_folder
    mode = folder.stat().st_mode & 0o777
    try:
        folder.chmod(0o755)
        shown = over_gridengine.run_beside_daemon("doctor", "--json", "--timeout", "60", code=1)
        findings = json.loads(shown.stdout)
        check = f"manager of {gridengine_cell.name}"
        [finding] = [finding for finding in findings if finding["check"] == check]
        assert finding["id"] == "cluster-manager"
        assert finding["text"] == f"every account can read the scripts of jobs, {folder}"
        assert finding["mend"] == f"chmod 700 {folder}"
        folder.chmod(0o700)
        shown = over_gridengine.run_beside_daemon("doctor", "--json", "--timeout", "60")
        [finding] = [row for row in json.loads(shown.stdout) if row["check"] == check]
        assert finding["severity"] == "ok"
        assert re.fullmatch(r"\d+ usable processors, release \w+ [\d.]+", finding["text"])
        a = over_gridengine.by(A)
        job = a.submit("-t", "1", "-o", "/dev/null", "--wrap", "true")
        assert a.until_ended(job)[0]["state"] == "completed"
    finally:
        folder.chmod(mode)


def test_a_reservation_is_its_owners_and_operators_alone(
    over_gridengine: MultiUserSite, gridengine_cell: Cell
) -> None:
    """The daemon creates it in Grid Engine; jobs in it run as the owner."""
    a, b, operator = (over_gridengine.by(account) for account in (A, B, OPERATOR))
    reservation = a.json("reserve", "--size", "2", "--duration", "5m")
    id = str(reservation["reservation"])
    assert (reservation["user"], reservation["cluster"]) == (A, gridengine_cell.name)
    job = a.submit("--reservation", id, "-t", "1", "-o", "inside", "--wrap", "id -un")
    expected = f"no reservation {id}; see"  # as for an id that does not exist
    assert expected in b.error("submit", "--reservation", id, "--wrap", "true", code=5)
    assert expected in b.error("reservation", "cancel", id, code=5)
    assert f"no job {job}" in b.error("modify", str(job), "--time", "2", code=5)
    assert b.json("reservations", "--all") == []
    assert {row["user"] for row in b.json("status", "--all")} <= {B}
    assert [row["reservation"] for row in operator.json("reservations")] == [int(id)]
    for_user = ("reserve", "--size", "1", "--start", "+1h", "--duration", "5m", "--user")
    expected = b.error(*for_user, A, code=3)
    assert expected == f"only operators may reserve for others, and you are {B}; ask one of them"
    assert "there is no account 'nobody-here'" in operator.error(*for_user, "nobody-here", code=5)
    second = operator.json(*for_user, A)
    assert (second["user"], second["state"]) == (A, "bound")
    assert a.json("reservation", "cancel", str(second["reservation"]))["state"] == "cancelled"
    assert a.until_ended(job)[0]["state"] == "completed"
    assert (over_gridengine.folder / A / "inside").read_text() == f"{A}\n"
    native = a.row(job)["native_id"]
    assert re.search(r"^arid +[1-9]", gridengine_cell.run("qacct", "-j", native), re.MULTILINE)
    [row] = [row for row in a.json("reservations") if row["reservation"] == int(id)]
    assert (row["state"], row["user"]) == ("active", A)
    assert operator.json("reservation", "cancel", id)["state"] == "cancelled"
    a.until(lambda: "<ar_summary>" not in gridengine_cell.run("qrstat", "-xml", "-u", "*"))


def test_others_share_a_reservation_by_name_and_touch_no_series(
    over_gridengine: MultiUserSite, gridengine_cell: Cell
) -> None:
    a, b, operator = (over_gridengine.by(account) for account in (A, B, OPERATOR))
    id = str(a.json("reserve", "--size", "2", "--duration", "5m", "--users", B)["reservation"])
    job = b.submit("--reservation", id, "-t", "1", "-o", "inside", "--wrap", "id -un")
    assert b.until_ended(job)[0]["state"] == "completed"
    assert (over_gridengine.folder / B / "inside").read_text() == f"{B}\n"
    assert f"no reservation {id}; see" in b.error("reservation", "cancel", id, code=5)
    every = ("reserve", "--size", "1", "--duration", "5m", "--every", "03:00", "--until", "+2d")
    series = str(a.json(*every)["entry"])
    expected = f"no series {series}; see"
    assert expected in b.error("reservation", "cancel", "--series", series, code=5)
    assert b.json("calendar") == []
    assert "only operators may reserve for others" in b.error(*every, "--user", A, code=3)
    assert not [row for row in b.json("events") if "series" in row["kind"]]
    assert [row["owner"] for row in operator.json("calendar")] == [A]
    assert [row["kind"] for row in a.json("events", "--kind", "series_made")] == ["series_made"]
    operator.run("reservation", "cancel", "--series", series)
    assert a.json("calendar") == []
    a.run("reservation", "cancel", id)
    a.until(lambda: "<ar_summary>" not in gridengine_cell.run("qrstat", "-xml", "-u", "*"))


CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
    peer.sendall(b"GET /health HTTP/1.1\\r\\nHost: x\\r\\nX-Forwarded-For: 127.0.0.1\\r\\n"
                 b"X-Remote-User: root\\r\\nUid: 0\\r\\nAuthorization: Bearer root\\r\\n"
                 b"Connection: close\\r\\n\\r\\n")
    while part := peer.recv(65536):
        sys.stdout.buffer.write(part)
"""


SUBMIT_WITH_KEY = """
import json, sys
from metasched.client.client import Client
texts = {"scripts": {"s": "#!/bin/sh\\n"}, "environments": {"e": {}}}
job = {"script": "s", "environment": "e", "directory": "/", "output": "/dev/null"}
print(json.dumps(Client(sys.argv[1]).submit({"jobs": [job], **texts}, "k")[0]["job"]))
"""


def test_keys_of_two_users_are_independent(local: MultiUserSite) -> None:
    jobs = []
    for account in (A, B, A, B):
        arguments: dict[str, Any] = accounts.as_(account)
        done = subprocess.run(
            [sys.executable, "-c", SUBMIT_WITH_KEY, str(local.state / "ms.sock")],
            capture_output=True,
            text=True,
            check=True,
            **arguments,
        )
        jobs.append(int(done.stdout))
    assert jobs[:2] == jobs[2:]
    assert [local.row(job)["user"] for job in jobs[:2]] == [A, B]


def test_forged_headers_change_no_identity(local: MultiUserSite) -> None:
    for account in (A, B):
        account_options: dict[str, Any] = accounts.as_(account)
        done = subprocess.run(
            [sys.executable, "-c", CONNECT, str(local.state / "ms.sock")],
            capture_output=True,
            text=True,
            check=True,
            **account_options,
        )
        assert f'"user":"{account}","operator":false' in done.stdout
