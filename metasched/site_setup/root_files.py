"""Writes files below a root as root, into folders that others could try to prepare.

Each folder on the way is opened from the folder above it, never through a symbolic link, and must
belong to root (or to the account that runs this) and be writable by nobody else. A file is written
beside its place and renamed, so a crash leaves the former or the new file.

A record of digests tells files that this program wrote from those that the admin has changed. It
is stored before the files: a crash in between leaves files that are known. Files that the admin
has changed are kept. A new text for such a file is written beside it once, as `NAME.new`; since
it is recorded only then, a crash in between writes it again.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from metasched.site_setup.choices import DEFAULT_DATABASE, SiteSetupError

RECORD = "etc/metasched/.init-site.json"
MAX_DIGESTS = 8  # of a file: texts of former releases
MAX_RECORD_BYTES = 1 << 20
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Action = Literal["create", "update", "replace", "keep", "same"]


class SiteOptions(msgspec.Struct, frozen=True):
    """Options of `init site`; a later run without them takes those of the run before."""

    slurm: tuple[str, ...] = ()  # NAME=FILE
    gridengine: tuple[str, ...] = ()  # NAME=ROOT:CELL
    local: tuple[str, ...] = ()  # NAME=CPUS
    account: str = "metasched"
    operators: tuple[str, ...] = ()
    database: str = DEFAULT_DATABASE


class SiteRecord(msgspec.Struct):
    """The files that earlier runs wrote."""

    options: SiteOptions | None = None
    digests: dict[str, list[str]] = {}  # by path, the latest last


@dataclass(frozen=True)
class SiteFile:
    """A file, or a link, that a site needs."""

    path: str  # relative to the root
    text: str  # content; of a link its target
    mode: int = 0o644
    is_link: bool = False
    group: int = -1  # of a file that is there; -1: that of its creator

    @property
    def digest(self) -> str:
        kind = "link " if self.is_link else ""
        return kind + hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class PlannedChange:
    """What will happen to a file."""

    file: SiteFile
    action: Action
    former: str | None = None  # the text there; None: no file
    new_beside: bool = False  # a kept file: the new text is written to NAME.new

    def __str__(self) -> str:
        path = f"/{self.file.path}"
        if self.action == "keep":
            remark = f"; the new text is in {path}.new" if self.new_beside else ""
            return f"keep     {path}: it was changed{remark}"
        return f"{self.action:8} {path}"

    def diff(self) -> str:
        """Return the changes of a text that others may read; "" for a new file or a link."""
        if self.former is None or self.file.is_link or self.file.mode & 0o007 == 0:
            return ""
        name = f"/{self.file.path}"
        return "".join(
            difflib.unified_diff(
                self.former.splitlines(keepends=True),
                self.file.text.splitlines(keepends=True),
                name,
                name + (".new" if self.action == "keep" else ""),
            )
        )


class RootFiles:
    """The files below a root."""

    def __init__(self, root: Path) -> None:
        """Raise SiteSetupError if the root is no folder."""
        self._root = root
        try:
            self._root_descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SiteSetupError(f"{error.strerror}, {root}; create the folder") from None
        self._require_safe(self._root_descriptor, "")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude another run for the `with` block."""
        with self._folder(os.path.dirname(RECORD), create=True) as folder:
            assert folder is not None
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SiteSetupError(
                    f"another `metasched init site` works in {self._root}; wait for it"
                ) from None
            yield

    def plan(self, files: Sequence[SiteFile], force: bool = False) -> list[PlannedChange]:
        """Return what `write` would do with these files."""
        digests = self.read_record().digests
        return [self._plan_file(file, digests.get(file.path, []), force) for file in files]

    def _plan_file(self, file: SiteFile, own_digests: list[str], force: bool) -> PlannedChange:
        former = self._read(file.path)
        if former is None:
            return PlannedChange(file, "create")
        if former.digest == file.digest:  # a mode is the admin's affair
            return PlannedChange(file, "same", former.text)
        if not (file.is_link or former.is_link):
            file = replace(file, mode=file.mode & former.mode, group=former.group)
        if former.digest in own_digests:
            return PlannedChange(file, "update", former.text)
        if force:
            return PlannedChange(file, "replace", former.text)
        new_beside = file.digest not in own_digests and not file.is_link
        return PlannedChange(file, "keep", former.text, new_beside)

    def write(self, changes: Sequence[PlannedChange], options: SiteOptions) -> None:
        """Carry out planned changes; record them, and the options that led to them, before.

        But texts beside changed files come before the record.
        """
        for change in changes:
            if change.new_beside:
                self._write(replace(change.file, path=f"{change.file.path}.new"))
        record = self.read_record()
        before = msgspec.json.encode(record)
        record.options = options
        for change in changes:
            path, digest = change.file.path, change.file.digest
            former_digests = [former for former in record.digests.get(path, []) if former != digest]
            record.digests[path] = [*former_digests, digest][-MAX_DIGESTS:]
        if msgspec.json.encode(record) != before:
            text = msgspec.json.format(msgspec.json.encode(record)).decode()
            self._write(SiteFile(RECORD, text, 0o600))
        for change in changes:
            if change.action == "replace":
                self._keep_former(change.file.path)
            if change.action in ("create", "update", "replace"):
                self._write(change.file)

    def read_record(self) -> SiteRecord:
        """Return what earlier runs have stored. SiteSetupError if it cannot be read."""
        stored = self._read(RECORD)
        if stored is None:
            return SiteRecord()
        try:
            return msgspec.json.decode(stored.text, type=SiteRecord)
        except (msgspec.MsgspecError, RecursionError):
            raise SiteSetupError(
                f"{self._root / RECORD} is no record of `init site`; move it away, and all files "
                "will count as changed by you"
            ) from None

    def _read(self, path: str) -> SiteFile | None:
        """Return the file or link at a path; None if there is none."""
        folder_path, name = os.path.split(path)
        with self._folder(folder_path, create=False) as folder:
            if folder is None:
                return None
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None
            if stat.S_ISLNK(status.st_mode):
                return SiteFile(path, os.readlink(name, dir_fd=folder), is_link=True)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_RECORD_BYTES:
                raise SiteSetupError(f"{self._root / path} is no plain file; move it away")
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
            with open(descriptor, "rb") as file:
                text = file.read(MAX_RECORD_BYTES + 1).decode(errors="surrogateescape")
            return SiteFile(path, text, stat.S_IMODE(status.st_mode), group=status.st_gid)

    def _write(self, file: SiteFile) -> None:
        """Replace a file as a whole, and create its folders."""
        folder_path, name = os.path.split(file.path)
        with self._folder(folder_path, create=True) as folder:
            assert folder is not None
            temporary = f".{name}.{secrets.token_hex(8)}"
            try:
                if file.is_link:
                    os.symlink(file.text, temporary, dir_fd=folder)
                else:
                    self._write_new(file, temporary, folder)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)

    @staticmethod
    def _write_new(file: SiteFile, name: str, folder: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        with open(descriptor, "wb") as stream:
            stream.write(file.text.encode(errors="surrogateescape"))
            stream.flush()
            os.fchown(descriptor, -1, file.group)
            os.fchmod(descriptor, file.mode)  # whatever the umask is
            os.fsync(descriptor)

    def _keep_former(self, path: str) -> None:
        """Give a file that is about to be replaced a name of its own."""
        folder_path, name = os.path.split(path)
        former = f"{name}.{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.old"
        with self._folder(folder_path, create=False) as folder:
            assert folder is not None
            os.link(name, former, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    @contextlib.contextmanager
    def _folder(self, path: str, create: bool) -> Iterator[int | None]:
        """Open a folder below the root; None if it is not there and is not to be created."""
        descriptor = os.dup(self._root_descriptor)
        os.set_inheritable(descriptor, False)
        try:
            done = ""
            for name in path.split("/"):
                done = f"{done}/{name}"
                try:
                    below = self._open_below(descriptor, name, create)
                except FileNotFoundError:
                    yield None
                    return
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    raise SiteSetupError(
                        f"{self._root}{done} is a link or no folder; it is not followed as root, "
                        "put a real folder there"
                    ) from None
                os.close(descriptor)
                descriptor = below
                self._require_safe(descriptor, done)
            yield descriptor
        finally:
            os.close(descriptor)

    @staticmethod
    def _open_below(folder: int, name: str, create: bool) -> int:
        try:
            return os.open(name, _OPEN_FOLDER, dir_fd=folder)
        except FileNotFoundError:
            if not create:
                raise
        os.mkdir(name, 0o700, dir_fd=folder)
        descriptor = os.open(name, _OPEN_FOLDER, dir_fd=folder)
        os.fchmod(descriptor, 0o755)  # whatever the umask is
        return descriptor

    def _require_safe(self, folder: int, path: str) -> None:
        """Raise SiteSetupError if another account could replace files of a folder."""
        status = os.fstat(folder)
        # Debian's group `staff` may write below /usr/local, where only conveniences are put
        writable = stat.S_IWOTH if path.startswith("/usr/local") else stat.S_IWGRP | stat.S_IWOTH
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & writable:
            whole_path = f"{self._root}{path}"
            raise SiteSetupError(
                f"{whole_path} can be changed by others than root; "
                f"chown root {whole_path}, chmod go-w"
            )
