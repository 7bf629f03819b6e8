"""Attacks of account a on a site: they may harm account a only.

A strike is a step of an attack, about a second of work. Its `bare` counterpart puts the same load
on the manager itself, without metasched: a could always do that to b.
"""

from __future__ import annotations

import json
import os
import pwd
import random
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from metasched.client.site_answers import HealthRow
from metasched.paths import PROTOCOL_HEADER
from tests.e2e.conftest import COMMAND, ENDED
from tests.harness import accounts
from tests.harness.accounts import A, B
from tests.hostile.sites import CELL_LIMIT, FREE_ACCOUNT, HostileSite

MAX_STALLED = 3  # stalled dispatches at a time
HALF_OPEN = 150  # connections at a time
NESTED_BYTES = 8_000_000
PATIENCE = 600.0  # seconds until the jobs of a, perhaps 15,000, have ended after an attack

# Sends standard input to a socket, a number of times, and reads the answers.
SEND = """
import socket, sys
data = sys.stdin.buffer.read()
for _ in range(int(sys.argv[2])):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        try:
            peer.connect(sys.argv[1])
            peer.sendall(data)
            while peer.recv(65536):
                pass
        except OSError:
            pass
"""
# Sends standard input to a socket over a number of connections, and leaves them open for a time.
HOLD = """
import socket, sys, time
data, peers = sys.stdin.buffer.read(), []
for _ in range(int(sys.argv[2])):
    peer = socket.socket(socket.AF_UNIX)
    peers.append(peer)
    peer.settimeout(5)
    try:
        peer.connect(sys.argv[1])
        peer.sendall(data)
    except OSError:
        pass
time.sleep(float(sys.argv[3]))
"""
# Shell commands of an account in the folder of claims and below it.
IN_FENCE = (
    "for d in jobs-0 jobs-1 0 1; do ln -s $VICTIM $d; done",
    "for d in jobs-0 jobs-1 0 1; do mkdir -m 777 $d; echo x >$d/task.0; done",
    "for d in jobs-0 jobs-1 0 1; do mkdir -m 700 $d; done",
    "rm -rf ./* jobs-0/* jobs-0",
    "chmod -R 777 . jobs-0; chmod 0 . jobs-0",
    "ls -la . jobs-0; for i in 0 1 2 3; do echo x >jobs-0/task.$i; ln -sf $VICTIM jobs-0/l$i; done",
)
# Finds the folder of claims of the job that runs this script: its shell has read the path.
FIND_CLAIM = """#!/bin/sh
for file in $(tr '\\0' ' ' </proc/$PPID/cmdline); do
  [ -f "$file" ] && folder=$(grep -ahos "/[^'\\" ]*/claims-[0-9a-f]*" "$file" | head -n 1)
  [ -n "$folder" ] && break
done
cd "${folder:-/nowhere}" || exit
"""
IN_CLAIMS = (
    "echo ended 0 99999999999 >>task.0; exit 9",
    "rm -f task.0; exit 9",
    "rm -f task.0; mkfifo task.0 task.1 task.2",
    "rm -f task.0; ln -s /etc/passwd task.0",
    "rm -f task.0; mkdir -m 0 task.0",
    "head -c 3000000 /dev/zero >>task.0",
    "for i in $(seq 300); do : >task.$i; done",
)
HOSTILE_TEXTS = (
    "ms-{instance}-{job}-1",
    "ms-{instance}-{nines}-1",
    "ms-{instance}-{job}-{nines}",
    "ms-{instance}-{job}-1/a",
    "ms-{instance}-{job}-1/{nines}",
    "ms-{instance}-{job}-1\nJOBID|x|\t\u0661",
    "ms-{instance}-0{job}-01",
    "$(touch /tmp/x)`id`;|&",
    "--uid=0",
    "../../../etc/passwd",
    "%x%j%A%a%%",
    "\u202e\u2066\U0001f4a3",
    "a" * 900,
    "'\"\\\r\n",
)


class Attacker:
    """Account a on a site. Every draw depends on the seed."""

    def __init__(self, hostile: HostileSite, seed: str) -> None:
        self.hostile, self.draw = hostile, random.Random(seed)
        self.site = hostile.site.by(A)
        self.home = self.site.folder / A
        self.cluster = hostile.clusters[0]
        self._stall = self.home / "stall"
        self._stalled = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._instance = self._health()["instance"]

    def _health(self) -> HealthRow:
        return self.hostile.site._client.health()

    @property
    def socket(self) -> str:
        """The daemon's socket."""
        return str(self.site.state / "ms.sock")

    # Helpers

    def start(self, *command: str, data: bytes = b"", folder: str = "/") -> None:
        """Start a command as a, near the manager; it is ended by `undo` at the latest."""
        self._processes = [process for process in self._processes if process.poll() is None]
        process = subprocess.Popen(
            [*self.hostile.inside, *accounts.become(A), *command],
            env={**self.hostile.environment, "HOME": str(self.home)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._processes.append(process)
        assert process.stdin is not None
        with suppress(OSError):  # it may have ended
            process.stdin.write(data)
        with suppress(OSError):
            process.stdin.close()

    def finish(self, seconds: float = 20.0) -> None:
        """Wait for the commands that were started."""
        end = time.monotonic() + seconds
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))

    def run(self, *command: str, data: bytes = b"", folder: str = "/") -> None:
        """Run a command as a, for a limited time."""
        self.start(*command, data=data, folder=folder)
        self.finish()

    def send(
        self, method: str, path: str, body: bytes = b"", times: int = 1, fields: str = ""
    ) -> None:
        """Send a request to the daemon, with further header `fields`; ignore its answer."""
        head = f"{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\n{fields}"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        data = head.encode(errors="replace") + body
        self.start(sys.executable, "-I", "-S", "-c", SEND, self.socket, str(times), data=data)

    def submit(self, **fields: object) -> None:
        """Submit a job of a over the API."""
        environment = fields.pop("variables", {"PATH": "/usr/bin:/bin"})
        script = fields.pop("script", "#!/bin/sh\ntrue\n")
        job = {
            "script": "s",
            "environment": "e",
            "directory": str(self.home),
            "output": "/dev/null",
            "clusters": [self.cluster],
            "time_limit": 300.0,
            **fields,
        }
        body = {"jobs": [job], "scripts": {"s": script}, "environments": {"e": environment}}
        self.send("POST", "/jobs", json.dumps(body).encode())

    def hostile_text(self) -> str:
        """Draw a text that imitates a tag, an option or a path, or a random text."""
        if self.draw.random() < 0.2:
            length = self.draw.randrange(200)
            return "".join(chr(self.draw.choice((*range(1, 400), 0xFFFD))) for _ in range(length))
        pattern = self.draw.choice(HOSTILE_TEXTS)
        values = {"instance": self._instance, "job": self._any_job(), "nines": "9" * 24}
        for name, value in values.items():
            pattern = pattern.replace(f"{{{name}}}", value)
        return pattern

    def _any_job(self) -> str:
        return str(self.draw.randrange(1, 300))

    # The load on the manager itself

    def submit_bare(self, *options: str, name: str = "bare") -> None:
        """Submit a short job to the manager itself."""
        match self.hostile.site_name:
            case "slurm":
                command = ("/usr/bin/sbatch", "-A", FREE_ACCOUNT, "-o", "/dev/null", *options)
                self.run(*command, "--wrap", "true")
            case "gridengine":
                command = (
                    "/usr/lib/gridengine/qsub",
                    "-N",
                    name,
                    "-o",
                    "/dev/null",
                    "-e",
                    "/dev/null",
                )
                self.run(*command, *options, "-b", "y", "/bin/true")
            case _:
                self.run("/bin/true")

    def submit_bare_held(self) -> None:
        """Submit a held job to the manager itself, and sometimes remove all of them."""
        self.submit_bare(*_HELD[self.hostile.site_name])
        self._remove_sometimes()

    def list_bare(self) -> None:
        """List the manager's jobs."""
        listing = {"slurm": ("/usr/bin/squeue",), "gridengine": ("/usr/bin/qstat", "-u", "*")}
        for _ in range(4):
            self.start(*listing.get(self.hostile.site_name, ("/bin/ls", "-R", "/etc")))
        self.finish()

    def _remove_sometimes(self) -> None:
        if self.draw.random() < 0.1:
            self._remove_bare()

    def _remove_bare(self) -> None:
        remove = {"slurm": ("scancel", "-u", A), "gridengine": ("sh", "-c", f"qdel -u {A} || true")}
        if self.hostile.manager is not None:
            self.hostile.manager(*remove[self.hostile.site_name])

    # Attacks

    def forge_tag(self) -> None:
        """Submit a held job directly to the manager, with a text such as the tag of another job."""
        text = self.hostile_text().replace("\0", "")
        if self.hostile.site_name == "slurm":
            option = self.draw.choice(("--comment", "--wckey", "--job-name"))
            array = self.draw.choice(((), (), ("--array=0-9",)))
            self.submit_bare("-H", f"{option}={text}", *array)
        else:
            name = "".join(c for c in text if c in string.ascii_letters + string.digits + "-.+_")
            self.submit_bare("-h", name=name or "x")
        self._remove_sometimes()

    def attack_claims(self) -> None:
        """Create, replace, remove and open entries of the folder of claims."""
        folder, victim = str(self.hostile.fence), str(self.site.database)
        attack = f"cd {folder} || exit; export VICTIM={victim}; {self.draw.choice(IN_FENCE)}"
        self.run("/bin/sh", "-c", attack)
        if self.draw.random() < 0.3:  # from within a job, which has a claim there itself
            self.submit(script=f"#!/bin/sh\n{attack}\n")

    def stall(self) -> None:
        """Make the command that acts for a hang."""
        if self._stalled >= MAX_STALLED:
            time.sleep(0.2)
            return
        self._stalled += 1
        if self.hostile.site_name == "local":
            self.submit(script="#!/bin/sh\nsleep 5\n")
            self.finish()
            for process in self._supervisors():
                process.suspend()
            return
        if not self._stall.exists():
            self._stall.mkdir()
            fifo = self._stall / ".sge_request"  # qsub reads it in the directory of the job
            os.mkfifo(fifo)
            owner = pwd.getpwnam(A)
            for path in (self._stall, fifo):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        native = {"alpha": f"--bbf={self._stall}/.sge_request"}
        self.submit(
            directory=str(self._stall), native=native if self.hostile.site_name == "slurm" else {}
        )

    def exhaust_limit(self) -> None:
        """Submit more jobs than the manager accepts from a."""
        self.submit(array=f"1-{CELL_LIMIT + 4}", script="#!/bin/sh\nsleep 0.2\n")

    def forge_end(self) -> None:
        """Write false ends and other entries into the folder of a job's own claims."""
        self.submit(script=f"{FIND_CLAIM}{self.draw.choice(IN_CLAIMS)}\n")
        self.finish()

    def half_open(self) -> None:
        """Open connections and send half a request, or nothing, over each."""
        data = self.draw.choice(
            (
                b"",
                b"G",
                b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Le",
                b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n[",
                b"GET /jobs HTTP/1.1\r\nHost: x\r\n\r\nGET /jo",
            )
        )
        command = (sys.executable, "-I", "-S", "-c", HOLD, self.socket, str(HALF_OPEN), "2")
        self.run(*command, data=data)

    def nest_body(self) -> None:
        """Send a body of 10 MB, nested as deep as it goes."""
        opening = self.draw.choice((b"[", b'{"a":', b'[{"jobs":'))
        path = self.draw.choice(("/jobs", "/jobs/modify", "/reservations", "/jobs/cancel"))
        self.send("POST", path, opening * (NESTED_BYTES // len(opening)))
        self.finish()

    def flood(self) -> None:
        """Ask for the status of everything, from several processes."""
        for _ in range(3):
            path = self.draw.choice(
                ("/jobs?all=true", "/clusters", "/health", f"/jobs/{self._any_job()}/explain")
            )
            self.send("GET", path, times=20)
        self.finish()

    def submit_odd(self) -> None:
        """Submit a job with hostile name, options and environment."""
        text = self.hostile_text
        options = (
            f"--comment='{text()}'",
            "--uid=0",
            "--wrap=id",
            "-D /",
            "--dependency=singleton",
            "--signal=B:9@1",
            "-N ms-x-1-1",
            "-t 1-1000000",
            "--jobid=1",
            text(),
        )
        fields: dict[str, object] = {"name": text()}
        if self.draw.random() < 0.5:
            fields["native"] = {self.cluster: self.draw.choice(options)}
        if self.draw.random() < 0.5:
            names = ("LD_PRELOAD", "BASH_ENV", "PATH", "IFS", "METASCHED_TAG", "SLURM_CONF", text())
            fields["variables"] = {self.draw.choice(names): text() for _ in range(3)}
        if self.draw.random() < 0.3:
            fields["array"] = self.draw.choice(("0-3", "1-9:2%1", "0-99999999", "3,3,3", "9-1"))
        if self.draw.random() < 0.3:
            fields["directory"] = self.draw.choice(("/root", "/", "/proc/self/fd/0", text()))
        if self.draw.random() < 0.3:
            fields["time_limit"] = self.draw.choice((-1.0, 0.0, 1e300, 60.0))
        self.submit(**fields)
        self.finish()

    def reuse_key(self) -> None:
        """Submit under a key that was used for another job, under odd keys and odd versions."""
        draw, jobs = self.draw, []
        for _ in range(draw.choice((1, 1, 50))):
            jobs.append(
                {"script": "s", "environment": "e", "directory": "/", "output": "/dev/null"}
            )
        body = {
            "jobs": jobs,
            "scripts": {"s": f"#!/bin/sh\n: {draw.random()}\n"},
            "environments": {"e": {}},
        }
        key = draw.choice(("a", "b", "k" * 128, "k" * 60_000, "\u00e9\u0661", "a b", "", ".."))
        version = draw.choice(("1", "2", "-1", "9" * 5000, "NaN", ""))
        fields = f"Idempotency-Key: {key}\r\n{PROTOCOL_HEADER}: {version}\r\n"
        self.send("POST", "/jobs", json.dumps(body).encode(), times=3, fields=fields)
        self.finish()

    def meddle(self) -> None:
        """Request changes to jobs of others, and actions that only operators may request."""
        job = self.draw.choice((self._any_job(), f"{self._any_job()}_1", self.hostile_text()))
        path, body = self.draw.choice(
            (
                (f"/jobs/{self.draw.choice(_CHANGES)}", {"jobs": [job]}),
                (f"/jobs/{self.draw.choice(_CHANGES)}", {"user": B}),
                ("/jobs/modify", {"jobs": [job], "changes": {"time_limit": 1.0}}),
                (f"/clusters/{self.cluster}/drain", {"reason": self.hostile_text()}),
                ("/clusters/left/resume", {}),
                ("/licences/x/total", {"total": 0}),
                ("/licences/release", {"jobs": [job]}),
                ("/tokens", {"seconds": 1e9}),
                ("/tokens/1/revoke", {}),
                ("/reservations/1/cancel", {}),
                ("/reservations", {"least": 1, "most": 10**9, "user": B}),
            )
        )
        self.send("POST", path.replace(" ", "%20"), json.dumps(body).encode())
        self.finish()

    # Afterwards

    def undo(self) -> None:
        """Kill the commands of the attack, and wait until the jobs of a have ended."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes, self._stalled = [], 0
        for supervisor in self._supervisors():
            supervisor.resume()

        def ended() -> bool:
            self._end_stall()
            subprocess.run(
                [COMMAND, "cancel", "--user", A],
                env=self.site.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                **self.site.caller,
            )
            self._remove_bare()
            return all(row["state"] in ENDED for row in self.site.json("status", "--user", A))

        self.site.until(ended, PATIENCE)
        fifo = self._stall / ".sge_request"
        with suppress(FileNotFoundError):
            fifo.unlink()
            self._stall.rmdir()

    def _supervisors(self) -> list[psutil.Process]:
        """Return the processes of a that the launcher of this site has started."""
        uid = pwd.getpwnam(A).pw_uid
        processes = []
        for process in self.hostile.site.launcher.process.children(recursive=True):
            with suppress(psutil.Error):
                if process.uids().real == uid:
                    processes.append(process)
        return processes

    def _end_stall(self) -> None:
        """Give end-of-file to a command that reads the FIFO."""
        with suppress(OSError):
            os.close(os.open(self._stall / ".sge_request", os.O_WRONLY | os.O_NONBLOCK))


_CHANGES = ("cancel", "hold", "release", "requeue", "lost", "ran")
_HELD = {"slurm": ("-H",), "gridengine": ("-h",), "local": ()}


@dataclass(frozen=True)
class Attack:
    """An attack, and the same load on the bare manager."""

    name: str
    strike: Callable[[Attacker], None]
    bare: Callable[[Attacker], None]
    kinds: tuple[str, ...] = ("local", "slurm", "gridengine")  # of sites


ATTACKS = (
    Attack("forged tags", Attacker.forge_tag, Attacker.submit_bare_held, ("slurm", "gridengine")),
    Attack("claims folder", Attacker.attack_claims, Attacker.list_bare),
    Attack("stalled command", Attacker.stall, Attacker.submit_bare),
    Attack("forged ends", Attacker.forge_end, Attacker.submit_bare),
    Attack("own limit", Attacker.exhaust_limit, Attacker.submit_bare, ("slurm", "gridengine")),
    Attack("half requests", Attacker.half_open, Attacker.list_bare),
    Attack("nested body", Attacker.nest_body, Attacker.list_bare),
    Attack("flood of requests", Attacker.flood, Attacker.list_bare),
    Attack("odd jobs", Attacker.submit_odd, Attacker.submit_bare),
    Attack("submission keys", Attacker.reuse_key, Attacker.submit_bare),
    Attack("jobs of others", Attacker.meddle, Attacker.list_bare),
)


def attacks_on(site_name: str) -> Sequence[Attack]:
    """Return the attacks on a kind of site."""
    return [attack for attack in ATTACKS if site_name in attack.kinds]
