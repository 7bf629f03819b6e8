"""The launcher, run by root, against misuse."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from metasched import launcher
from metasched.adapters.launcher_client import LauncherClient
from metasched.launcher import PROTOCOL
from metasched.model.adapter_errors import Refused, SiteFault, Unreachable
from metasched.processes.commands import wait_for_result
from tests.harness import accounts
from tests.harness.accounts import DENIED, DENIED_GROUP, KEEPER, A, B
from tests.harness.reaper import dying_with
from tests.harness.root_launcher import launcher_of

pytestmark = pytest.mark.root

PYTHON = "/usr/bin/python3"
PROBE = """
import ctypes, json, os, signal, sys
def fds():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass  # the descriptor of this listing
    return found
umask = os.umask(0)
print(json.dumps({
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
    "environment": dict(os.environ), "directory": os.getcwd(), "umask": umask, "fds": fds(),
    "arguments": sys.argv[1:], "said": sys.stdin.read(), "session": os.getsid(0) == os.getpid(),
    "no_new_privs": ctypes.CDLL(None).prctl(39, 0, 0, 0, 0),
    "ignored": [int(s) for s in signal.valid_signals()
                if signal.getsignal(s) == signal.SIG_IGN and s not in (13, 25)],  # Python's own
}), flush=True)
"""
WAIT = "import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
CHANGE = """
import itertools, os, sys
link, *targets = sys.argv[1:]
for target in itertools.cycle(targets):
    os.symlink(target, link + ".new")
    os.rename(link + ".new", link)
"""


class RunningLauncher:
    """A launcher with a few programs; `ask` sends a message as the daemon does."""

    program = Path(launcher.__file__)

    def __init__(self, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        """`variables` are added to the environment of the launcher."""
        self._variables = variables or {}
        accounts.make(KEEPER, A, B)
        folder.mkdir(mode=0o711)
        self.folder = folder
        self.socket = folder / "own" / "launcher.sock"
        self.config = folder / "launcher.toml"
        for name, text in (("probe.py", PROBE), ("wait.py", WAIT)):
            (folder / name).write_text(text)
        self.config.write_text(
            f'socket = "{self.socket}"\naccount = "{KEEPER}"\ndeny = ["{B}"]\n'
            '[cluster.alpha]\nenvironment = { CONF = "/etc/conf" }\n'
            f'submit = ["{PYTHON}", "-I", "-S", "{folder}/probe.py"]\n'
            'cancel = ["/bin/echo"]\n'
            f'[cluster.slow]\nsubmit = ["{PYTHON}", "-I", "-S", "{folder}/wait.py"]\n'
            f'supervise = ["{PYTHON}", "-I", "-S", "{folder}/wait.py"]\n'
        )
        (folder / "closed").mkdir(mode=0o700)
        self.user_folder = folder / "mine"
        self.user_folder.mkdir()
        os.chown(self.user_folder, uid(A), -1)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        leak, self._leak = os.pipe()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-I", "-S", self.program, "--config", str(self.config)],
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": "/tmp/evil",
                    "BASH_ENV": "/tmp/evil",
                    **self._variables,
                },
                stdout=log,
                stderr=log,
                pass_fds=[leak],
                preexec_fn=dying_with(os.getpid()),
            )
        os.close(leak)
        wait_for(self.socket.exists)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            os.close(self._leak)

    def client(self, cluster: str = "alpha") -> LauncherClient:
        return LauncherClient(self.socket, cluster)

    def ask(self, body: bytes, length: int | None = None, fds: Sequence[int] = ()) -> Any:
        """Return the answer to a message, None if the launcher closes the connection."""
        with self.connected() as connection:
            head = struct.pack(">I", len(body) if length is None else length)
            socket.send_fds(connection, [head + body], fds)
            if length is not None:
                connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").readline()
        return json.loads(answer) if answer else None

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as connection, acting(KEEPER):
            connection.settimeout(30)
            connection.connect(str(self.socket))
            yield connection


def uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


@contextmanager
def acting(name: str) -> Iterator[None]:
    """Set another effective uid, which the kernel reports to the peer of a connection."""
    os.seteuid(uid(name))
    try:
        yield
    finally:
        os.seteuid(0)


def wait_for(met: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not met():
        assert time.monotonic() < end
        time.sleep(0.02)


def message(**other: object) -> bytes:
    fields: dict[str, object] = {
        "protocol": PROTOCOL,
        "job": "",
        "uid": uid(A),
        "cluster": "alpha",
        "verb": "cancel",
        "arguments": ["1"],
        "directory": "/",
        "umask": 0o022,
    }
    return json.dumps(fields | other).encode()


@pytest.fixture(scope="module")
def running_launcher(common_folder: Path) -> Iterator[RunningLauncher]:
    running = RunningLauncher(common_folder / "launcher")
    try:
        running.start()
        yield running
    finally:
        running.stop()


def probe(running_launcher: RunningLauncher, **request: Any) -> dict[str, Any]:
    with acting(KEEPER):
        started = running_launcher.client().start(A, "submit", **request)
    process_result = wait_for_result(started, "probe", 30)
    assert process_result.exit_code == 0, process_result
    report: dict[str, Any] = json.loads(process_result.stdout)
    return report


def test_a_command_runs_completely_as_its_owner(running_launcher: RunningLauncher) -> None:
    reads, writes = os.pipe()
    os.write(writes, b"of the user")
    os.close(writes)
    inheritable = os.memfd_create("kept")
    try:
        report = probe(
            running_launcher,
            arguments=["--x=1", "two words", "new\nline", "$(id)"],
            directory=str(running_launcher.user_folder),
            umask=0o027,
            stdin=reads,
            extra_fd=inheritable,
        )
    finally:
        os.close(reads)
        os.close(inheritable)
    owner = pwd.getpwnam(A)
    assert report["uids"] == [owner.pw_uid] * 3
    assert report["gids"] == [owner.pw_gid] * 3
    assert set(report["groups"]) == set(os.getgrouplist(A, owner.pw_gid))
    assert report["arguments"] == ["--x=1", "two words", "new\nline", "$(id)"]
    assert (report["directory"], report["umask"]) == (str(running_launcher.user_folder), 0o027)
    assert (report["said"], report["session"]) == ("of the user", True)
    assert (report["no_new_privs"], report["ignored"]) == (1, [])
    assert report["environment"] == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "HOME": owner.pw_dir,
        "SHELL": owner.pw_shell,
        "USER": A,
        "LOGNAME": A,
        "CONF": "/etc/conf",
    }


def test_no_descriptor_leaks(running_launcher: RunningLauncher) -> None:
    assert probe(running_launcher)["fds"].keys() == {"0", "1", "2"}
    assert probe(running_launcher)["fds"]["0"] == "/dev/null"


ATTACKS: dict[str, tuple[dict[str, object], str]] = {
    "root": ({"uid": 0}, "user id 0 may not"),
    "a system account": ({"uid": 1}, "user id 1 may not"),
    "nobody": ({"uid": 65534}, "user id 65534 may not"),
    "true for a uid": ({"uid": True}, "must be of type int"),
    "a uid in words": ({"uid": "0"}, "must be of type int"),
    "a uid below nothing": ({"uid": -1}, "user id -1 may not"),
    "a uid that wraps round to root": ({"uid": 2**32}, "may not"),
    "no such account": ({"uid": 59_998}, "no account with user id 59998"),
    "an account that is denied": ({"uid": "B"}, f"user {B} may not"),
    "the daemon itself": ({"uid": "KEEPER"}, "may not"),
    "an option among ids": ({"arguments": ["--user=root"]}, "not permitted"),
    "a name among ids": ({"arguments": ["all"]}, "not permitted"),
    "a newline among ids": ({"arguments": ["1\n2"]}, "not permitted"),
    "a path among ids": ({"arguments": ["../1"]}, "not permitted"),
    "nothing among ids": ({"arguments": [""]}, "not permitted"),
    "arguments for a supervisor": (
        {"cluster": "slow", "verb": "supervise", "arguments": ["-c"]},
        "not permitted",
    ),
    "a NUL": ({"verb": "submit", "arguments": ["a\0b"]}, "no text"),
    "half a character": ({"verb": "submit", "arguments": ["\ud800"]}, "no text"),
    "arguments that are one": ({"arguments": "1"}, "must be of type list"),
    "too many arguments": ({"arguments": ["1"] * 10_001}, "more than 10000"),
    "a directory without a root": ({"directory": "tmp"}, "not absolute"),
    "a directory with a NUL": ({"directory": "/\0"}, "no text"),
    "a file for a directory": ({"directory": "/etc/passwd"}, "Not a directory"),
    "two files": ({"verb": "tail", "arguments": ["a", "b"]}, "as its only argument"),
    "no file": ({"verb": "tail", "arguments": []}, "as its only argument"),
    "a file of root's": (
        {"verb": "tail", "arguments": ["/etc/shadow"]},
        "file: Permission denied",
    ),
    "a device": ({"verb": "tail", "arguments": ["/dev/zero"]}, "it is no regular file"),
    "a folder": ({"verb": "tail", "arguments": ["/tmp"]}, "it is no regular file"),
    "a file of a denied account": ({"verb": "tail", "uid": "B"}, f"user {B} may not"),
    "a file as root": ({"verb": "tail", "uid": 0}, "user id 0 may not"),
    "a directory of root's": ({"directory": "/root"}, "directory /root: Permission denied"),
    "a umask of another world": ({"umask": 0o1777}, "makes no sense"),
    "an environment": ({"environment": {"LD_PRELOAD": "/tmp/evil.so"}}, "must have"),
    "a group": ({"gid": 0}, "must have"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused(running_launcher: RunningLauncher, attack: str) -> None:
    changed, expected = ATTACKS[attack]
    names = {"B": B, "KEEPER": KEEPER}
    if changed.get("uid") in names:
        changed = {**changed, "uid": uid(names[str(changed["uid"])])}
    answer = running_launcher.ask(message(**changed))
    assert answer.keys() == {"refused", "retryable", "protocol"}, answer
    assert expected in answer["refused"]


MISMATCH = "the daemon has protocol {}, this launcher {}; install the same release of both, then "
FAULTS: dict[str, tuple[dict[str, object], str]] = {
    "a program that is not configured": ({"verb": "release"}, "no 'release' for cluster 'alpha'"),
    "no verb at all": ({"verb": "environment"}, "no 'environment'"),
    "a path for a verb": ({"verb": "/bin/sh"}, "no '/bin/sh'"),
    "a path for a cluster": ({"cluster": "../alpha"}, "no cluster '../alpha', only alpha, slow;"),
    "a daemon of a later release": ({"protocol": 3}, MISMATCH.format(3, 2)),
    "a daemon of an earlier release": ({"protocol": 1}, MISMATCH.format(1, 2)),
    "no protocol": ({"protocol": None}, MISMATCH.format("null", 2)),
    "another protocol with other keys": ({"protocol": 3, "uid": [0]}, MISMATCH.format(3, 2)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_site_is_no_refusal(running_launcher: RunningLauncher, fault: str) -> None:
    changed, reason = FAULTS[fault]
    answer = running_launcher.ask(message(**changed))
    assert answer.keys() == {"fault", "protocol"}, answer
    assert reason in answer["fault"]


def test_invalid_messages(running_launcher: RunningLauncher) -> None:
    for body, length, expected in (
        (b"", 1 << 31, "longer than"),
        (b"", (1 << 32) - 1, "longer than"),
        (json.dumps({"protocol": PROTOCOL}).encode(), None, "must have"),
        (b"[" * 100_000, None, "no JSON"),
        (b"\xff\xfe", None, "no JSON"),
        (b'{"uid"', 500, "broke off"),
        (b"", 0, "no JSON"),
    ):
        answer = running_launcher.ask(body, length)
        assert expected in answer["refused"], (body[:20], answer)
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    try:
        assert "descriptors" in running_launcher.ask(message(), fds=descriptors)["refused"]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_an_incomplete_message_blocks_no_other(running_launcher: RunningLauncher) -> None:
    with running_launcher.connected() as connection:
        connection.sendall(b"\0\0")
        assert running_launcher.ask(message()) == {"code": 0, "protocol": PROTOCOL}


def test_only_the_daemon_account_is_served(running_launcher: RunningLauncher) -> None:
    with socket.socket(socket.AF_UNIX) as connection:  # root bypasses the mode of the socket
        connection.settimeout(30)
        connection.connect(str(running_launcher.socket))
        assert connection.recv(100) == b""
    with acting(A), pytest.raises(Unreachable, match="Permission denied"):
        running_launcher.client().check_access(A, "/")
    with acting(KEEPER):
        running_launcher.client().check_access(A, "/")


def test_a_changing_symlink_gives_no_access_to_other_folders(
    running_launcher: RunningLauncher,
) -> None:
    """The owner enters the directory; root does not resolve the path first."""
    link = running_launcher.user_folder / "link"
    link.symlink_to(running_launcher.user_folder)
    changing = subprocess.Popen(
        [
            PYTHON,
            "-c",
            CHANGE,
            str(link),
            str(running_launcher.user_folder),
            str(running_launcher.folder / "closed"),
        ],
        preexec_fn=dying_with(os.getpid()),
        **accounts.as_(A),
    )
    outcomes = set()
    try:
        for _ in range(20):
            reads, writes = os.pipe()
            nothing = os.open(os.devnull, os.O_RDONLY)
            body = message(verb="submit", directory=str(link), arguments=[])
            answer = running_launcher.ask(body, fds=[nothing, writes])
            os.close(nothing)
            os.close(writes)
            with open(reads) as file:
                output = file.read()
            outcomes.add(json.loads(output)["directory"] if output else answer["refused"])
    finally:
        changing.kill()
        changing.wait()
    assert outcomes <= {
        str(running_launcher.user_folder),
        f"directory {link}: Permission denied",
    }, outcomes


def test_the_end_of_a_file_is_read_as_its_owner(running_launcher: RunningLauncher) -> None:
    """A link or FIFO of a user reveals nothing of others, and delays nobody."""
    folder = running_launcher.user_folder
    closed = running_launcher.folder / "closed/secret"
    closed.write_text("of root")
    (folder / "whole").write_text("äb\n")
    (folder / "long").write_text("x" * launcher.TAIL_BYTES + "end")
    (folder / "trick").symlink_to(closed)
    os.mkfifo(folder / "fifo")
    os.chmod(folder / "fifo", 0o666)
    (folder / "loop").symlink_to("loop")
    client = running_launcher.client("")

    def tail(path: str) -> tuple[str, bool]:
        with acting(KEEPER):
            return client.tail(A, path, 10, str(folder))

    assert tail("whole") == ("äb\n", False)
    assert tail(str(folder / "whole")) == ("äb\n", False)
    assert tail("long") == ("x" * (launcher.TAIL_BYTES - 3) + "end", True)
    for path in ("/proc/self/environ", "/proc/self/mem", "/proc/self/maps", "/proc/self/fd/1"):
        with suppress(Refused):
            assert tail(path) == ("", False), path
    for path, cause in (
        ("trick", "file: Permission denied"),
        ("fifo", "it is no regular file"),
        ("loop", "Too many levels of symbolic links"),
        ("none", "file: No such file or directory"),
        ("", "No such file or directory"),
        ("x" * 5000, "File name too long"),
        ("a\0b", "no text"),
    ):
        with pytest.raises(Refused, match=cause):
            tail(path)


def test_a_file_that_hangs_ends_with_the_daemons_patience(
    running_launcher: RunningLauncher,
) -> None:
    """A reader that never reads stands for a filesystem that never answers."""
    folder = running_launcher.user_folder
    (folder / "much").write_bytes(bytes(launcher.TAIL_BYTES))
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while os.write(writes, bytes(1 << 12)):
            pass
    os.set_blocking(writes, True)
    body = message(verb="tail", arguments=["much"], directory=str(folder))
    assert running_launcher.ask(body, fds=[writes, writes])["signal"] == 9
    os.close(reads)
    os.close(writes)


def test_a_command_ends_with_its_connection_and_with_the_launcher(common_folder: Path) -> None:
    running_launcher = RunningLauncher(common_folder / "ends")
    running_launcher.start()
    try:
        with acting(KEEPER):
            first = running_launcher.client("slow").start(A, "submit")
            second = running_launcher.client("slow").start(A, "submit")
            reads, writes = os.pipe()
            nothing = os.open(os.devnull, os.O_RDWR)
            running_launcher.client("slow").start_detached(A, "supervise", nothing, writes, nothing)
        os.close(writes)
        with first, second, open(reads) as output:
            pids = [int(started.stdout.read(100)) for started in (first, second)]
            survivor = int(output.readline())
            first.kill()
            wait_for(lambda: not alive(pids[0]))
            assert alive(pids[1])
            running_launcher.stop()
            running_launcher.process = None
            wait_for(lambda: not alive(pids[1]))
            assert alive(survivor)
            os.kill(survivor, 9)
        os.close(nothing)
    finally:
        running_launcher.stop()


def alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False


def check(config: Path) -> str:
    done = subprocess.run(
        [PYTHON, "-I", "-S", launcher.__file__, "--check", "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if done.stderr else 0)
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_configuration_that_others_can_change_is_refused(common_folder: Path) -> None:
    running_launcher = RunningLauncher(common_folder / "files")
    assert check(running_launcher.config) == ""
    good = running_launcher.config.read_text()
    groups = 'deny_groups = ["weel"]\n[cluster.alpha]'
    for wrong, expected in (
        (good.replace(KEEPER, "root"), "account is root"),
        (good.replace(KEEPER, "no-such-account"), "no such account"),
        (good.replace('"/bin/echo"', '"echo"'), "no absolute path"),
        (good.replace('"/bin/echo"', '"/no/such/program"'), "No such file"),
        (
            good.replace('"/bin/echo"', f'"{running_launcher.user_folder}/mine"'),
            "can be changed by others",
        ),
        (good.replace("cancel", "burn"), "unknown key burn"),
        (good.replace("[cluster.alpha]", "min_uid = 5\n[cluster.alpha]"), "min_uid is 5"),
        (good.replace("[cluster.alpha]", 'min_uid = "x"\n[cluster.alpha]'), "must be of type int"),
        (
            good.replace("[cluster.alpha]", groups),
            "no group 'weel'",
        ),
        (good.replace("[cluster.alpha]", "[cluster.alpha]\nno_new_privs = 1"), "type bool"),
        (good.replace("[cluster.alpha]", "shell = true\n[cluster.alpha]"), "unknown key shell"),
        (good + "[", "correct that line"),
    ):
        running_launcher.config.write_text(wrong)
        assert expected in check(running_launcher.config), wrong
    running_launcher.config.write_text(good)
    running_launcher.config.chmod(0o666)
    assert "can be changed by others" in check(running_launcher.config)
    running_launcher.config.chmod(0o644)
    os.chown(running_launcher.config, uid(A), -1)
    assert "can be changed by others" in check(running_launcher.config)
    os.chown(running_launcher.config, 0, -1)
    link = running_launcher.user_folder / "mine"  # owned by root, but A can replace it
    link.symlink_to("/bin/echo")
    running_launcher.config.write_text(good.replace("/bin/echo", str(link)))
    assert "can be changed by others" in check(running_launcher.config)


def test_the_client_reports_the_refusal(running_launcher: RunningLauncher) -> None:
    with acting(KEEPER):
        with pytest.raises(Refused, match="no account 'nobody-of-that-name'"):
            running_launcher.client().check_access("nobody-of-that-name", "/")
        with pytest.raises(Refused, match="may not have jobs"):
            running_launcher.client().check_access("root", "/")
        with pytest.raises(Unreachable, match="launcher at"):
            LauncherClient(running_launcher.folder / "none", "alpha").check_access(A, "/")
        with pytest.raises(Refused, match="not permitted"):
            running_launcher.client().run(A, "cancel", ["--help"], 30)
        with pytest.raises(Refused, match="longer than"):
            running_launcher.client().run(A, "cancel", ["1" * 2_000_000], 30)


@pytest.fixture
def own_launcher(common_folder: Path, request: pytest.FixtureRequest) -> Iterator[RunningLauncher]:
    """Start a separate launcher, whose configuration the test may change."""
    running = RunningLauncher(common_folder / f"launcher-{request.node.name[:40]}")
    try:
        running.start()
        yield running
    finally:
        running.stop()


def test_a_launcher_of_another_protocol_is_a_fault_of_the_site(
    own_launcher: RunningLauncher,
) -> None:
    """What it refuses may be something else; the client must not reject a job for that."""
    client = own_launcher.client()
    for other in (PROTOCOL - 1, PROTOCOL + 1):
        own_launcher.stop()
        own_launcher.socket.unlink()
        own_launcher.program = launcher_of(other, own_launcher.folder)
        own_launcher.start()
        line = f"the launcher has protocol {other}, this daemon {PROTOCOL}; install the same "
        with acting(KEEPER):
            for check in (
                lambda: client.check_access(A, "/"),
                lambda: client.check_cluster(["submit"]),
                lambda: client.run(A, "submit", [], 30),
            ):
                with pytest.raises(SiteFault, match=line) as fault:
                    check()
                assert "\n" not in fault.value.reason


def probed_no_new_privs(running_launcher: RunningLauncher) -> int:
    flag: int = probe(running_launcher)["no_new_privs"]
    return flag


def test_a_program_that_no_user_can_run_is_a_fault_until_it_is_repaired(
    own_launcher: RunningLauncher,
) -> None:
    program, script = own_launcher.folder / "program", own_launcher.folder / "probe.py"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    text = own_launcher.config.read_text()
    own_launcher.config.write_text(text.replace("/bin/echo", str(program)))
    client = own_launcher.client()
    with acting(KEEPER):
        client.check_cluster(["submit", "cancel"])
    for path, verb, mode, reason in (
        (program, "cancel", 0o700, f"{program} is closed to the owners of jobs; chmod o+x it"),
        (script, "submit", 0o600, f"{script} is closed to the owners of jobs; chmod o+r it"),
    ):
        path.chmod(mode)
        assert own_launcher.ask(message(verb=verb))["fault"] == reason
        with acting(KEEPER), pytest.raises(SiteFault, match=re.escape(reason)):
            client.check_cluster(["submit", "cancel"])
        path.chmod(0o755)
        with acting(KEEPER):
            client.check_cluster(["submit", "cancel"])
    program.unlink()
    assert f"{program}: No such file" in own_launcher.ask(message())["fault"]


def test_a_program_that_a_group_may_run_is_refused_to_others_alone(
    own_launcher: RunningLauncher,
) -> None:
    program = own_launcher.folder / "program"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o750)
    os.chown(program, 0, pwd.getpwnam(B).pw_gid)
    text = own_launcher.config.read_text().replace(f'deny = ["{B}"]', "deny = []")
    own_launcher.config.write_text(text.replace("/bin/echo", str(program)))
    assert own_launcher.ask(message())["refused"] == f"{program}: Permission denied"
    assert own_launcher.ask(message(uid=uid(B))) == {"code": 0, "protocol": PROTOCOL}


def test_the_configuration_is_read_again_when_it_changes(own_launcher: RunningLauncher) -> None:
    text = own_launcher.config.read_text()
    for wrong, reason in (
        (
            text.replace("cluster.alpha", "cluster.alhpa"),
            "no cluster 'alpha', only alhpa, slow",
        ),
        (text + "[", "correct that line"),
        (text.replace(KEEPER, A), "account has changed in"),
        (text.replace(f'deny = ["{B}"]', f'deny = ["{A}"]'), f"user {A} may not have jobs here"),
    ):
        own_launcher.config.write_text(wrong)
        answer = own_launcher.ask(message())
        assert reason in answer.get("fault", answer.get("refused")), answer
        assert ("refused" in answer) == ("may not" in reason)
        own_launcher.config.write_text(text)
        assert own_launcher.ask(message()) == {"code": 0, "protocol": PROTOCOL}


def test_members_of_denied_groups_start_nothing_but_may_cancel(
    own_launcher: RunningLauncher,
) -> None:
    accounts.make_denied()
    text = own_launcher.config.read_text()
    own_launcher.config.write_text(f'deny_groups = ["{DENIED_GROUP}"]\n{text}')
    body = message(uid=uid(DENIED), verb="submit", directory="/tmp")
    answer = own_launcher.ask(body)
    assert answer["refused"] == (
        f"user {DENIED} is in group {DENIED_GROUP}, which may not have jobs here "
        "(deny_groups of launcher.toml)"
    )
    assert not answer["retryable"]
    # a job that runs since before the group was denied
    cancel = own_launcher.ask(message(uid=uid(DENIED), verb="cancel", arguments=["17"]))
    assert cancel == {"code": 0, "protocol": PROTOCOL}
    own_launcher.config.write_text(f"deny_groups = []\n{text}")
    assert own_launcher.ask(body) == {"code": 0, "protocol": PROTOCOL}


def test_a_denied_group_that_cannot_be_looked_up_is_a_fault(own_launcher: RunningLauncher) -> None:
    """A directory service that is away hides its groups, and with them who is denied."""
    group = "metasched-test-gone"
    subprocess.run(["groupadd", "--force", "--system", group], check=True)
    try:
        text = own_launcher.config.read_text()
        own_launcher.config.write_text(f'deny_groups = ["{group}"]\n{text}')
        own_launcher.stop()
        own_launcher.socket.unlink()
        own_launcher.start()
        body = message(verb="submit", directory="/tmp")
        assert own_launcher.ask(body) == {"code": 0, "protocol": PROTOCOL}
        subprocess.run(["groupdel", group], check=True)
        assert (
            f"group {group} of deny_groups cannot be looked up" in own_launcher.ask(body)["fault"]
        )
        with acting(KEEPER), pytest.raises(SiteFault, match="is the directory service away"):
            own_launcher.client().check_cluster(["submit"])
        subprocess.run(["groupadd", "--system", group], check=True)
        assert own_launcher.ask(body) == {"code": 0, "protocol": PROTOCOL}
    finally:
        subprocess.run(["groupdel", "--force", group], check=False)


def test_a_directory_of_a_missing_filesystem_may_come_back(own_launcher: RunningLauncher) -> None:
    """An unmounted filesystem leaves an empty folder of root."""
    mount_point = own_launcher.folder / "home"
    mount_point.mkdir()
    body = message(directory=str(mount_point / A / "project"))
    unmounted = own_launcher.ask(body)
    assert unmounted["retryable"]
    assert unmounted["refused"].endswith("No such file or directory; is its filesystem mounted?")
    (mount_point / B).mkdir()
    missing = own_launcher.ask(body)
    assert not missing["retryable"]
    assert missing["refused"].endswith("No such file or directory")


def test_no_program_gains_privileges_unless_the_site_allows_it(
    own_launcher: RunningLauncher,
) -> None:
    assert probed_no_new_privs(own_launcher) == 1
    text = own_launcher.config.read_text()
    setting = "[cluster.alpha]\nno_new_privs = false\n"
    own_launcher.config.write_text(text.replace("[cluster.alpha]\n", setting))
    assert probed_no_new_privs(own_launcher) == 0


def test_each_request_is_logged_in_one_line(own_launcher: RunningLauncher) -> None:
    arguments = ["--x=1", "new\nline \x1b[31m", "w" * 3000]
    tag = "ms-0123abcd-7-1"
    own_launcher.ask(message(verb="submit", arguments=arguments, job=tag, directory="/tmp"))
    own_launcher.ask(message(arguments=["--help"]))
    own_launcher.ask(b"nonsense\n2026-01-01T00:00:00Z verb=")

    def lines() -> list[str]:
        return (own_launcher.folder / "log").read_text().splitlines()

    wait_for(lambda: len(lines()) >= 4)
    start, submitted, refused, nonsense = lines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines())
    assert start.endswith(f"listens at {own_launcher.socket}, protocol {PROTOCOL}")
    subject = f'verb="submit" cluster="alpha" uid={uid(A)} user="{A}" job="{tag}" directory="/tmp"'
    shown = r'arguments=["--x=1", "new\nline \u001b[31m", "www'
    assert f"{subject} {shown}" in submitted
    assert '{"code": 0} after ' in submitted
    assert len(submitted) < 2000
    assert "argument '--help' is not permitted for cancel" in refused
    assert "is no JSON" in nonsense


def test_the_service_manager_hears_that_the_launcher_listens(common_folder: Path) -> None:
    address = f"metasched-launcher-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{address}")
        manager.settimeout(60)
        variables = {"NOTIFY_SOCKET": f"@{address}", "WATCHDOG_USEC": "800000"}
        running = RunningLauncher(common_folder / "launcher-notify", variables)
        try:
            running.start()
            assert manager.recv(4096).decode() == f"READY=1\nSTATUS=listens at {running.socket}"
            for _ in range(3):  # though nothing connects
                assert manager.recv(4096) == b"WATCHDOG=1"
            assert "NOTIFY_SOCKET" not in probe(running)["environment"]
        finally:
            running.stop()
