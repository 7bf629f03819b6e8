"""A filesystem that treats root as NFS does with root_squash: as the account nobody.

`/usr/bin/python3 root_squash.py EXPORT MOUNT` serves the folder EXPORT at MOUNT until it is
unmounted. Each call is made with the caller's uid, root's with that of nobody. It needs FUSE:
/dev/fuse, and Debian's packages fuse3 and python3-fusepy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NOBODY = 65534
_PYTHON = "/usr/bin/python3"  # Debian's package is installed for this interpreter


def missing() -> str | None:
    """Return why no such filesystem can be mounted here, or None if it can."""
    if os.geteuid() != 0:
        return "only root can mount it for other accounts"
    try:  # a container may show a device that it may not open
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be opened ({error.strerror})"
    completed = subprocess.run(
        [_PYTHON, "-c", "import fusepy"], capture_output=True, text=True, check=False
    )
    if completed.returncode != 0:
        return "no module fusepy for /usr/bin/python3; apt-get install fuse3 python3-fusepy"
    return None


@contextmanager
def mounted(export: Path, mount: Path) -> Iterator[None]:
    """Serve `export` at `mount` within the block; both are created."""
    from tests.harness.daemons import wait_until
    from tests.harness.reaper import dying_with

    export.mkdir()
    mount.mkdir()
    log = mount.with_suffix(".log")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [_PYTHON, "-I", __file__, export, mount],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=dying_with(os.getpid()),
        )
    try:
        wait_until(mount.is_mount, 30.0, f"the mount of {mount}", log.read_text)
        yield
    finally:
        subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
        server.kill()
        server.wait()


def _serve(export: str, mount: str) -> None:
    import fusepy

    class RootSquash(fusepy.Operations):  # type: ignore[misc]
        """The calls of the kernel; `__call__` changes the account and prefixes the path."""

        def __call__(self, operation: str, path: str, *arguments: Any) -> Any:
            if operation in ("init", "destroy"):
                return None
            uid, gid, _ = fusepy.fuse_get_context()
            if uid == 0:
                uid = gid = NOBODY
            os.setegid(gid)
            os.seteuid(uid)
            try:
                return getattr(self, operation)(export + (path or ""), *arguments)
            except OSError as error:
                raise fusepy.FuseOSError(error.errno) from None
            finally:
                os.seteuid(0)
                os.setegid(0)

        def getattr(self, path: str, handle: int | None = None) -> dict[str, Any]:
            status = os.lstat(path)
            names = ("uid", "gid", "mode", "nlink", "size", "atime", "mtime", "ctime")
            return {f"st_{name}": getattr(status, f"st_{name}") for name in names}

        def readdir(self, path: str, handle: int) -> list[str]:
            return [".", "..", *os.listdir(path)]

        def access(self, path: str, mode: int) -> int:
            if not os.access(path, mode, effective_ids=True):
                raise PermissionError(13, "permission denied")
            return 0

        def create(self, path: str, mode: int, info: Any = None) -> int:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

        def open(self, path: str, flags: int) -> int:
            return os.open(path, flags)

        def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
            return os.pread(handle, size, offset)

        def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
            return os.pwrite(handle, data, offset)

        def truncate(self, path: str, length: int, handle: int | None = None) -> None:
            os.truncate(path if handle is None else handle, length)

        def release(self, path: str, handle: int) -> int:
            os.close(handle)
            return 0

        def mkdir(self, path: str, mode: int) -> None:
            os.mkdir(path, mode)

        def rmdir(self, path: str) -> None:
            os.rmdir(path)

        def unlink(self, path: str) -> None:
            os.unlink(path)

        def chmod(self, path: str, mode: int) -> None:
            os.chmod(path, mode)

        def chown(self, path: str, uid: int, gid: int) -> None:
            os.chown(path, uid, gid)

        def rename(self, old: str, new: str) -> None:
            os.rename(old, export + new)

        def link(self, target: str, source: str) -> None:
            os.link(export + source, target)

        def utimens(self, path: str, times: tuple[float, float] | None = None) -> None:
            os.utime(path, times)

        def statfs(self, path: str) -> dict[str, int]:
            status = os.statvfs(path)
            names = ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "namemax")
            return {f"f_{name}": getattr(status, f"f_{name}") for name in names}

    os.setgroups([])
    os.umask(0)
    fusepy.FUSE(
        RootSquash(),
        mount,
        foreground=True,
        nothreads=True,  # seteuid changes the account of all threads
        allow_other=True,
        auto_unmount=True,
        attr_timeout=0,
        entry_timeout=0,
    )


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
