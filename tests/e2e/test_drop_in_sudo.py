"""The drop-in commands under `sudo -E`: nothing of the calling account runs as another."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from metasched.client.address import check_daemon
from metasched.client.job_daemon import job_variables
from metasched.client.sudo import may_be_changed
from metasched.errors import UserError
from metasched.paths import drop_in_folder
from tests.e2e.test_tcp import make_certificate
from tests.harness.accounts import OPERATOR, A, as_, make

pytestmark = pytest.mark.root
ARGUMENTS = {
    "squeue": ("-M", "trap"),
    "sbatch": ("--wrap", "true"),
    "srun": ("-M", "trap", "--jobid=17", "true"),
    "scancel": ("-M", "trap", "17"),
    "sstat": ("-M", "trap", "17"),
}


class Trap:
    """A folder of an account with programs, a configuration of Slurm, and a daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.account = folder, pwd.getpwnam(A)
        self.requests: list[str] = []
        for name in ARGUMENTS:
            self.write(f"bin/{name}", f"#!/bin/sh\n/usr/bin/touch {folder}/ran\n").chmod(0o755)
        self.write("slurm.conf", "")
        self.write("ms.toml", '[daemon]\nsocket = "ms.sock"\n')
        home_config = self.write("home/.config/metasched/metasched.toml", "")
        home_config.write_text(f'[daemon]\nsocket = "{folder}/ms.sock"\n')
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(folder / "ms.sock"))
        self.own(folder / "ms.sock")
        os.seteuid(self.account.pw_uid)  # that which clients see
        self.socket.listen()
        os.seteuid(0)
        # for the control: the operator leaves a mark, and may connect
        folder.chmod(0o1777)
        (folder / "ms.sock").chmod(0o777)
        threading.Thread(target=self.serve, daemon=True).start()

    def own(self, path: Path) -> None:
        os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for part in (path, *path.parents):
            if part.is_relative_to(self.folder):
                self.own(part)
        return path

    def serve(self) -> None:
        """Answer each request with a cluster whose programs are those of the account."""
        cluster = {
            "cluster": "trap",
            "manager_name": "trap",
            "config": str(self.folder / "slurm.conf"),
            "up": True,
            "accounting": True,
            "tag_field": "comment",
            "native_jobs": True,
            "bin_dir": str(self.folder / "bin"),
        }
        answer = {"first_id": 1000, "instances": [], "clusters": [cluster]}
        body = json.dumps(answer).encode()
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                self.requests.append(connection.recv(65536).decode(errors="replace"))
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)

    def call(
        self, name: str, account: str = "root", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a drop-in command as an account."""
        return subprocess.run(
            [Path(drop_in_folder()) / name, *ARGUMENTS[name]],
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder / "home"), **variables},
            **as_(account),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def was_entered(self) -> bool:
        """Whether another ran a program of the account, or asked its daemon; forget it."""
        ran = self.folder / "ran"
        entered = ran.exists() or bool(self.requests)
        ran.unlink(missing_ok=True)
        self.requests.clear()
        return entered


@pytest.fixture(scope="module")
def trap(common_folder: Path) -> Iterator[Trap]:
    make(A, OPERATOR)
    trap = Trap(common_folder / "trap")
    yield trap
    trap.socket.close()


# Variables that the account may set, with {} for its folder, and what root is told
WAYS = {
    "path": ({"PATH": "{}/bin", "METASCHED_BYPASS": "1"}, "no real {} on PATH"),
    "bin": ({"METASCHED_SLURM_BIN": "{}/bin", "METASCHED_BYPASS": "1"}, None),
    "socket": ({"METASCHED_SOCKET": "{}/ms.sock"}, "use sudo without -E"),
    "config": ({"METASCHED_CONFIG": "{}/ms.toml"}, "use sudo without -E"),
    "home": ({}, "use sudo without -E"),
    "url": ({"METASCHED_SOCKET": "http://127.0.0.1:9"}, "use sudo without -E"),
    "slurm": ({"SLURM_CONF": "{}/slurm.conf", "METASCHED_BYPASS": "1"}, "unset it under sudo"),
    "munge": ({"METASCHED_MUNGE_SOCKET": "{}/ms.sock"}, "unset it under sudo"),
    "job": ({"METASCHED_DROP_IN": "{}"}, "unset it under sudo"),
    "server": (
        {"SLURM_CONF_SERVER": "127.0.0.1:9", "METASCHED_BYPASS": "1"},
        "unset it under sudo",
    ),
}


@pytest.mark.parametrize("account", ["root", OPERATOR])
@pytest.mark.parametrize("way", WAYS)
def test_no_place_of_the_calling_account_counts(trap: Trap, way: str, account: str) -> None:
    variables, message = WAYS[way]
    variables = {name: value.format(trap.folder) for name, value in variables.items()}
    sudo = {"SUDO_UID": str(trap.account.pw_uid), "SUDO_USER": A}
    for name in ARGUMENTS if account == "root" else ["squeue"]:
        done = trap.call(name, account, **variables, **sudo)
        assert not trap.was_entered(), (name, done)
        if message is not None:
            assert done.returncode != 0
            assert done.stdout == ""
            assert message.format(name) in done.stderr, (name, done)
            assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("account", ["root", OPERATOR])
@pytest.mark.parametrize("way", WAYS)
def test_nor_through_a_chain_of_sudo_or_doas(trap: Trap, way: str, account: str) -> None:
    """The second `sudo -E` names the account that the first has given; doas uses a name."""
    variables, message = WAYS[way]
    variables = {name: value.format(trap.folder) for name, value in variables.items()}
    uid = str(pwd.getpwnam(account).pw_uid)
    for marks in ({"SUDO_UID": uid, "SUDO_USER": account}, {"DOAS_USER": A}):
        done = trap.call("squeue", account, **variables, **marks)
        assert not trap.was_entered(), done
        if message is not None:
            assert message.format("squeue") in done.stderr, done


@pytest.mark.parametrize("way", ["socket", "config", "home", "url"])
def test_metasched_asks_no_daemon_of_the_calling_account(trap: Trap, way: str) -> None:
    """Its answer names the file that `output` prints."""
    variables = {name: value.format(trap.folder) for name, value in WAYS[way][0].items()}
    for marks in ({}, {"SUDO_UID": str(trap.account.pw_uid)}):
        done = subprocess.run(
            [sys.executable, "-m", "metasched", "output", "17"],
            env={"PATH": "/usr/bin", "HOME": f"{trap.folder}/home", **variables, **marks},
            **as_("root"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert trap.was_entered() is (not marks and way != "url"), done
        assert ("use sudo without -E" in done.stderr) is bool(marks), done


@pytest.mark.slow("runs doctor in eight environments")
def test_root_reads_no_configuration_that_the_environment_of_another_names(trap: Trap) -> None:
    """It names programs, and doctor runs some of them."""
    uid = str(trap.account.pw_uid)
    command = [sys.executable, "-m", "metasched", "doctor", "--json"]
    for marks in ({}, {"SUDO_UID": uid}, {"SUDO_UID": "0"}, {"DOAS_USER": A}):
        for variables in ({"METASCHED_CONFIG": f"{trap.folder}/ms.toml"}, {}):
            done = subprocess.run(
                command,
                env={"PATH": "/usr/bin", "HOME": f"{trap.folder}/home", **variables, **marks},
                **as_("root"),
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert ("in a place that others may change" in done.stdout) is bool(marks), done
            trap.was_entered()


@pytest.mark.parametrize("account", ["root", OPERATOR])
@pytest.mark.parametrize("way", ["path", "bin", "socket", "config", "home"])
def test_the_trap_works_without_sudo(trap: Trap, way: str, account: str) -> None:
    variables = {name: value.format(trap.folder) for name, value in WAYS[way][0].items()}
    for name in ARGUMENTS if account == "root" else ["squeue"]:
        trap.call(name, account, **variables)
        assert trap.was_entered(), name


def test_places_of_root_count_under_sudo(trap: Trap, common_folder: Path) -> None:
    program = common_folder / "own" / "squeue"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho $SLURM_CONF\n")
    program.chmod(0o755)
    config = common_folder / "own" / "slurm.conf"
    config.touch()
    sudo = {"SUDO_UID": str(trap.account.pw_uid), "METASCHED_BYPASS": "1"}
    path = f"{trap.folder}/bin:{program.parent}"
    assert trap.call("squeue", PATH=path, SLURM_CONF=str(config), **sudo).stdout == f"{config}\n"
    link = trap.folder / "link"
    link.symlink_to(config)
    refused = trap.call("squeue", PATH=path, SLURM_CONF=str(link), **sudo)
    assert refused.stderr == (
        f"squeue: error: SLURM_CONF is {link}, which others may change; unset it under sudo\n"
    )


def test_third_accounts_and_groups_count_under_sudo(
    trap: Trap, common_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "12345")
    assert may_be_changed(str(trap.folder / "slurm.conf"))
    assert may_be_changed(str(trap.folder / "bin/squeue"))
    shared = common_folder / "shared"
    shared.mkdir()
    (shared / "slurm.conf").touch()
    shared.chmod(0o755)
    assert not may_be_changed(str(shared / "slurm.conf"))
    shared.chmod(0o775)
    os.chown(shared, 0, trap.account.pw_gid)
    assert may_be_changed(str(shared / "slurm.conf"))
    # in a sticky folder of root the owner of the entry decides
    shared.chmod(0o1777)
    assert not may_be_changed(str(shared / "slurm.conf"))
    trap.own(shared / "slurm.conf")
    assert may_be_changed(str(shared / "slurm.conf"))


def test_the_daemon_of_the_site_has_an_account(
    trap: Trap, common_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may own its folder, if the site's configuration names that and only root may make it."""
    monkeypatch.setenv("SUDO_UID", "12345")
    folder = common_folder / "run"
    (folder / "inner").mkdir(parents=True)
    path = folder / "inner" / "ms.sock"
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(path))
    path.chmod(0o666)
    for part in (folder, folder / "inner", path):
        trap.own(part)

    def is_refused() -> bool:
        try:
            check_daemon(str(path))
        except UserError as error:
            return "use sudo without -E" in str(error)
        return False

    monkeypatch.setattr("metasched.client.address.site_address", lambda: "/run/other.sock")
    assert is_refused()
    monkeypatch.setattr("metasched.client.address.site_address", lambda: str(path))
    assert not is_refused()
    with monkeypatch.context() as usual:  # no configuration is read for the usual place
        usual.setattr("metasched.client.address.SITE_SOCKET", str(path))
        usual.delattr("metasched.client.address.site_address")
        assert not is_refused()
    os.chown(path, pwd.getpwnam(OPERATOR).pw_uid, -1)
    assert is_refused()  # a second account
    trap.own(path)
    monkeypatch.setenv("SUDO_UID", str(trap.account.pw_uid))
    assert is_refused()  # the caller's own
    monkeypatch.setenv("SUDO_UID", "12345")
    common = common_folder / "sticky"
    common.mkdir()
    common.chmod(0o1777)
    moved = folder.rename(common / "run")
    link = common_folder / "run"
    link.symlink_to(moved)
    assert is_refused()  # anybody may have made a folder there


def test_root_runs_no_munge_of_the_calling_account(trap: Trap) -> None:
    trap.write("bin/munge", f"#!/bin/sh\n/usr/bin/touch {trap.folder}/ran\n").chmod(0o755)
    call = "from metasched.client.client import Client; Client('http://127.0.0.1:9').jobs()"
    for sudo in ({}, {"SUDO_UID": str(trap.account.pw_uid)}):
        subprocess.run(
            [sys.executable, "-c", call],
            env={"PATH": f"{trap.folder}/bin", "HOME": str(trap.folder), **sudo},
            **as_("root"),
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert trap.was_entered() is not bool(sudo)


def call_site(url: str, trap: Trap, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run scancel as root, at a site whose configuration has a URL."""
    code = f"""
        import sys
        import metasched.client.sudo
        from metasched.drop_in.command import run
        metasched.client.address.site_address = lambda: {url!r}
        sys.argv = ["scancel", "-M", "trap", "17"]
        sys.exit(run("scancel"))
    """
    home = {"PATH": "/usr/bin:/bin", "HOME": str(trap.folder / "home"), "METASCHED_SOCKET": url}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**home, **variables},
        **as_("root"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_no_variable_of_a_job_names_the_daemon_under_sudo(trap: Trap, token: str) -> None:
    """Not even if the URL in it is that of the site's daemon."""
    with socket.socket() as closed:  # bound, so that nobody listens at it
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        variables = job_variables(url, "", trap.account.pw_uid, f"{trap.folder}/ms.sock")
        variables["METASCHED_TOKEN_FILE"] = token
        call_site(url, trap, **variables)
        assert trap.was_entered()  # in a job, which has no SUDO_UID
        done = call_site(url, trap, **variables, SUDO_UID=str(trap.account.pw_uid))
    assert not trap.was_entered()
    assert done.returncode != 0, done
    assert f"no daemon answers (Connection refused), {url}" in done.stderr


class TlsTrap:
    """A listener with a certificate of an account, in the place of the site's daemon."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.fingerprint = make_certificate(folder, "c")
        self.certificate = folder / "c"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "c", folder / "c.key")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://localhost:{self._listener.getsockname()[1]}"
        self.received: list[bytes] = []
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection:
                tls = self._context.wrap_socket(connection, server_side=True)
                self.received.append(tls.recv(10000))
                tls.close()

    def has_token(self) -> bool:
        """Whether a request had the token; forget it."""
        received = b"".join(self.received)
        self.received.clear()
        return b"Bearer secret" in received

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._server.join(30)


@pytest.fixture(scope="module")
def tls_trap(trap: Trap) -> Iterator[TlsTrap]:
    tls = TlsTrap(trap.folder / "tls")
    for path in (tls.certificate.parent, tls.certificate):
        trap.own(path)
    yield tls
    tls.close()


@pytest.fixture(scope="module")
def token(common_folder: Path) -> str:
    """A token of root."""
    path = common_folder / "token"
    path.touch(0o600)
    path.write_text("secret")
    return str(path)


def test_no_certificate_of_the_calling_account_counts(
    trap: Trap, tls_trap: TlsTrap, token: str
) -> None:
    url, sudo = tls_trap.url, {"SUDO_UID": str(trap.account.pw_uid)}
    in_job = job_variables(url, tls_trap.fingerprint, 0, "/none")
    trusted = {"SSL_CERT_FILE": str(tls_trap.certificate)}
    variables = {"METASCHED_TOKEN_FILE": token}

    # a job has no token of its own here, and sends that of the account
    call_site(url, trap, **variables, **in_job, PATH="/none")
    assert tls_trap.has_token()
    done = call_site(url, trap, **variables, **in_job, **sudo)
    assert not tls_trap.has_token()
    assert "certificate" in done.stderr

    call_site(url, trap, **variables, **trusted)
    assert tls_trap.has_token()
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE", "OPENSSL_CONF"):
        done = call_site(url, trap, **variables, **{name: str(tls_trap.certificate)}, **sudo)
        assert not tls_trap.has_token(), name
        assert f"{name} is {tls_trap.certificate}, which" in done.stderr, done
        assert len(done.stderr.splitlines()) == 1
    shutil.copy(tls_trap.certificate, f"{token}.pem")
    call_site(url, trap, **variables, **sudo, SSL_CERT_FILE=f"{token}.pem")
    assert tls_trap.has_token()  # the CA is root's own


def test_no_token_is_read_in_a_place_of_the_calling_account(
    trap: Trap, tls_trap: TlsTrap, token: str
) -> None:
    """It could be a link to any other file of root."""
    link = trap.folder / "token"
    link.symlink_to(token)
    shutil.copy(tls_trap.certificate, f"{token}.pem")
    variables = {"SSL_CERT_FILE": f"{token}.pem", "METASCHED_TOKEN_FILE": str(link)}
    call_site(tls_trap.url, trap, **variables)
    assert tls_trap.has_token()
    done = call_site(tls_trap.url, trap, **variables, SUDO_UID=str(trap.account.pw_uid))
    assert not tls_trap.has_token()
    assert f"others may change its place, token file {link}; use sudo without -E" in done.stderr
