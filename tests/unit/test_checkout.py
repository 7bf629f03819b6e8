"""The commit that is read from .git: as git names it, and none where .git is broken or foreign."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from metasched.checkout import MAX_LINKS, commit_of
from tests.conftest import require

PROJECT = '[project]\nname = "metasched"\n'
HASH, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40
SHORT = HASH[:9]

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Return a function that runs git in the checkout `tmp_path / "own"`, which has a commit."""
    if shutil.which("git") is None:
        require("git", "git is not installed")
    folder = tmp_path / "own"

    def run(*arguments: str | Path) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        files = ("-c", "protocol.file.allow=always")
        command = ["git", "-C", folder, *names, *files, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    run("init", "--quiet")
    run("add", ".")
    run("commit", "--quiet", "--message=a")
    return run


def short_commit(git: Git, *options: str | Path) -> str:
    return git(*options, "rev-parse", "--short=9", "HEAD")


def test_a_branch_a_tag_and_no_branch(git: Git, tmp_path: Path) -> None:
    own = tmp_path / "own"
    first = short_commit(git)
    assert commit_of(own) == first
    git("switch", "--quiet", "--create", "topic/größe.1")
    git("commit", "--quiet", "--allow-empty", "--message=b")
    second = short_commit(git)
    assert second != first
    assert commit_of(own) == second
    git("pack-refs", "--all")
    assert commit_of(own) == second  # from packed-refs
    git("tag", "--annotate", "--message=c", "v1", first)
    git("checkout", "--quiet", "--detach", "v1")
    assert commit_of(own) == first
    git("switch", "--quiet", "--orphan", "empty")
    assert commit_of(own) is None  # the branch has no commit yet


def test_a_worktree_and_a_submodule(git: Git, tmp_path: Path) -> None:
    first, tree = short_commit(git), tmp_path / "tree"
    git("worktree", "add", "--quiet", "-b", "topic", tree)
    git("-C", tree, "commit", "--quiet", "--allow-empty", "--message=b")
    assert commit_of(tree) == short_commit(git, "-C", tree) != first
    assert commit_of(tmp_path / "own") == first
    outer = tmp_path / "outer"
    git("init", "--quiet", outer)
    git("-C", outer, "submodule", "--quiet", "add", tmp_path / "own", "part")
    assert (outer / "part/.git").is_file()
    assert commit_of(outer / "part") == first


def test_other_repositories_are_not_metasched(git: Git, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    site_packages = folder / "lib/site-packages"
    site_packages.mkdir(parents=True)
    assert commit_of(site_packages) is None  # within a repository
    (site_packages / "pyproject.toml").write_text(PROJECT)
    assert commit_of(site_packages) is None  # as an unpacked sdist
    (folder / "pyproject.toml").write_text('[project]\nname = "metasched-extras"\n')
    assert commit_of(folder) is None
    (folder / "pyproject.toml").unlink()
    assert commit_of(folder) is None


def written(tmp_path: Path, **files: str | bytes) -> Path:
    """Write a checkout whose .git has these files; a name's __ stands for a slash."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for name, content in files.items():
        path = tmp_path / ".git" / name.replace("__", "/").replace("packed_refs", "packed-refs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "commit"),
    [
        ({"HEAD": f"{HASH}\n"}, SHORT),
        ({"HEAD": HASH + "0123456789abcdef01234567"}, SHORT),  # SHA-256
        ({"HEAD": "ref: refs/heads/a\n", "refs__heads__a": f"{HASH}\n"}, SHORT),
        (  # the loose reference is the newer
            {
                "HEAD": "ref: refs/heads/a\n",
                "refs__heads__a": f"{HASH}\n",
                "packed_refs": f"{OTHER} refs/heads/a\n",
            },
            SHORT,
        ),
        (
            {
                "HEAD": "ref: refs/heads/a\n",
                "refs__heads__a": "ref: refs/heads/b\n",
                "packed_refs": f"# x\n{OTHER} refs/heads/a\n{HASH} refs/heads/b\n^{OTHER}\n",
            },
            SHORT,
        ),
        ({"HEAD": ""}, None),
        ({"HEAD": HASH[:-1]}, None),
        ({"HEAD": HASH.upper()}, None),
        ({"HEAD": HASH + "\n" + OTHER}, None),
        ({"HEAD": b"\xff\x00" * 9000}, None),
        ({"HEAD": " " * (1 << 13) + HASH}, None),
        ({"HEAD": "ref: refs/heads/a\n"}, None),
        ({"HEAD": "ref: refs/heads/a\n", "refs__heads__a": ""}, None),
        ({"HEAD": "ref: refs/heads/a", "refs__heads__a": "x", "packed_refs": HASH}, None),
        ({"HEAD": "ref: refs/heads/.invalid"}, None),  # of the format reftable
        ({"HEAD": "ref: outside", "outside": HASH}, None),
        ({"HEAD": "ref: refs/../../outside"}, None),
        ({"HEAD": "ref: refs/a/../../../outside", "refs__a__b": HASH}, None),
        ({"HEAD": "ref: /etc/hostname"}, None),
        ({"HEAD": "ref: refs/heads/a\x00b"}, None),
        ({"HEAD": "ref: refs/heads/" + "a" * 300}, None),  # longer than a file's name
        ({"HEAD": "ref: refs/heads/a", "packed_refs": f"{HASH} refs/heads/ab\n"}, None),
        ({"HEAD": "ref: refs/heads/a", "packed_refs": f"{HASH[:9]} refs/heads/a\n"}, None),
        ({"HEAD": "ref: refs/heads/a", "refs__heads__a__b": HASH}, None),  # a folder
        ({"HEAD": "ref: refs/heads/a", "refs__heads__a": HASH, "commondir": "\x00"}, None),
        ({"HEAD": "ref: refs/heads/a", "refs__heads__a": HASH, "commondir": "none"}, None),
    ],
)
def test_what_git_may_hold(
    files: dict[str, str | bytes], commit: str | None, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text(HASH)
    folder = tmp_path / "own"
    folder.mkdir()
    assert commit_of(written(folder, **files)) == commit


def test_chains_of_references_end(tmp_path: Path) -> None:
    def chain(length: int) -> dict[str, str]:
        links = {f"refs__heads__{number}": f"ref: refs/heads/{number + 1}" for number in range(9)}
        return {"HEAD": "ref: refs/heads/0", **links, f"refs__heads__{length}": HASH}

    assert commit_of(written(tmp_path, **chain(MAX_LINKS - 2))) == SHORT
    assert commit_of(written(tmp_path, **chain(MAX_LINKS - 1))) is None
    looped = written(tmp_path, refs__heads__0="ref: refs/heads/0")
    assert commit_of(looped) is None


def test_special_files_and_links_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    secret = tmp_path / "secret"
    secret.write_text(HASH)
    (folder / ".git").mkdir()
    head = folder / ".git/HEAD"
    os.mkfifo(head)
    assert commit_of(folder) is None  # a FIFO would block
    head.unlink()
    for target in ("../../secret", secret, "HEAD", "/dev/zero"):
        head.symlink_to(target)
        assert commit_of(folder) is None, target
        head.unlink()
    head.symlink_to("own-branch")  # as old versions of git wrote it
    (folder / ".git/own-branch").write_text(HASH)
    assert commit_of(folder) == SHORT
    shutil.rmtree(folder / ".git")
    for link in ("", "gitdir: \0", "gitdir: nowhere", "gitdir: .git", "gitdir: " + "a/" * 4000):
        (folder / ".git").write_text(link)
        assert commit_of(folder) is None, link
    (folder / ".git").unlink()
    (folder / ".git").symlink_to(".git")
    assert commit_of(folder) is None
    assert commit_of(tmp_path / "none") is None
