"""The DRMAA session of this process: the `drmaa` package with all errors translated.

DRMAA allows a single session per process, used by a single thread. The library is loaded when
the session opens. A wrong path therefore makes the cluster unreachable and does not stop the
worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from metasched.model.adapter_errors import AdapterError, Refused, Unreachable

T = TypeVar("T")

# Errors that prove that neither the manager nor its library accepted the job.
_REJECTIONS = {
    "AuthorizationException",
    "ConflictingAttributeValuesException",
    "InvalidArgumentException",
    "InvalidAttributeFormatException",
    "InvalidAttributeValueException",
}
_LOST_CONNECTIONS = {"DrmCommunicationException", "NoActiveSessionException"}
_RETRYABLE_REJECTIONS = {"TryLaterException"}


class JobExit(NamedTuple):
    """The end of a job as reported by DRMAA: an exit code, a signal, or neither."""

    exit_code: int | None
    signal: str | None  # name
    aborted: bool  # it never started


class DrmaaSession:
    """A session that opens at its first use."""

    def __init__(self, library: str) -> None:
        self._library = library
        # what a message means with which the manager, or its library, denies a submission
        self.judge_denial: Callable[[str], AdapterError] = Refused
        self._drmaa: Any = None
        self._session: Any = None

    def submit(self, path: str, native: str, name: str) -> str:
        """Queue the command or script at `path`; return its native id.

        Refused: certainly not queued; retryable if no session could be opened. Unreachable: perhaps
        queued.
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
        """Return DRMAA's name of a job's state, such as `running`; None for an unknown job."""
        try:
            return self._call(lambda session: str(session.jobStatus(native_id)))
        except _UnknownJob:
            return None

    def job_exit(self, native_id: str) -> JobExit | None:
        """Return the end of a job; None if DRMAA does not report it, or no longer does."""
        try:
            session = self.open()
            info = session.wait(native_id, self._drmaa.Session.TIMEOUT_NO_WAIT)
        except Exception:  # drmaa 0.7.9 raises a bare Exception for error codes without a class
            return None
        if info.hasExited:
            return JobExit(int(info.exitStatus), None, False)
        return JobExit(
            None, info.terminatedSignal if info.hasSignal else None, bool(info.wasAborted)
        )

    def control(self, native_id: str, action: str) -> bool:
        """Hold, release or terminate a job; return False if the manager rejects this."""
        try:
            self._call(lambda session: session.control(native_id, action))
        except (_UnknownJob, Refused):
            return False
        return True

    def close(self) -> None:
        """Close the session."""
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
            if error_name == "DeniedByDrmException":
                raise self.judge_denial(message) from None
            if error_name == "InvalidJobException":
                raise _UnknownJob(message) from None
            if error_name == "NoActiveSessionException":
                self._session = None
            reason = f"DRMAA: {message}"
            said = "" if error_name in _LOST_CONNECTIONS else reason
            raise Unreachable(reason, said) from None
        except UnicodeEncodeError:
            raise Refused("an option is not valid text") from None

    def open(self) -> Any:
        """Return the session, opened if necessary. Raises Unreachable with the cause."""
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
    """DRMAA does not know the job and reports nothing about its end."""


def _one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:500]
