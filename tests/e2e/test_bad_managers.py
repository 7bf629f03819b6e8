"""Managers that answer garbage, too much or nothing, or refuse: the daemon continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import to_builtins

from metasched.client.client import Client
from metasched.client.schemas import JobRequest, SubmitRequest
from tests.e2e.conftest import TWO_LOCAL, Site

T = TypeVar("T")

NODE = "n1 idle main* 0/8/0/8 1000 0 (null) (null) any up 1-00:00:00 10:00 1-infinite 1"
# Commands of a healthy cluster: one idle node, nothing queued.
WELL = {
    "squeue": "",
    "sinfo": rf"""
for word; do case $word in --Format=*) format=$word; esac; done
end=$(printf %s "$format" | sed 's/^--Format=nodelist:\(|[^|]*|\),.*/\1/')
for field in {NODE!r}; do for part in $field; do printf %s%s "$part" "$end"; done; done; echo
""",
    "scontrol": 'echo "Configuration data as of $(date +%s)"; echo "BOOT_TIME = 1"\n'
    "echo 'MinJobAge = 300 sec'",
    "sbatch": "echo 7",
}
SAYS = "printf '%s\\n' 'sbatch: error: {}' >&2; exit 1"


def table(name: str, folder: Path, commands: Mapping[str, str]) -> str:
    """Write the cluster's commands; return its table."""
    bin_dir = folder / name
    bin_dir.mkdir()
    for command, script in {**WELL, **commands}.items():
        (bin_dir / command).write_text(f"#!/bin/sh\n{script}\n")
        (bin_dir / command).chmod(0o755)
    return (
        f'[[cluster]]\nname = "{name}"\nadapter = "slurm"\nconfig = "/dev/null"\n'
        f'access = "commands"\nbin_dir = "{bin_dir}"\npoll_interval = 0.5\ntimeout = 3\n'
    )


LISTINGS = {
    "garbage": ({"squeue": "head -c 3000 /dev/urandom"}, "squeue"),
    "half": ({"sinfo": "printf 'n1|idle|ma'"}, "sinfo"),
    "endless": ({"squeue": "exec yes 'all work and no play'"}, "squeue"),
    "silent": ({"scontrol": "exec sleep 600"}, "scontrol: no answer within 3 s"),
    "trying": (
        {"squeue": "echo 'squeue: error: cannot stat slurm.conf, retrying' >&2; exec sleep 600"},
        "no answer within 3 s (squeue: error: cannot stat slurm.conf, retrying)",
    ),
    "empty": ({"scontrol": ""}, "scontrol: unexpected output"),
    "refusing": (
        {"squeue": "echo 'squeue: error: Access/permission denied' >&2; exit 1"},
        "Access/permission denied",
    ),
    "killed": ({"sinfo": "kill -SEGV $$"}, "sinfo was killed by signal 11"),
}


def test_clusters_with_unreadable_listings_report_the_cause_and_others_go_on(site: Site) -> None:
    tables = [table(name, site.folder, commands) for name, (commands, _) in LISTINGS.items()]
    site.configure(TWO_LOCAL + "".join(tables))
    site.start("down:")

    for name, (_, cause) in LISTINGS.items():
        until_in(site, cause, state, name)
    assert {state(site, name) for name in ("left", "right")} == {"up"}
    job = site.submit("--wrap", "exit 3", "-t", "1")
    assert site.until_ended(job)[0]["exit_code"] == 3
    assert site.stop() == 0


REFUSALS = {
    "partition": "Batch job submission failed: Invalid partition name specified",
    "account": "Batch job submission failed: Invalid account or account/partition combination "
    "specified",
    "user": "Batch job submission failed: Access/permission denied",
    "option": "Invalid --mem specification",
}


def test_a_refused_job_is_rejected_in_the_managers_own_words(site: Site) -> None:
    site.configure(
        "".join(
            table(name, site.folder, {"sbatch": SAYS.format(cause)})
            for name, cause in REFUSALS.items()
        )
    )
    site.start()
    jobs = {name: site.submit("--wrap", "true", "-t", "1", "--cluster", name) for name in REFUSALS}
    assert {row["state"] for row in site.until_ended(*jobs.values())} == {"rejected"}
    for name, cause in REFUSALS.items():
        assert cause in story(site, jobs[name])
    assert {row["state"] for row in site.json("clusters")} == {"up"}
    assert site.stop() == 0


ANSWERS = {
    "wordy": "echo Submitted batch job",
    "mute": "",
    "endless": "exec yes",
    "dead": "kill -9 $$",
}


def test_an_answer_to_a_submission_that_is_none_leaves_a_doubt_and_sends_nothing_twice(
    site: Site,
) -> None:
    """A listing without the job proves nothing until `settle` has passed."""
    calls = {name: site.folder / f"calls-{name}" for name in ANSWERS}
    site.configure(
        "".join(
            table(name, site.folder, {"sbatch": f'echo >> "{calls[name]}"\n{answer}'})
            + "settle = 600\n"
            for name, answer in ANSWERS.items()
        )
    )
    site.start()
    jobs = {name: site.submit("--wrap", "true", "-t", "1", "--cluster", name) for name in ANSWERS}
    for name, job in jobs.items():
        until_in(site, "no answer: sbatch", story, job)
        assert site.row(job)["state"] in ("dispatching", "unknown")
        assert calls[name].read_text() == "\n"
    assert site.stop() == 0


LATER = "Batch job submission failed: Requested partition configuration not available now"
AWAY = "Batch job submission failed: Unable to contact slurm controller (connect failure)"


@pytest.mark.parametrize(
    "answer", [SAYS.format(LATER), SAYS.format(AWAY)], ids=["refused for now", "no connection"]
)
def test_orders_on_their_way_to_a_worker_are_left_undone_if_one_before_them_is_not_taken(
    site: Site, answer: str
) -> None:
    calls = site.folder / "calls"
    calls.touch()
    program = f"""printf '%s\\n' "$@" | grep '^--comment' >> "{calls}"\n{answer}"""
    site.configure(table("c", site.folder, {"sbatch": program}) + "settle = 600\n")
    site.start()
    request = JobRequest(
        script="s", environment="e", directory=str(site.folder), output="/dev/null"
    )
    submission = SubmitRequest(
        jobs=(request,) * 5, scripts={"s": "#!/bin/sh\n"}, environments={"e": {}}
    )
    Client(site.folder / "ms.sock").submit(to_builtins(submission))
    for job in range(2, 6):
        until_in(site, "never submitted", story, job)
    tags = [line.partition("/")[0] for line in calls.read_text().splitlines()]
    first = [tag for tag in tags if tag.split("-")[-2] == "1"]  # its dispatch, before the digest
    assert len(first) == 1
    assert site.stop() == 0


def until_in(site: Site, text: str, read: Callable[[Site, T], str], subject: T) -> None:
    site.until(lambda: text in read(site, subject))


def state(site: Site, cluster: str) -> str:
    [cluster_state] = (row["state"] for row in site.cluster_rows() if row["cluster"] == cluster)
    return str(cluster_state)


def story(site: Site, job: int) -> str:
    return "\n".join(line["cause"] for line in site.json("story", str(job)))
