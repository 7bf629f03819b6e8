"""Every finding of the checks: id, component, severity, meaning, remedy.

docs/admin/findings.md is this table; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

Severity = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class Kind:
    """A kind of finding. `id` is stable: scripts and alerts compare it."""

    id: str
    component: str
    severity: Severity
    meaning: str
    remedy: str  # for findings without a more precise remedy


_ROWS: Final[tuple[tuple[str, str, Severity, str, str], ...]] = (
    # configuration
    ("config-invalid", "configuration", "error", "The file has a mistake.", "correct that key"),
    (
        "config-writable",
        "configuration",
        "error",
        "Other accounts can write the file.",
        "chmod go-w FILE",
    ),
    ("config-none", "configuration", "note", "There is no file: defaults apply.", "none needed"),
    (
        "calendar-policy",
        "configuration",
        "error",
        "A policy of the calendar cannot be put in force.",
        "correct that file",
    ),
    (
        "check-timeout",
        "configuration",
        "warning",
        "A check did not end within its time.",
        "repeat it with a longer --timeout",
    ),
    (
        "check-failed",
        "configuration",
        "error",
        "A check ended by a defect of its own.",
        "report it",
    ),
    # accounts
    (
        "user-unknown",
        "accounts",
        "warning",
        "The file names a user that this host does not know.",
        "create it, or correct the name",
    ),
    (
        "group-unknown",
        "accounts",
        "warning",
        "The file names a group that this host does not know.",
        "create it, or correct the name",
    ),
    (
        "account-differs",
        "accounts",
        "note",
        "The checks run as another account than the daemon.",
        "run doctor as the daemon's account",
    ),
    # folders
    ("folder-missing", "folders", "error", "A folder does not exist.", "create it"),
    (
        "folder-unreadable",
        "folders",
        "error",
        "A folder or file cannot be used by this account.",
        "run doctor as its owner, or correct its mode",
    ),
    (
        "folder-owner",
        "folders",
        "error",
        "A folder belongs to another account.",
        "chown -R ACCOUNT FOLDER",
    ),
    (
        "folder-writable",
        "folders",
        "error",
        "Other accounts can write to a folder.",
        "chmod go-w FOLDER",
    ),
    (
        "socket-folder-missing",
        "folders",
        "error",
        "The folder of the socket does not exist, and the daemon cannot create it.",
        "RuntimeDirectory= in its unit, or a line of tmpfiles.d",
    ),
    (
        "filesystem-network",
        "folders",
        "error",
        "SQLite is on a network filesystem.",
        "move the database to a local disk",
    ),
    (
        "filesystem-full",
        "folders",
        "error",
        "Less than 256 MiB are free.",
        "make room, or metasched db prune",
    ),
    # database
    (
        "database-unusable",
        "database",
        "error",
        "It does not exist or answer, or has another schema.",
        "as the finding says",
    ),
    (
        "database-unreadable",
        "database",
        "error",
        "This account may not read it.",
        "run doctor as its owner",
    ),
    (
        "database-mode",
        "database",
        "error",
        "Other accounts can read or write the file.",
        "chmod 600 FILE",
    ),
    (
        "database-unsafe",
        "database",
        "error",
        "It is damaged, or its server may lose commits.",
        "as the finding says",
    ),
    (
        "database-went-back",
        "database",
        "error",
        "It is an earlier state of itself: what was stored since is lost.",
        "as the finding says",
    ),
    (
        "database-mark",
        "database",
        "warning",
        "Its mark is missing, torn, or of another database.",
        "the next start writes it",
    ),
    (
        "restored-backup",
        "database",
        "error",
        "Tasks are held since a backup was restored.",
        "metasched release JOB, or metasched cancel JOB",
    ),
    (
        "clock-differs",
        "clocks",
        "error",
        "A cluster's clock differs by more than 2 s.",
        "set both by NTP",
    ),
    # launcher and mail
    (
        "launcher-unusable",
        "launcher",
        "error",
        "The launcher does not answer this account.",
        "run doctor as the daemon's account",
    ),
    (
        "launcher-cluster",
        "launcher",
        "error",
        "launcher.toml lacks a cluster, or programs of it.",
        "add the table to launcher.toml",
    ),
    (
        "launcher-accounts",
        "launcher",
        "error",
        "The launcher would run jobs of root or of the daemon's account.",
        "set its lowest uid above them",
    ),
    (
        "mail-program",
        "mail",
        "error",
        "The mail program cannot be executed.",
        "install it, or name another as program in [mail]",
    ),
    (
        "mail-failed",
        "mail",
        "error",
        "Mails are not sent.",
        "run the program by hand as the daemon's account",
    ),
    (
        "webhook-secret",
        "webhooks",
        "error",
        "The secret of a webhook cannot be used.",
        "create the file, mode 0600, with whsec_ and base64",
    ),
    (
        "webhook-failed",
        "webhooks",
        "warning",
        "A receiver does not confirm events.",
        "look at the receiver's own log",
    ),
    # clusters
    (
        "cluster-unreachable",
        "cluster",
        "error",
        "Its manager does not answer commands of doctor.",
        "query it by the manager's own commands",
    ),
    (
        "cluster-no-node",
        "cluster",
        "error",
        "Its manager has no usable node.",
        "resume its nodes",
    ),
    (
        "cluster-manager",
        "cluster",
        "error",
        "Its manager is not set up as the file requires.",
        "as the finding says",
    ),
    (
        "cluster-worker",
        "cluster",
        "error",
        "The interpreter of its worker cannot run this release.",
        "install this release for it",
    ),
    (
        "cluster-partition",
        "cluster",
        "warning",
        "A map names a partition that the manager does not list.",
        "correct [cluster.map.partition]",
    ),
    (
        "cluster-records",
        "cluster",
        "warning",
        "Its manager has neither accounting nor claims: forgotten jobs stay unknown.",
        "set up its accounting (Slurm: slurmdbd), or give the cluster a fence_dir",
    ),
    (
        "cluster-forgeable",
        "cluster",
        "warning",
        "Accounts can forge lines of jobcomp/filetxt.",
        "set up slurmdbd, or reject such names by job_submit.lua",
    ),
    (
        "cluster-overcommitted",
        "cluster",
        "note",
        "A cluster on this host has more cpus than the host.",
        "none needed",
    ),
    (
        "cluster-local-policy",
        "cluster",
        "note",
        "Its adapter does not say how its manager orders jobs: starts are forecast by FCFS.",
        "declare local_policy in the capabilities of the adapter",
    ),
    (
        "claims-unusable",
        "cluster",
        "error",
        "Its fence_dir cannot be used, so it gets no jobs.",
        "correct owner and mode of fence_dir",
    ),
    (
        "fair-share-use",
        "cluster",
        "error",
        "Its accounting reports no use or no shares.",
        "query its accounting as the daemon's account",
    ),
    (
        "fair-share-partial",
        "cluster",
        "warning",
        "Only jobs of metasched count as use there.",
        "set up its accounting (Slurm: slurmdbd)",
    ),
    # licence servers
    (
        "licence-server-unreachable",
        "licences",
        "error",
        "A licence server does not answer.",
        "metasched licence probe NAME",
    ),
    (
        "licence-missing",
        "licences",
        "error",
        "Its server does not count a licence.",
        "see features, or the server's own log",
    ),
    (
        "licence-outside",
        "licences",
        "note",
        "A manager's own counter differs from the ledger.",
        "none needed",
    ),
    # the running daemon
    (
        "daemon-unreachable",
        "daemon",
        "error",
        "No daemon answers at the socket.",
        "metasched serve",
    ),
    (
        "daemon-version",
        "daemon",
        "error",
        "Daemon and command are of different releases.",
        "restart the daemon, or use its own commands",
    ),
    (
        "daemon-other-file",
        "daemon",
        "warning",
        "The daemon reads another file than doctor.",
        "metasched doctor --config FILE",
    ),
    (
        "daemon-changed-file",
        "daemon",
        "note",
        "The file or the policy has changed since the daemon read it.",
        "metasched reload",
    ),
    (
        "daemon-defect",
        "daemon",
        "error",
        "A part of the daemon, or a row, is set aside.",
        "report it with the daemon's log",
    ),
    (
        "daemon-connections",
        "daemon",
        "error",
        "A listener is full, or refused connections.",
        "raise connections, LimitNOFILE",
    ),
    (
        "daemon-descriptors",
        "daemon",
        "error",
        "The daemon has nearly no file descriptors left.",
        "raise LimitNOFILE",
    ),
    (
        "withdrawal-futile",
        "daemon",
        "warning",
        "A cluster still lists a job that was to be cancelled or moved several times.",
        "cancel it by the manager's own commands, as an operator of that cluster",
    ),
    (
        "daemon-delayed",
        "daemon",
        "note",
        "Accounts whose listings waited for those of others.",
        "none needed",
    ),
    (
        "cluster-down",
        "daemon",
        "error",
        "The daemon gets no answer of a cluster.",
        "query it by the manager's own commands",
    ),
    (
        "worker-dies",
        "daemon",
        "error",
        "The worker of a cluster dies again and again.",
        "see the daemon's log; check python and library",
    ),
    (
        "listing-old",
        "daemon",
        "warning",
        "The last listing of a cluster is older than 10 minutes.",
        "see the daemon's log",
    ),
    (
        "node-begins-no-jobs",
        "daemon",
        "warning",
        "Jobs went to other nodes, or failed, since a node could not begin them.",
        "look at the log of its slurmd; metasched events --kind job_unbegun lists the jobs",
    ),
    (
        "drop-in-ids",
        "daemon",
        "error",
        "The drop-in commands cannot be used, though first_id is set.",
        "raise first_id in [daemon]",
    ),
    (
        "drop-in-off",
        "daemon",
        "note",
        "The drop-in commands cannot be used without first_id.",
        "set first_id in [daemon]",
    ),
    (
        "heuristic-excluded",
        "daemon",
        "warning",
        "A heuristic of the site has no part in decisions.",
        "metasched policy check-plugin NAME, or take it out of the policy",
    ),
    (
        "cluster-refuses",
        "daemon",
        "warning",
        "A cluster refuses jobs with words that do not say why.",
        "submit a job there by hand; look at its plug-ins, such as job_submit.lua",
    ),
    (
        "local-policy-excluded",
        "daemon",
        "warning",
        "FCFS decides in place of the policy of a local cluster.",
        "metasched events --kind local_policy_excluded, then repair the policy's package",
    ),
    (
        "job-altered",
        "daemon",
        "warning",
        "A cluster lists jobs with other terms than were sent.",
        "look at JobSubmitPlugins of Slurm, or the JSV of Grid Engine; let them keep the tag",
    ),
    (
        "tag-copied",
        "daemon",
        "warning",
        "A job carries the tag of another job; it counts as no job of metasched.",
        "ask its owner why; cancel it by the manager's own command if nobody needs it",
    ),
    (
        "reservation-cluster",
        "daemon",
        "error",
        "A reservation is on a cluster that the file lacks.",
        "metasched reservation cancel ID",
    ),
    (
        "job-unknown",
        "daemon",
        "error",
        "The state of a job is unknown.",
        "metasched resolve JOB lost, or ran",
    ),
    # probe jobs
    (
        "probe-account",
        "probe",
        "error",
        "Jobs of doctor may not run as that account.",
        "name an ordinary account as account in [doctor]",
    ),
    (
        "probe-failed",
        "probe",
        "error",
        "The small job did not end as expected.",
        "as the finding says",
    ),
    (
        "probe-identity",
        "probe",
        "error",
        "The job ran with another uid or other groups than here.",
        "use one directory service on all nodes",
    ),
    (
        "probe-path",
        "probe",
        "warning",
        "A folder of the account is missing on the node.",
        "mount it there, or correct filesystems",
    ),
    (
        "probe-daemon",
        "probe",
        "error",
        "The job does not reach the daemon over TCP.",
        "open the port of url in [tcp] for the nodes",
    ),
    (
        "probe-pending",
        "probe",
        "warning",
        "The small job did not end within a minute, and was withdrawn.",
        "look at the cluster's queue",
    ),
)
KINDS: Final = {row[0]: Kind(*row) for row in _ROWS}


@dataclass(frozen=True)
class Finding:
    """The result of a check: of a kind, or without a problem."""

    check: str  # its subject
    kind: Kind | None  # None: the check passed
    text: str
    fix: str = ""  # what to do, if there is a problem

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return "ok" if self.kind is None else self.kind.severity

    @property
    def ok(self) -> bool:
        """Whether it is no error."""
        return self.severity != "error"

    def as_json(self) -> dict[str, Any]:
        """Return a row of `doctor --json`."""
        return {
            "id": None if self.kind is None else self.kind.id,
            "component": self.check if self.kind is None else self.kind.component,
            "check": self.check,
            "severity": self.severity,
            "ok": self.ok,
            "text": self.text,
            "mend": self.fix,
        }


def passed(check: str, text: str) -> Finding:
    """Return the result of a check that found no problem."""
    return Finding(check, None, text)


def found(id: str, check: str, text: str, fix: str = "") -> Finding:
    """Return a finding of the kind `id`; without `fix` the remedy is that of its kind."""
    kind = KINDS[id]
    return Finding(check, kind, text, fix or kind.remedy)


def from_error(id: str, check: str, message: str) -> Finding:
    """Return a finding for a message of the form `problem, place; remedy`."""
    text, _, fix = message.rpartition("; ")
    return found(id, check, text or fix, fix if text else "")
