"""The view of the site: its conditions, clusters and licences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.app import quarantine_rows
from metasched.api.clusters import clusters
from metasched.api.licences import licence_servers, licences
from metasched.api.pages import IdPage, KeyPage
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.web.api_calls import answer_of
from metasched.web.rendering import page

MAX_CLUSTERS = 500
MAX_LICENCES = 200

router = APIRouter()

Row = Mapping[str, Any]


class Condition(NamedTuple):
    """Something of the site that needs attention."""

    is_severe: bool
    subject: str
    text: str


@router.get("/")
async def show_site(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
) -> Response:
    listed = await answer_of(
        request, clusters(request, caller, service, readers, IdPage(0, MAX_CLUSTERS, True))
    )
    pools = await answer_of(
        request, licences(request, caller, service, readers, KeyPage(None, MAX_LICENCES, True))
    )
    rows: list[dict[str, Any]] = listed.content
    servers = await licence_servers(caller, service)
    conditions = [*_conditions(rows, pools.content, servers)]
    if caller.operator:
        problem = service.notifications.mail_error
        conditions += _conditions_for_operators(quarantine_rows(daemon), problem)
    usable = [row for row in rows if not row["state"].startswith("down")]
    return page(
        request,
        "site.html",
        clusters=rows,
        more_clusters=listed.next_cursor is not None,
        licences=pools.content,
        conditions=sorted(conditions, key=lambda condition: not condition.is_severe),
        used=sum(row["used"] for row in usable),
        cpus=sum(row["cpus"] for row in usable),
        usable=len(usable),
        pending=sum(row["pending"] for row in usable),
        highest_load=max((max(row["load"], default=0) for row in rows), default=0),
        highest_count=max((max(row["count"], default=0) for row in rows), default=0),
    )


def _conditions(
    cluster_rows: Sequence[Row], licence_rows: Sequence[Row], servers: Sequence[Row]
) -> Iterator[Condition]:
    """Yield what everybody may know."""
    for row in cluster_rows:
        name, state = f"cluster {row['cluster']}", row["state"]
        if state != "up":
            yield Condition(state.startswith("down"), name, state)
        for part, breaker in (("polls", row["breaker"]), ("worker", row["worker"])):
            if breaker["state"] != "closed" and not state.startswith("down"):
                yield Condition(True, name, f"{part} fail: {breaker['words']}")
        if row["set_aside"]:
            yield Condition(False, name, f"{row['set_aside']} rows of its listing are unusable")
    for row in licence_rows:
        if row["state"] != "ok":
            yield Condition(True, f"licence {row['licence']}", row["state"])
    for row in servers:
        if row["breaker"]["state"] != "closed":
            yield Condition(True, f"licence server {row['server']}", row["breaker"]["words"])
        for licence, reason in row["lacking"].items():
            yield Condition(False, f"licence server {row['server']}", f"{licence}: {reason}")


def _conditions_for_operators(sources: Sequence[Row], mail: str) -> Iterator[Condition]:
    for source in sources:
        text = source.get("words") or source.get("error") or source.get("reason") or "set aside"
        yield Condition(True, str(source["source"]), str(text))
    if mail:
        yield Condition(False, "mail", mail)
