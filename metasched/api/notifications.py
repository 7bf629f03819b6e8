"""The route that lists notifications, and their part in the health of the daemon."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec import structs

from metasched.api.pages import RequestedPage
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon
from metasched.client.schemas import JobRequest
from metasched.client.site_answers import NotificationRow
from metasched.config.settings import MailSettings
from metasched.daemon.service import SchedulerService
from metasched.model.audit import one_line
from metasched.model.mail import ADDRESS, is_allowed
from metasched.model.units import iso

TIME_FIELDS = ("created", "due", "ended")

router = APIRouter()


@router.get("/notifications", response_model=list[NotificationRow])
async def notifications(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    page: RequestedPage,
    delivered: bool = False,
) -> Response:
    """List mails and groups of events by id, always a page: the caller's; all to an operator.

    `delivered`: also those that were delivered.
    """
    user = None if caller.operator else caller.user

    def read_page() -> Response:
        rows = daemon.ledger.notices(user, page.after, page.size + 1, delivered=delivered)
        return page.answer([_row(row) for row in rows], "id")

    return await readers.run(request, ReadingKind.LISTING, read_page, until_answered=False)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `notifications --json`."""
    shown = row | {name: iso(row[name]) for name in TIME_FIELDS}
    return shown | {"address": row["address"] or None, "error": row["error"] or None}


def receiver_rows(service: SchedulerService) -> list[dict[str, Any]]:
    """Return the receivers of notifications: mail, and webhooks."""
    return [
        asdict(status) | {"oldest": iso(status.oldest), "next_try": iso(status.next_try)}
        for status in service.notifications.statuses.values()
    ]


def apply_mail(
    mail: MailSettings | None, user: str, request: JobRequest
) -> tuple[JobRequest, list[str]]:
    """Return the request with the mails that the site sends, and warnings about the others."""
    requested = request.mail
    if requested is None or not requested.types:
        return structs.replace(request, mail=None), []
    if mail is None:
        return structs.replace(request, mail=None), ["--mail-type: this site sends no mail"]
    warnings, address = [], requested.user
    if address and not is_allowed(address, user, mail.domains):
        allowed = f"addresses at {', '.join(mail.domains)}" if mail.domains else "no addresses"
        warnings.append(
            f"--mail-user: this site allows {allowed}; mail goes to {user}, "
            f"not to {one_line(address)}"
        )
        address = ""
    if not address and not ADDRESS.fullmatch(user):
        return structs.replace(request, mail=None), ["--mail-type: your user name is no address"]
    return structs.replace(request, mail=structs.replace(requested, user=address)), warnings
