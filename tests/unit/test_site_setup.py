"""`metasched init site` below a root: what it finds, writes, keeps and refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from metasched import cli
from metasched.config.reading import load_settings
from metasched.site_setup import root_files
from metasched.site_setup.choices import SiteSetupError
from metasched.site_setup.root_files import RootFiles, SiteFile, SiteOptions
from metasched.site_setup.site_files import COMPLETIONS

EXAMPLES = Path(__file__).parents[2] / "docs/examples/init-site"
TOML, LAUNCHER = "etc/metasched/metasched.toml", "etc/metasched/launcher.toml"
Init = Callable[..., str]


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def text_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with two Slurm clusters and a Grid Engine cell."""
    for name in ("SLURM_CONF", "SGE_ROOT", "SGE_CELL"):
        monkeypatch.delenv(name, raising=False)
    made = tmp_path / "root"
    text_file(made / "etc/slurm/alpha/slurm.conf", "# a\nclustername=alpha # here\n")
    text_file(made / "etc/slurm/beta/slurm.conf", "ClusterName=beta\nSlurmctldHost=b\n")
    text_file(made / "etc/slurm/broken/slurm.conf", "SlurmctldHost=c\n")
    text_file(made / "opt/sge/default/common/act_qmaster", "master\n")
    text_file(
        made / "opt/sge/default/common/settings.sh",
        "SGE_QMASTER_PORT=6444; export SGE_QMASTER_PORT\n",
    )
    for name in ("sbatch", "scancel", "scontrol"):
        program(made / "usr/bin" / name)
    for name in ("qsub", "qdel", "qhold", "qrls"):
        program(made / "opt/sge/bin/lx-amd64" / name)
    text_file(made / "opt/sge/lib/lx-amd64/libdrmaa.so", "")
    return made


@pytest.fixture
def init(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Init:
    """Return a function that runs `init site` below the root; it returns what was printed."""

    def run(*options: str, code: int = 0) -> str:
        arguments = ["init", "site", "--root", str(root), "--prefix", "/opt/metasched", *options]
        monkeypatch.setattr(sys, "argv", ["metasched", *arguments])
        result = cli.main()
        printed = capsys.readouterr()
        assert result == code, printed.err
        return printed.err if code else printed.out

    return run


def contents(root: Path) -> dict[str, tuple[int, str]]:
    """Return mode and text of each file below `etc` and `usr/local`, and of links the target."""
    files = {}
    for top in ("etc", "usr/local"):
        for path in (root / top).rglob("*"):
            if path.is_symlink():
                files[str(path.relative_to(root))] = (0, os.readlink(path))
            elif path.is_file():
                mode = path.stat().st_mode & 0o7777
                files[str(path.relative_to(root))] = (mode, path.read_text())
    return files


def test_the_example_is_what_a_site_with_three_clusters_gets(root: Path, init: Init) -> None:
    printed = init()
    assert "create   /etc/metasched/metasched.toml" in printed
    python = os.path.realpath(sys.executable)
    for name in ("metasched.toml", "launcher.toml"):
        written = (root / "etc/metasched" / name).read_text().replace(python, "/usr/bin/python3")
        assert written == (EXAMPLES / name).read_text()
    settings = load_settings(root / TOML)
    assert [entry.cluster.name for entry in settings.clusters] == ["alpha", "beta", "grid"]
    tables = tomllib.loads((root / LAUNCHER).read_text())
    assert tables["cluster"]["grid"]["environment"] == {
        "SGE_ROOT": "/opt/sge",
        "SGE_CELL": "default",
        "SGE_QMASTER_PORT": "6444",
    }
    for name, (mode, text) in contents(root).items():
        assert mode == (0o600 if name.endswith(".init-site.json") else mode & 0o755), name
        assert not re.search("@(account|group|package|prefix|python)@", text), name
    unit = (root / "etc/systemd/system/metasched.service").read_text()
    assert "ExecStart=/opt/metasched/bin/metasched serve" in unit
    assert contents(root).keys() >= set(COMPLETIONS.values())


def test_a_cell_of_debian_has_the_programs_to_which_it_links(root: Path, init: Init) -> None:
    """Its folder belongs to sgeadmin, who could change the links."""
    for name in ("qsub", "qdel", "qhold", "qrls"):
        program(root / "usr/lib/gridengine" / name)
    text_file(root / "var/lib/gridengine/default/common/act_qmaster", "master\n")
    (root / "var/lib/gridengine/bin").mkdir()
    (root / "var/lib/gridengine/bin/lx-alpha").symlink_to("../../../../usr/lib/gridengine")
    init("--gridengine", "/var/lib/gridengine:default")
    [qsub, *_] = tomllib.loads((root / LAUNCHER).read_text())["cluster"]["grid"]["submit"]
    assert qsub == "/usr/lib/gridengine/qsub"


def test_a_second_run_changes_nothing_and_says_so(root: Path, init: Init) -> None:
    init("--local", "here=8", "--operators", "hpc")
    before = contents(root)
    times = {name: (root / name).lstat().st_mtime_ns for name in before}
    for options in ((), ("--local", "here=8"), ("--dry-run",)):
        assert init(*options).strip() in ("nothing to change", "nothing would change")
        assert contents(root) == before
        assert {name: (root / name).lstat().st_mtime_ns for name in before} == times


def test_a_dry_run_creates_nothing(root: Path, init: Init) -> None:
    before = contents(root)
    printed = init("--dry-run")
    assert "create   /etc/metasched/launcher.toml" in printed
    assert contents(root) == before
    assert not (root / "etc/metasched").exists()


def test_a_text_of_a_former_run_is_updated(root: Path, init: Init) -> None:
    init("--local", "here=8")
    assert "update   /etc/metasched/metasched.toml" in init("--local", "here=9")
    assert "cpus = 9" in (root / TOML).read_text()
    assert "+cpus = 10" in init("--local", "here=10", "--dry-run")


def test_what_the_admin_changed_is_kept(root: Path, init: Init) -> None:
    init("--local", "here=8")
    own = (root / TOML).read_text() + "# my own words\n"
    (root / TOML).write_text(own)
    assert init() == "keep     /etc/metasched/metasched.toml: it was changed\nnothing to change\n"
    printed = init("--local", "here=9")
    line = "keep     /etc/metasched/metasched.toml: it was changed"
    assert f"{line}; the new text is in /etc/metasched/metasched.toml.new\n" in printed
    assert (root / TOML).read_text() == own
    assert "cpus = 9" in (root / f"{TOML}.new").read_text()
    assert init() == f"{line}\nnothing to change\n"

    assert "replace  /etc/metasched/metasched.toml" in init("--force")
    assert "cpus = 9" in (root / TOML).read_text()
    (former,) = (root / "etc/metasched").glob("*.old")
    assert former.read_text() == own


def test_files_of_others_from_before_are_kept(root: Path, init: Init) -> None:
    text_file(root / TOML, "# of a colleague\n")
    text_file(root / "usr/local/bin/metasched", "#!/bin/sh\n")
    printed = init()
    assert "keep     /etc/metasched/metasched.toml: it was changed; the new text" in printed
    assert "keep     /usr/local/bin/metasched: it was changed\n" in printed
    assert (root / TOML).read_text() == "# of a colleague\n"
    assert (root / "usr/local/bin/metasched").read_text() == "#!/bin/sh\n"


def test_modes_do_not_depend_on_the_umask(root: Path, init: Init) -> None:
    former = os.umask(0o077)
    try:
        init()
    finally:
        os.umask(former)
    assert (root / TOML).stat().st_mode & 0o777 == 0o644
    assert (root / "etc/metasched").stat().st_mode & 0o777 == 0o755
    os.umask(0)
    try:
        init("--local", "here=3", "--force")
    finally:
        os.umask(former)
    assert (root / LAUNCHER).stat().st_mode & 0o777 == 0o644


def test_a_stricter_mode_of_the_admin_survives_an_update(root: Path, init: Init) -> None:
    init("--local", "here=8")
    (root / TOML).chmod(0o640)
    init("--local", "here=9")
    assert (root / TOML).stat().st_mode & 0o777 == 0o640


def test_a_password_is_hidden(root: Path, init: Init) -> None:
    url = "postgresql://metasched:s3cret@db/metasched"
    init("--database", url)
    assert (root / TOML).stat().st_mode & 0o777 == 0o640
    assert url in (root / TOML).read_text()
    assert 'folder = "/var/lib/metasched/clusters"' in (root / TOML).read_text()
    # systemd-tmpfiles gives it to the group of the daemon, which exists by then
    line = "z /etc/metasched/metasched.toml 0640 root metasched -\n"
    assert line in (root / "etc/tmpfiles.d/metasched.conf").read_text()
    assert "s3cret" not in init("--database", url.replace("s3cret", "s3cret2"), "--dry-run")
    for name, (mode, text) in contents(root).items():
        assert "s3cret" not in text or mode & 0o007 == 0, name


@pytest.mark.parametrize("place", ["etc", "etc/metasched", "etc/systemd/system"])
def test_links_in_the_way_are_not_followed(root: Path, init: Init, place: str) -> None:
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    if (root / place).exists():
        (root / place).rename(root / "moved")
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).symlink_to(elsewhere)
    error = init("--local", "here=8", code=1)
    assert f"{root}/{place} is a link or no folder; " in error
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_kept(root: Path, init: Init) -> None:
    victim = root.parent / "victim"
    victim.write_text("precious")
    (root / "etc/metasched").mkdir()
    (root / TOML).symlink_to(victim)
    assert "keep     /etc/metasched/metasched.toml" in init()
    assert victim.read_text() == "precious"
    init("--force")
    assert victim.read_text() == "precious"
    assert not (root / TOML).is_symlink()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_can_write_is_refused(root: Path, init: Init, mode: int) -> None:
    (root / "etc/metasched").mkdir()
    (root / "etc/metasched").chmod(mode)
    error = init(code=1)
    assert f"{root}/etc/metasched can be changed by others than root; chown root" in error
    assert list((root / "etc/metasched").iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_what_is_no_file_is_neither_read_nor_replaced(root: Path, init: Init, kind: str) -> None:
    (root / "etc/metasched").mkdir()
    (os.mkfifo if kind == "fifo" else os.mkdir)(root / LAUNCHER)
    assert f"{root}/{LAUNCHER} is no plain file; move it away" in init(code=1)
    assert not (root / TOML).exists()


def test_a_fifo_among_the_files_of_slurm_is_passed_over(root: Path, init: Init) -> None:
    os.mkfifo(root / "etc/slurm/slurm.conf")
    init()
    assert "alpha" in (root / TOML).read_text()


def test_a_crash_between_any_two_writes_is_repaired_by_the_next_run(
    root: Path, init: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--local", "here=9", "--account", "metasched")
    init(*options)
    complete = contents(root)
    write = RootFiles._write
    for crash_at in range(1, 7):  # the record, and five files that have number or account
        written: list[SiteFile] = []

        def crashing(self: RootFiles, file: SiteFile, at: int = crash_at) -> None:
            written.append(file)  # noqa: B023 - of this round
            if len(written) >= at:  # noqa: B023
                raise KeyboardInterrupt
            write(self, file)

        monkeypatch.setattr(RootFiles, "_write", crashing)
        init("--local", f"here={20 + crash_at}", "--account", f"a{crash_at}", code=130)
        monkeypatch.setattr(RootFiles, "_write", write)
        assert "keep" not in init(*options)
        repaired = contents(root)
        assert repaired.keys() == complete.keys()
        assert repaired[TOML] == complete[TOML]
        assert repaired[LAUNCHER] == complete[LAUNCHER]


@pytest.mark.parametrize("crash_at", [1, 2])  # the record, and the text
def test_a_crash_loses_no_text_beside_a_changed_file(
    root: Path, init: Init, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    init("--local", "here=8")
    (root / TOML).write_text("# my own words\n")
    write, written = RootFiles._write, []

    def crashing(self: RootFiles, file: SiteFile) -> None:
        written.append(file.path)
        if len(written) >= crash_at:
            raise KeyboardInterrupt
        write(self, file)

    with monkeypatch.context() as crash:
        crash.setattr(RootFiles, "_write", crashing)
        init("--local", "here=9", code=130)
    init("--local", "here=9")
    assert "cpus = 9" in (root / f"{TOML}.new").read_text()
    assert (root / TOML).read_text() == "# my own words\n"
    (root / f"{TOML}.new").unlink()  # read; it comes only once
    assert "nothing to change" in init()


def test_a_second_run_at_the_same_time_is_refused(root: Path, init: Init) -> None:
    with RootFiles(root).locked():
        assert "another `metasched init site` works" in init("--local", "here=8", code=1)
    assert not (root / TOML).exists()


@pytest.mark.parametrize("text", ["[]", "{", '{"digests": {"a": "b"}}', "[" * 5000])
def test_a_record_that_is_none(root: Path, init: Init, text: str) -> None:
    text_file(root / root_files.RECORD, text)
    assert "is no record of `init site`; move it away" in init(code=1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--local", "here"), "write NAME=CPUS"),
        (("--local", "here=0"), "write NAME=CPUS"),
        (("--local", "a b=1"), "is no name of a cluster"),
        (("--local", "a=1", "--local", "a=2"), 'two clusters have the name "a"'),
        (("--slurm", "/none/slurm.conf"), "no readable file /none/slurm.conf"),
        (("--slurm", "/etc/slurm/broken/slurm.conf"), "no ClusterName in"),
        (("--gridengine", "/opt/sge:other"), "no cell other below /opt/sge"),
        (("--account", "root"), "the daemon is not root"),
        (("--account", "x\nUser=root"), "is no name of an account"),
        (("--operators", "a b"), "is no name of an account or group"),
        (("--database", "mysql://db/x"), "mysql"),
        (("--database", "nonsense"), "--database is no address"),
        (("--prefix", "/opt/a b"), "is no plain absolute path"),
        (("--prefix", "/opt/../x"), "is no plain absolute path"),
        (("--prefix", "/opt/x\nUser=root"), "is no plain absolute path"),
    ],
)
def test_bad_options_write_nothing(
    root: Path, init: Init, options: tuple[str, ...], error: str
) -> None:
    before = contents(root)
    printed = init(*options, code=2 if "mysql" in error else 1)
    assert error in printed
    assert printed.count("\n") == 1
    assert contents(root) == before


def test_names_of_clusters_can_be_given(root: Path, init: Init) -> None:
    init(
        *("--slurm", "west=/etc/slurm/broken/slurm.conf"),
        *("--gridengine", "cell=/opt/sge:default", "--local", "here=2"),
    )
    names = [entry.cluster.name for entry in load_settings(root / TOML).clusters]
    assert names == ["west", "cell", "here"]


def test_no_manager_means_the_processors_of_the_host(
    tmp_path: Path, root: Path, init: Init
) -> None:
    for name in ("etc/slurm", "opt/sge"):
        (root / name).rename(tmp_path / name.replace("/", "-"))
    init()
    (entry,) = load_settings(root / TOML).clusters
    assert (entry.cluster.adapter, entry.options["cpus"]) == ("local", os.cpu_count())


def test_a_root_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SiteSetupError, match="No such file"):
        RootFiles(tmp_path / "none")


def test_the_options_of_a_run_are_remembered(root: Path, init: Init) -> None:
    init("--local", "here=8", "--account", "sched")
    assert RootFiles(root).read_record().options == SiteOptions(local=("here=8",), account="sched")
    init("--operators", "hpc")
    assert 'operator_groups = ["hpc"]' in (root / TOML).read_text()
    assert "cpus = 8" in (root / TOML).read_text()


def test_the_completion_of_bash_is_a_script(root: Path, init: Init) -> None:
    init()
    script = root / "usr/local/share/bash-completion/completions/metasched"
    subprocess.run(["bash", "-n", script], check=True)
    assert "_METASCHED_COMPLETE" in script.read_text()
