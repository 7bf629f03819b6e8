"""Sends a mail by the site's program, called as sendmail(8) or as mail(1)."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate

from metasched.config.settings import MailSettings
from metasched.model.audit import one_line
from metasched.model.mail import ADDRESS
from metasched.times.timeouts import reply_timeout

MAIL_TIMEOUT = 60.0  # seconds for the mail program


class MailFailed(Exception):
    """The program certainly did not take the mail."""


class UnknownAddress(MailFailed):
    """The program says that there is no such address; it works."""


class MailUncertain(Exception):
    """The program may have taken the mail."""


def command_for(
    settings: MailSettings, id: str, address: str, subject: str, text: str
) -> tuple[list[str], bytes]:
    """Return the command that sends a mail, and its input. `id`: the same for a mail, always.

    ValueError for an invalid address, and for a subject with an end of a line.
    """
    if not ADDRESS.fullmatch(address):
        raise ValueError(f"{one_line(address)} is no address")
    if not settings.is_sendmail:
        return [str(settings.program), "-s", subject, address], text.encode()
    message = EmailMessage()
    if settings.sender:
        message["From"] = settings.sender
    message["To"] = address
    # names of jobs are literal: what looks like an encoded word (RFC 2047) must not be decoded
    message["Subject"] = subject.replace("=?", "= ?")
    message["Date"] = formatdate(localtime=False)
    message["Message-ID"] = f"<{id}@metasched.invalid>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no vacation replies
    message.set_content(text)
    return [str(settings.program), "-i", address], message.as_bytes()


async def send_mail(command: list[str], content: bytes) -> None:
    """Run the mail program; its exit code 0 means that the mail was taken.

    `command` and `content`: see `command_for`. MailFailed if the program ends otherwise or cannot
    be run, UnknownAddress for two exit codes of sysexits(3), MailUncertain if it must be killed.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise MailFailed(f"{command[0]}: {error.strerror}") from None
    try:
        async with reply_timeout(MAIL_TIMEOUT):
            await process.communicate(content)
    except TimeoutError:
        raise MailUncertain(f"{command[0]} did not end in {MAIL_TIMEOUT:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode in (os.EX_NOUSER, os.EX_NOHOST):
        raise UnknownAddress(f"no such address: {command[0]} ended with {process.returncode}")
    if process.returncode:
        raise MailFailed(f"{command[0]} ended with exit code {process.returncode}")
