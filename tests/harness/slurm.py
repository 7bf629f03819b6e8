"""Real Slurm clusters for the tests, booted in a temporary folder and removed completely.

`SlurmSite` starts a reaper (tests/harness/reaper.py). All daemons are its children, and so are
slurmstepd and jobs, which leave their parents. The reaper ends with its starter and kills them.

With `accounting`, MariaDB and one slurmdbd for all clusters run, too. slurmdbd always listens on
every interface, so all daemons run in a separate network namespace. Clients run inside it
(`SlurmSite.inside`), an adapter in a worker there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness import fake_clock
from tests.harness.daemons import (
    NAMESPACE,
    BootError,
    DaemonGroup,
    no_namespace,
    output_of,
    wait_until,
)
from tests.harness.reaper import Reaper, dying_with
from tests.harness.second_host import ADDRESS, FIRST_ADDRESS, SecondHost

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "slurm-wlm-basic-plugins")
ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server", "iproute2")
BIN_DIR = os.environ.get("METASCHED_SLURM_BIN")  # programs of another release, set by tests/matrix
SEARCH_PATH = ":".join(
    (*filter(None, [BIN_DIR]), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
)
_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "sinfo", "scontrol", "scancel")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "ip", "nsenter")
# Slurm resolves no address in a namespace without an address besides those of loopback.
_BEGIN = ("sh", "-c", 'ip link set lo up && ip address add 10.99.0.1/32 dev lo && exec "$@"', "sh")
_BOOT_SECONDS = 20.0
_CALL_SECONDS = 20.0
_EPHEMERAL_PORTS_BEGIN = 32768  # outgoing connections take no port below this


def missing() -> str | None:
    """Return why Slurm is not available on this host, or None."""
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]
    if not lacking:
        return None
    return f"{', '.join(lacking)} not found; apt-get install {' '.join(PACKAGES)}"


def accounting_missing() -> str | None:
    """Return why slurmdbd is not available on this host, or None."""
    lacking = [n for n in _ACCOUNTING_PROGRAMS if shutil.which(n, path=SEARCH_PATH) is None]
    if lacking:
        packages = " ".join(ACCOUNTING_PACKAGES)
        return f"{', '.join(lacking)} not found; apt-get install {packages}"
    return no_namespace()


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster to boot: `nodes` nodes named `prefix`1.., each of `cpus` processors.

    Each core has `threads` of these. `memory` MiB per node; the last node has `gpus` of the generic
    resource gpu. `settings` are lines of slurm.conf that override those of the harness.
    `accounting`: whether it uses the accounting of a site with accounting; the first one runs it.
    `host`: where the nodes and a munged for them run; None: beside the controller.
    """

    name: str
    prefix: str
    nodes: int
    cpus: int
    memory: int = 65536
    gpus: int = 0
    settings: tuple[str, ...] = ()
    threads: int = 1
    features: str = "any"
    accounting: bool = True
    files: tuple[tuple[str, str], ...] = ()  # name and text of further files beside slurm.conf
    host: SecondHost | None = None
    prolog: bool = False  # whether its nodes run a prolog, for `SlurmCluster.break_prolog`


ALPHA = ClusterSpec("alpha", "a", nodes=4, cpus=16, gpus=2, settings=("Licenses=matlab:3",))
BETA = ClusterSpec("beta", "b", nodes=3, cpus=8)


class SlurmSite(DaemonGroup):
    """Clusters that live as long as the `with` block: `site["alpha"].run("squeue")`."""

    def __init__(
        self,
        folder: Path,
        specs: Sequence[ClusterSpec] = (ALPHA, BETA),
        accounting: bool = False,
        namespace: Sequence[str] = (),
    ) -> None:
        """`namespace` is a command that enters a network namespace, such as `Cell.inside`."""
        super().__init__(folder, (*NAMESPACE, *_BEGIN) if accounting else namespace)
        self._specs, self._accounting = specs, accounting
        self._clusters: dict[str, SlurmCluster] = {}
        self._ports = _Ports()

    def __getitem__(self, name: str) -> SlurmCluster:
        return self._clusters[name]

    def __iter__(self) -> Iterator[SlurmCluster]:
        return iter(self._clusters.values())

    def _boot(self) -> None:
        accounted = [spec.name for spec in self._specs if self._accounting and spec.accounting]
        for spec in self._specs:
            folder = self.folder / spec.name
            accountant = self.folder / accounted[0] if spec.name in accounted else None
            cluster = SlurmCluster(spec, folder, self._reaper, self._ports, self.inside, accountant)
            self._clusters[spec.name] = cluster
            cluster.start_munge()
        if accounted:
            self[accounted[0]].start_accounting()
        for cluster in self:
            cluster.start_controller(wait=False)
            cluster.start_nodes()
        for cluster in self:
            cluster.wait_ready()

    def close(self) -> None:
        super().close()
        self._ports.close()


class SlurmCluster:
    """A running cluster; `conf` is its slurm.conf, `environment` holds the variables of clients."""

    def __init__(
        self,
        spec: ClusterSpec,
        folder: Path,
        reaper: Reaper,
        ports: _Ports,
        inside: tuple[str, ...],
        accountant: Path | None,
    ) -> None:
        """`accountant` is the folder of the cluster that runs slurmdbd, if one does."""
        self.spec, self.name, self.folder, self.inside = spec, spec.name, folder, inside
        self._reaper = reaper
        self._node_reaper = reaper if spec.host is None else spec.host.reaper
        self._controller: int | None = None
        self._accountant: int | None = None
        self._munge = 0
        self._nodes: dict[str, int] = {}
        for part in ("etc", "state", "spool", "log", "munge"):
            (folder / part).mkdir(parents=True)
        self.conf = folder / "etc" / "slurm.conf"
        self.socket = folder / "munge" / "munge.sock"
        self.conf.write_text(self._settings(ports, accountant))
        self._write_gres()
        for file_name, content in spec.files:
            (folder / "etc" / file_name).write_text(content)
        self._broken = folder / "broken"
        if spec.prolog:
            self._write_prolog()
        # Slurm 24.11 and later read it; without it their slurmd sets up control groups
        (folder / "etc" / "cgroup.conf").write_text("CgroupPlugin=disabled\n" if BIN_DIR else "")

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.conf), "PATH": SEARCH_PATH, "LANG": "C.UTF-8"}

    @property
    def release(self) -> tuple[int, int]:
        """The release of its programs, such as (24, 11)."""
        year, month, *_ = self.run("sbatch", "--version").split()[-1].split(".")
        return int(year), int(month)

    def table(self, extra: str = "") -> str:
        """Return the table of this cluster in metasched.toml; `extra` holds further settings."""
        return (
            f'[[cluster]]\nname = "{self.name}"\nadapter = "slurm"\nconfig = "{self.conf}"\n{extra}'
        )

    def run(
        self,
        *command: str,
        stdin: str | None = None,
        seconds: float = _CALL_SECONDS,
        **variables: str,
    ) -> str:
        """Run a client command; return its output. Raises BootError if it fails or is too slow."""
        # sbatch's default output goes to the folder
        environment = self.environment | variables
        return output_of([*self.inside, *command], environment, self.folder, stdin or "", seconds)

    def start_munge(self) -> None:
        munge = self.folder / "munge"
        key = munge / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        self._munge = self._start_munged(munge, self._reaper)
        if self.spec.host is not None:
            # a munged of its own, with the same paths
            content = self.folder / "munge-of-nodes"
            content.mkdir()
            shutil.copy2(key, content)
            self.spec.host.show(munge, content)
            self._start_munged(content, self._node_reaper)

    def _start_munged(self, folder: Path, reaper: Reaper) -> int:
        """Start a munged whose files are in `folder`; return its process id once it listens."""
        munge = self.folder / "munge"
        # --force: other accounts cannot enter the folder, which munged would refuse
        pid = self._start(
            "munged",
            *("--foreground", "--force", "--num-threads=2", f"--socket={self.socket}"),
            *(f"--key-file={munge}/munge.key", f"--pid-file={munge}/munged.pid"),
            *(f"--log-file={munge}/munged.log", f"--seed-file={munge}/munged.seed"),
            reaper=reaper,
        )
        listening = (folder / self.socket.name).exists
        wait_until(listening, _BOOT_SECONDS, f"munged of {self.name}", self._story)
        return pid

    def kill_munge(self) -> None:
        """Kill munged: authentication fails until `start_munge`."""
        self._reaper.end(self._munge, signal.SIGKILL)
        self.socket.unlink()

    def _accounting_settings(self, accountant: Path) -> dict[str, object]:
        return {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePass": accountant / "munge" / "munge.sock",
        }

    def start_accounting(self) -> None:
        """Start MariaDB, which only this account can reach, and slurmdbd."""
        data, socket = self.folder / "mysql", self.folder / "mysql.sock"
        common = ("--no-defaults", f"--datadir={data}")
        subprocess.run(
            ["mariadb-install-db", *common, "--skip-test-db", f"--user={_account()}"],
            env={"PATH": SEARCH_PATH},
            check=True,
            capture_output=True,
            preexec_fn=dying_with(os.getpid()),
        )
        self._start(
            "mariadbd",
            *(*common, f"--user={_account()}", f"--socket={socket}", "--skip-networking"),
            *(f"--pid-file={data}/pid", "--skip-grant-tables", "--skip-log-bin"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"),
            *("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"),
        )
        wait_until(socket.exists, _BOOT_SECONDS, "mariadbd", self._story)
        self.start_accountant()

    def start_accountant(self) -> None:
        conf = self.folder / "etc" / "slurmdbd.conf"
        settings = {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.socket}",
            "DbdHost": "localhost",
            "DbdAddr": "127.0.0.1",
            "SlurmUser": _account(),
            "LogFile": self.folder / "log/slurmdbd.log",
            "PidFile": self.folder / "slurmdbd.pid",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "localhost",
            "StorageUser": "slurm",
            "StorageLoc": "slurm_acct",
        }
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        conf.chmod(0o600)
        self._accountant = self._start(
            "slurmdbd",
            "-D",
            variables={
                "SLURM_CONF": str(conf),
                "MYSQL_UNIX_PORT": str(self.folder / "mysql.sock"),  # slurmdbd.conf has no key
            },
        )
        wait_until(self._accounts, _BOOT_SECONDS, "slurmdbd", self._story)

    def _accounts(self) -> bool:
        try:
            self.run("sacctmgr", "--noheader", "show", "cluster", seconds=3)
        except BootError:
            return False
        return True

    def stop_accountant(self) -> None:
        """Stop slurmdbd: accounting does not answer until `start_accountant`."""
        if self._accountant is None:
            raise BootError(f"{self.name} has no accounting")
        self._reaper.end(self._accountant, signal.SIGTERM)
        self._accountant = None

    def start_nodes(self) -> None:
        for name in self.nodes:
            (self.folder / "spool" / name).mkdir()
            self.start_node(name)

    def start_node(self, name: str) -> None:
        arguments = ("-D", "-N", name, "-f", str(self.conf))
        self._nodes[name] = self._start("slurmd", *arguments, reaper=self._node_reaper)

    def break_prolog(self, *names: str, act: str = "exit 1") -> None:
        """Let the prologs of nodes fail: they begin no job, and Slurm drains them.

        `act` is a line of sh that they run instead.
        """
        for name in names:
            (self._broken / name).write_text(act)

    def repair_all(self) -> None:
        """Let all prologs succeed again, and return drained nodes to service."""
        for name in self.nodes:
            (self._broken / name).unlink(missing_ok=True)
        if drained := self.run("sinfo", "-h", "-p", "main", "-t", "drain", "-o", "%N").strip():
            self.run("scontrol", "update", f"nodename={drained}", "state=resume")

    @contextlib.contextmanager
    def full_spool(self, name: str) -> Iterator[None]:
        """Let the folder in which a node keeps scripts be full: a small tmpfs (as root)."""
        spool = self.folder / "spool" / name
        self._node_reaper.end(self._nodes.pop(name), signal.SIGTERM)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", spool], check=True)
        try:
            self.start_node(name)
            self.wait_ready()
            with contextlib.suppress(OSError):
                (spool / "filler").write_bytes(bytes(65536))
            yield
        finally:
            self._node_reaper.end(self._nodes.pop(name), signal.SIGTERM)
            subprocess.run(["umount", "--lazy", spool], check=True)
            self.start_node(name)

    def kill_node(self, name: str) -> None:
        """Kill the slurmd of a node; its jobs go on."""
        self._node_reaper.end(self._nodes.pop(name), signal.SIGKILL)

    def start_controller(self, wait: bool = True, clock: str = "") -> None:
        """Start slurmctld. `clock` is an offset of its clock, see `fake_clock.shifted_by`."""
        variables = fake_clock.shifted_by(clock) if clock else {}
        self._controller = self._start("slurmctld", "-D", "-f", str(self.conf), variables=variables)
        if wait:
            self.wait_ready()

    def stop_controller(self) -> None:
        """Stop slurmctld by SIGTERM; it has saved its state on return."""
        self._end_controller(signal.SIGTERM)

    def kill_controller(self) -> None:
        """Kill slurmctld: its unsaved state is lost."""
        self._end_controller(signal.SIGKILL)

    @contextlib.contextmanager
    def forgetting(self) -> Iterator[None]:
        """Make the controller lose all changes of the block.

        The effect is that of a kill at the end of the block, with the state last saved before it.
        """
        state, saved = self.folder / "state", self.folder / "saved"
        self.stop_controller()
        shutil.copytree(state, saved)
        self.start_controller()
        try:
            yield
        finally:
            self.kill_controller()
            shutil.rmtree(state)
            saved.rename(state)
            self.start_controller()

    @property
    def controller(self) -> int:
        """The process id of slurmctld."""
        if self._controller is None:
            raise BootError(f"the controller of {self.name} is not running")
        return self._controller

    def _end_controller(self, number: signal.Signals) -> None:
        self._reaper.end(self.controller, number)
        self._controller = None

    def wait_ready(self) -> None:
        """Wait until the controller answers and every node is up."""
        wait_until(self._ready, _BOOT_SECONDS, f"cluster {self.name}", self._story)

    def _ready(self) -> bool:
        if not Path(f"/proc/{self.controller}").exists():
            raise BootError(f"slurmctld of {self.name} has ended\n{self._story()}")
        try:
            states = self.run("sinfo", "-h", "-N", "-o", "%t", seconds=3).split()
        except BootError:
            return False
        return len(states) > 0 and all(s in ("idle", "alloc", "mix", "comp") for s in states)

    def empty(self) -> None:
        """Cancel every job and wait until none is left in the queue."""
        self.run("scancel", "--user", _account())
        wait_until(
            lambda: self.run("squeue", "-h", "-o", "%i").strip() == "",
            _BOOT_SECONDS,
            f"the queue of {self.name} to become empty",
            self._story,
        )

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [f"{self.spec.prefix}{i}" for i in range(1, self.spec.nodes + 1)]

    def _start(
        self,
        program: str,
        *arguments: str,
        reaper: Reaper | None = None,
        variables: Mapping[str, str] = {},
    ) -> int:
        path = shutil.which(program, path=SEARCH_PATH)
        if path is None:
            raise BootError(f"{program} not found")
        environment = {"PATH": SEARCH_PATH, "LANG": "C.UTF-8", **variables}
        log = self.folder / "log" / f"{program}.out"
        return (reaper or self._reaper).start([path, *arguments], environment, log)

    def _story(self) -> str:
        logs = sorted(self.folder.glob("log/*")) + sorted(self.folder.glob("munge/*.log"))
        tails = [(log.name, log.read_text(errors="replace").splitlines()[-5:]) for log in logs]
        return "\n".join(f"{name}: {line}" for name, lines in tails for line in lines)

    def _write_gres(self) -> None:
        lines = []
        for number in range(self.spec.gpus):
            device = self.folder / f"gpu{number}"  # slurmd counts only devices that have a file
            device.touch()
            lines.append(f"NodeName={self.nodes[-1]} Name=gpu File={device}\n")
        (self.folder / "etc" / "gres.conf").write_text("".join(lines))

    def _write_prolog(self) -> None:
        self._broken.mkdir()
        prolog = self.folder / "etc" / "prolog"
        act = f'"{self._broken}/$SLURMD_NODENAME"'
        prolog.write_text(f"#!/bin/sh\n! [ -e {act} ] || . {act}\n")
        prolog.chmod(0o755)

    def _settings(self, ports: _Ports, accountant: Path | None) -> str:
        spec, host = self.spec, socket.gethostname().split(".")[0]
        address, node_address = "127.0.0.1", "127.0.0.1"
        if spec.host is not None:
            address, node_address = FIRST_ADDRESS, ADDRESS
        names = f"{spec.prefix}[1-{spec.nodes}]"
        settings = {
            "ClusterName": self.name,
            "SlurmctldHost": f"{host}({address})",
            "SlurmUser": _account(),
            "SlurmdUser": _account(),
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.socket}",
            "CredType": "cred/munge",
            "SlurmctldPort": ports.take(),
            "SlurmdPort": ports.take(),
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool/%n",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": self.folder / "slurmd.%n.pid",
            "SlurmctldLogFile": self.folder / "log/slurmctld.log",
            "SlurmdLogFile": self.folder / "log/slurmd.%n.log",
            # of a separate network every address may be listened on
            **({} if spec.host else {"CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny"}),
            "SlurmdParameters": "config_overrides",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "SwitchType": "switch/none",
            "MpiDefault": "none",
            "MailProg": "/bin/true",
            "ReturnToService": 2,
            "PriorityType": "priority/basic",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU_Memory",
            "DefMemPerCPU": 100,
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_interval=5,sched_min_interval=0,bf_interval=2,"
            "bf_window=1440,default_queue_depth=200,batch_sched_delay=0",
            "MinJobAge": 300,
            "KillWait": 2,
            "SlurmctldTimeout": 30,
            "SlurmdTimeout": 30,
            "MessageTimeout": 10,
            "MaxJobCount": 50000,
            "AccountingStorageType": "accounting_storage/none",
            "JobCompType": "jobcomp/none",
            **({"GresTypes": "gpu"} if spec.gpus else {}),
            **({"Prolog": self.folder / "etc/prolog"} if spec.prolog else {}),
            **(self._accounting_settings(accountant) if accountant else {}),
            **dict(line.split("=", 1) for line in spec.settings),
        }
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr={node_address} Port={ports.take()} "
            f"CPUs={spec.cpus} RealMemory={spec.memory} Feature={spec.features}"
            + (f" CoresPerSocket={spec.cpus // spec.threads}" if spec.threads > 1 else "")
            + (f" ThreadsPerCore={spec.threads}" if spec.threads > 1 else "")
            + (f" Gres=gpu:{spec.gpus}" if spec.gpus and name == self.nodes[-1] else "")
            for name in self.nodes
        ]
        partitions = [
            f"PartitionName=main Nodes={names} Default=YES MaxTime=1-00:00:00 DefaultTime=10:00",
            f"PartitionName=short Nodes={names} MaxTime=30:00 MaxNodes=2",
        ]
        return "\n".join([*(f"{k}={v}" for k, v in settings.items()), *nodes, *partitions, ""])


class _Ports:
    """Free ports of loopback, held (bound, not listening) against other runs of the harness."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self) -> int:
        draw = random.SystemRandom()
        for _ in range(1000):
            port = draw.randrange(10000, _EPHEMERAL_PORTS_BEGIN)
            try:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
                # The daemons set SO_REUSEADDR, and may so share the port with this socket.
                holder = socket.socket()
                self._held.append(holder)
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                holder.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
        raise BootError("no free port on 127.0.0.1")

    def close(self) -> None:
        for holder in self._held:
            holder.close()


def _account() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name
