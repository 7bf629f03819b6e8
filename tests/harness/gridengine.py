"""A real Grid Engine cell for the tests, booted in a temporary folder and removed completely.

Its daemons always listen on every interface, so they run in a network namespace that has only a
loopback interface. Clients run inside it (`Cell.inside`). The namespace is that of the reaper,
which starts all daemons and kills those that are left. Unless root runs the tests, only one
account exists there, so everything runs as the account of the tests.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from metasched.adapters.drmaa_cluster import Drmaa, DrmaaOptions
from metasched.model.cluster import Cluster
from tests.harness.daemons import (
    NAMESPACE,
    BootError,
    DaemonGroup,
    no_namespace,
    output_of,
    wait_until,
)
from tests.harness.worker_adapter import WorkerAdapter

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client", "gridengine-drmaa1.0")
LIBRARY = Path("/usr/lib/gridengine-drmaa/lib/libdrmaa.so.1.0")
SLOTS = 8
GPUS = 2
MEMORY = "memory"  # the consumable for memory; h_vmem would limit each process, too
TOKENS = 3  # of the cluster-wide consumable `matlab`
# When a job ends, an execd that runs as root kills all processes on the host that have the job's
# additional group. Cells with the same groups would kill each other's jobs.
GROUPS = range(start := 20_000 + os.getpid() % 80 * 500, start + 500)

_BINARIES = Path("/usr/lib/gridengine")
_SHARE = Path("/usr/share/gridengine")
_PATH = f"{_BINARIES}:/usr/local/bin:/usr/bin:/bin"
_BEGIN = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
_PORT = 16444  # no other program uses the namespace
_BOOT_SECONDS = 30.0
_CALL_SECONDS = 20.0

# An execd of an ordinary account cannot mark a job's processes by an additional group, as root's
# does. This program kills all processes that have the job's number in their environment.
_KILL = r"""
import os, signal, sys
from pathlib import Path
marks = {f"SGE_ROOT={sys.argv[1]}".encode(), f"JOB_ID={sys.argv[2]}".encode()}
for place in Path("/proc").glob("[0-9]*"):
    try:
        has = set((place / "environ").read_bytes().split(b"\0"))
        if int(place.name) != os.getpid() and marks <= has:
            os.kill(int(place.name), signal.SIGKILL)
    except OSError:
        continue
"""


def missing() -> str | None:
    """Return why Grid Engine is not available on this host, or None."""
    lacking = [
        str(path)
        for path in (_BINARIES / "sge_qmaster", _BINARIES / "sge_execd", LIBRARY)
        if not path.exists()
    ]
    lacking += [program for program in ("qstat", "ip", "nsenter") if not _which(program)]
    if lacking:
        return f"{', '.join(lacking)} not found; apt-get install {' '.join(PACKAGES)}"
    return no_namespace()


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{_PATH}:/usr/sbin:/sbin")


class Cell(DaemonGroup):
    """A cell of one host with `slots` slots, alive as long as the `with` block."""

    def __init__(
        self,
        folder: Path,
        name: str = "cell",
        slots: int = SLOTS,
        namespace: Sequence[str] = NAMESPACE,
    ) -> None:
        super().__init__(folder, (*namespace, *_BEGIN))
        self.name, self._slots = name, slots
        self.root = folder / "root"
        self._common = self.root / name / "common"
        self._spool = folder / "spool"
        self._account = pwd.getpwuid(os.geteuid()).pw_name
        self.host = socket.gethostname()
        self._daemons: dict[str, int] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a client needs, in addition to its own environment."""
        return {
            "SGE_ROOT": str(self.root),
            "SGE_CELL": self.name,
            "SGE_QMASTER_PORT": str(_PORT),
            "SGE_EXECD_PORT": str(_PORT + 1),
            "SGE_CLUSTER_NAME": self.name,
        }

    @property
    def accounting(self) -> Path:
        return self._common / "accounting"

    @property
    def script_folder(self) -> Path:
        """The folder in which the qmaster keeps the scripts of jobs."""
        return self._spool / "qmaster" / "job_scripts"

    def python(self, path: Path) -> Path:
        """Make `path` an interpreter that runs in the namespace, for a cluster's key `python`."""
        command = " ".join(f"'{argument}'" for argument in (*self.inside, sys.executable))
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
        return path

    def run(self, *command: str, stdin: str = "", seconds: float = _CALL_SECONDS) -> str:
        """Run a client command; return its output. Raises BootError if it fails or is too slow."""
        argv = [*self.inside, *command]
        return output_of(argv, self._full_environment(), self.folder, stdin, seconds)

    def empty(self) -> None:
        """Delete every job and wait until none is left."""
        self.run("sh", "-c", "qdel -u '*' >/dev/null || true")
        self._until(lambda: self.run("qstat", "-u", "*") == "", "an empty queue")

    @property
    def qmaster(self) -> int:
        """The process id of sge_qmaster."""
        return self._daemons["sge_qmaster"]

    @property
    def execd(self) -> int:
        """The process id of sge_execd."""
        return self._daemons["sge_execd"]

    def start_qmaster(self) -> None:
        self._start("sge_qmaster")
        self._until(self._answers, "an answer of sge_qmaster")

    def kill_qmaster(self) -> None:
        """Kill sge_qmaster: state that it has not spooled is lost."""
        self._kill("sge_qmaster")

    def copy_spool(self, folder: Path) -> None:
        """Copy the qmaster's spool, as a backup of the site would."""
        shutil.copytree(self._spool / "qmaster", folder)

    def put_back_spool(self, folder: Path, last_job: int) -> None:
        """Let a qmaster that is down start with a copy of its spool.

        `last_job`: highest number of a job so far. An execution host would take a new job for the
        job of the same number that it still runs.
        """
        shutil.rmtree(self._spool / "qmaster")
        shutil.copytree(folder, self._spool / "qmaster")
        (self._spool / "qmaster" / "jobseqnum").write_text(f"{last_job}\n")

    def start_execd(self) -> None:
        self._start("sge_execd")
        self._until(self.hears_execd, "an execution host that takes jobs")

    def kill_execd(self) -> None:
        """Kill sge_execd; its jobs go on."""
        self._kill("sge_execd")

    def _kill(self, program: str) -> None:
        self._reaper.end(self._daemons.pop(program), signal.SIGKILL)

    def table(self, python: Path, extra: str = "") -> str:
        """The table of this cell in metasched.toml; `python` is the result of `python()`."""
        variables = {**self.environment, "PATH": _PATH}
        environment = ", ".join(f'{name} = "{value}"' for name, value in variables.items())
        return (
            f'[[cluster]]\nname = "{self.name}"\nadapter = "drmaa"\nlibrary = "{LIBRARY}"\n'
            f'python = "{python}"\nenvironment = {{ {environment} }}\n{extra}'
        )

    def _full_environment(self) -> dict[str, str]:
        return {
            **self.environment,
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "USER": self._account,
            "LOGNAME": self._account,
        }

    def _boot(self) -> None:
        self._lay_out()
        self.start_qmaster()
        self._configure()
        self.start_execd()

    def _start(self, program: str) -> None:
        environment = self._full_environment() | {"SGE_ND": "1"}  # stay in the foreground
        self._daemons[program] = self._reaper.start(
            [str(_BINARIES / program)], environment, self.folder / f"{program}.out"
        )

    def _answers(self) -> bool:
        try:
            self.run("qconf", "-sconf", seconds=3)
        except BootError:
            return False
        return True

    def hears_execd(self) -> bool:
        """Return whether the only host has reported to the qmaster lately and takes jobs."""
        states = re.findall(r"name='state_string'>([^<]*)<", self.run("qhost", "-xml", "-q"))
        return states == [""]

    def _until(self, condition: Callable[[], bool], subject: str) -> None:
        wait_until(condition, _BOOT_SECONDS, f"{subject} of {self.name}", self._log_tail)

    def _log_tail(self) -> str:
        logs = [*self.folder.glob("*.out"), *self._spool.rglob("messages")]
        return "\n".join(log.read_text(errors="replace")[-1000:] for log in logs)

    def _lay_out(self) -> None:
        """Write the files that the qmaster needs to start."""
        for part in (self._common, self.script_folder, self._spool / "execd"):
            part.mkdir(parents=True)
        (self.root / "util").symlink_to(_SHARE / "util")
        for name in ("bin", "lib", "utilbin"):
            (self.root / name).mkdir()
            (self.root / name / "lx-amd64").symlink_to(_BINARIES)
        temporary = self.folder / "tmp"
        temporary.mkdir()
        temporary.chmod(0o1777)
        kill = self.folder / "kill"
        kill.write_text(f"#!{sys.executable} -IS\n{_KILL}")
        kill.chmod(0o755)
        (self._common / "act_qmaster").write_text(f"{self.host}\n")
        # The name of 127.0.0.1 is localhost: make it an alias of the host's name.
        (self._common / "host_aliases").write_text(f"{self.host} localhost\n")
        (self._common / "cluster_name").write_text(f"{self.name}\n")
        spooling = f"{self._common};{self._spool}/qmaster"
        bootstrap = {
            "admin_user": self._account,
            "default_domain": "none",
            "ignore_fqdn": "true",
            "spooling_method": "classic",
            "spooling_lib": "libspoolc",
            "spooling_params": spooling,
            "binary_path": _BINARIES,
            "qmaster_spool_dir": self._spool / "qmaster",
            "security_mode": "none",
            "listener_threads": 2,
            "worker_threads": 2,
            "scheduler_threads": 1,
        }
        (self._common / "bootstrap").write_text(_lines(bootstrap))
        configuration = self.folder / "configuration"
        configuration.write_text(
            _with_settings(
                (_SHARE / "default-configuration").read_text(),
                {
                    "execd_spool_dir": self._spool / "execd",
                    "gid_range": f"{GROUPS[0]}-{GROUPS[-1]}",
                    "mailer": "/bin/true",
                    "administrator_mail": "none",
                    "load_report_time": "00:00:01",
                    "max_unheard": "00:00:20",
                    "shell_start_mode": "unix_behavior",
                    "min_uid": 0,
                    "min_gid": 0,
                    "finished_jobs": 0,
                    "reporting_params": "accounting=true reporting=false flush_time=00:00:00 "
                    "accounting_flush_time=00:00:00 joblog=false sharelog=00:00:00",
                },
            )
        )
        resources = _SHARE / "util" / "resources"
        library = f"LD_LIBRARY_PATH={_BINARIES}"
        self.run("env", library, f"{_BINARIES}/spoolinit", "classic", "libspoolc", spooling, "init")
        for template in (
            ("configuration", str(configuration)),
            ("complexes", str(resources / "centry")),
            ("usersets", str(resources / "usersets")),
            ("managers", self._account),
        ):
            self.run("env", library, f"{_BINARIES}/spooldefaults.bin", *template)

    def _configure(self) -> None:
        """Configure consumables, host, parallel environment, queue and a quick scheduler."""
        for add in ("-ah", "-as"):
            self.run("sh", "-c", f"qconf {add} {self.host} || true")
        counted = (
            "gpu gpu INT <= YES JOB 0 0\n"
            "matlab mlic INT <= YES JOB 0 0\n"
            f"{MEMORY} {MEMORY} MEMORY <= YES YES 0 0\n"
        )
        self.load("-Mc", self._show("-sc") + counted)
        self.load("-Ae", _lines(_host("global", f"matlab={TOKENS}")), or_else="-Me")
        self.load("-Ae", _lines(_host(self.host, f"slots={self._slots},gpu={GPUS},{MEMORY}=64G")))
        self.load("-Ap", _lines(_ENVIRONMENT | {"slots": self._slots}))
        queue = {
            "qname": "all.q",
            "hostlist": self.host,
            "load_thresholds": "NONE",
            "pe_list": "smp",
            "rerun": "FALSE",
            "slots": self._slots,
            # not /tmp, where a killed cell may leave a folder of the same job number, which would
            # put the queue in error
            "tmpdir": self.folder / "tmp",
            "shell": "/bin/sh",
            "shell_start_mode": "unix_behavior",
            "terminate_method": f"{self.folder}/kill {self.root} $job_id",
            "h_rt": "24:00:00",
        }
        self.load("-Aq", _with_settings(self._show("-sq"), queue))
        self.run("qconf", "-au", self._account, "arusers")
        quick = {
            "schedule_interval": "0:0:1",
            "job_load_adjustments": "NONE",
            "load_adjustment_decay_time": "0:0:0",
            "load_formula": "slots",
            "flush_submit_sec": 1,
            "flush_finish_sec": 1,
            "max_reservation": 32,
            "params": "DURATION_OFFSET=1",  # 60: short jobs would not backfill
        }
        self.load("-Msconf", _with_settings(self._show("-ssconf"), quick))

    def _show(self, option: str) -> str:
        return self.run("qconf", option)

    def load(self, option: str, text: str, or_else: str = "", name: str = "loaded") -> None:
        """Pass `text` to qconf in a file `name`, which some options take as an object's name."""
        path = self.folder / name
        path.write_text(text)
        try:
            self.run("qconf", option, str(path))
        except BootError:
            if not or_else:
                raise
            self.run("qconf", or_else, str(path))


def worker_adapter(cell: Cell, options: DrmaaOptions, instance: str, folder: Path) -> WorkerAdapter:
    """Return the adapter in a worker inside the cell; `folder` is the cluster's own."""
    return WorkerAdapter(
        Cluster(name=cell.name, adapter="drmaa"),
        options,
        instance,
        folder,
        Drmaa.capabilities_for(options),
        [*cell.inside, sys.executable],
        {**Drmaa.environment, **cell.environment, "PATH": _PATH},
    )


def _lines(settings: Mapping[str, object]) -> str:
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def _with_settings(text: str, settings: Mapping[str, object]) -> str:
    """Return a configuration in which these settings replace its own."""
    joined = re.sub(r"\\\n\s*", "", text)
    other_lines = [line for line in joined.splitlines() if line and line.split()[0] not in settings]
    return "\n".join(other_lines) + "\n" + _lines(settings)


def _host(name: str, values: str) -> dict[str, object]:
    nothing = ("user_lists", "xuser_lists", "projects", "xprojects")
    return {
        "hostname": name,
        "load_scaling": "NONE",
        "complex_values": values,
        **dict.fromkeys((*nothing, "usage_scaling", "report_variables"), "NONE"),
    }


_ENVIRONMENT: dict[str, object] = {
    "pe_name": "smp",
    "user_lists": "NONE",
    "xuser_lists": "NONE",
    "start_proc_args": "NONE",
    "stop_proc_args": "NONE",
    "allocation_rule": "$pe_slots",
    "control_slaves": "FALSE",
    "job_is_first_task": "TRUE",
    "urgency_slots": "min",
    "accounting_summary": "FALSE",
    "qsort_args": "NONE",
}
