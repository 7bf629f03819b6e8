"""The one DRMAA session of this process: the `drmaa` package with every error translated.

DRMAA allows one session per process and one thread in it. The library is loaded when the session
is opened, so that a wrong path is an `Unreachable` cluster and not a worker that cannot start.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from metasched.adapters.errors import Refused, Unreachable

T = TypeVar("T")

# Errors with which the manager or its library certainly took nothing.
_REJECTIONS = {
    *("DeniedByDrmException", "InvalidArgumentException", "InvalidAttributeFormatException"),
    *("InvalidAttributeValueException", "ConflictingAttributeValuesException"),
    "AuthorizationException",
}
_RETRYABLE_REJECTIONS = {"TryLaterException"}


class JobExit(NamedTuple):
    """How DRMAA says that a job ended: its own exit code, or a signal, or neither."""

    exit_code: int | None
    signal: str | None
    aborted: bool


class DrmaaSession:
    """A session that opens itself when it is first needed."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._drmaa: Any = None
        self._session: Any = None

    def submit(self, path: str, native: str, name: str) -> str:
        """Queue the command or script at `path`; its native id.

        Refused: it is certainly not queued, perhaps since there is no session to do so (again).
        Unreachable: perhaps it is.
        """
        try:
            self.open()
        except Unreachable as error:
            raise Refused(error.reason, retryable=True) from None
        try:
            return self._call(lambda session: self._run_job(session, path, native, name))
        except _UnknownJob as error:
            raise Unreachable(f"DRMAA: {error}") from None

    def _run_job(self, session: Any, path: str, native: str, name: str) -> str:
        template = session.createJobTemplate()
        try:
            template.remoteCommand = path
            template.jobName = name
            template.workingDirectory = "/"
            template.outputPath = ":/dev/null"
            template.joinFiles = True
            template.nativeSpecification = native
            return str(session.runJob(template))
        finally:
            with suppress(Exception):
                session.deleteJobTemplate(template)

    def status(self, native_id: str) -> str | None:
        """DRMAA's word for the state of a job, such as `running`; None: unknown to it."""
        try:
            return self._call(lambda session: str(session.jobStatus(native_id)))
        except _UnknownJob:
            return None

    def job_exit(self, native_id: str) -> JobExit | None:
        """How a job ended; None if DRMAA cannot (or can no longer) say."""
        try:
            session = self.open()
            info = session.wait(native_id, self._drmaa.Session.TIMEOUT_NO_WAIT)
        except Exception:  # drmaa 0.7.9 raises a bare Exception for codes that it has no class for
            return None
        if info.hasExited:
            return JobExit(int(info.exitStatus), None, False)
        return JobExit(
            None, info.terminatedSignal if info.hasSignal else None, bool(info.wasAborted)
        )

    def control(self, native_id: str, action: str) -> bool:
        """`hold`, `release` or `terminate` a job; False if the manager would not."""
        try:
            self._call(lambda session: session.control(native_id, action))
        except (_UnknownJob, Refused):
            return False
        return True

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                session.exit()

    def _call(self, operation: Callable[[Any], T]) -> T:
        session = self.open()
        errors = self._drmaa.errors
        try:
            return operation(session)
        except errors.DrmaaException as error:
            error_name, message = type(error).__name__, _one_line(error)
            if error_name in _RETRYABLE_REJECTIONS:
                raise Refused(message, retryable=True) from None
            if error_name in _REJECTIONS:
                raise Refused(message) from None
            if error_name == "InvalidJobException":
                raise _UnknownJob(message) from None
            if error_name == "NoActiveSessionException":
                self._session = None
            raise Unreachable(f"DRMAA: {message}") from None
        except UnicodeEncodeError:
            raise Refused("an option is no text") from None

    def open(self) -> Any:
        """The session, opened if it is not. Unreachable, with the reason, if it cannot be."""
        if self._session is not None:
            return self._session
        os.environ["DRMAA_LIBRARY_PATH"] = self._library  # read when `drmaa` is imported
        try:
            import drmaa
        except ImportError as error:
            raise Unreachable(f"{error}; pip install 'metasched[drmaa]'") from None
        except (OSError, RuntimeError, AttributeError) as error:
            raise Unreachable(f"{self._library} cannot be loaded: {_one_line(error)}") from None
        session = drmaa.Session()
        try:
            session.initialize()
        except drmaa.errors.DrmaaException as error:
            raise Unreachable(f"no DRMAA session: {_one_line(error)}") from None
        self._drmaa, self._session = drmaa, session
        return session


class _UnknownJob(Exception):
    """DRMAA does not know the job: not a word about how it fared."""


def _one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:500]
