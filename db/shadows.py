"""The candidate policy beside the policy in force, and its last decisions, in SQL.

One candidate is kept: that which runs, or which ran last. Decisions belong to a candidate by its
number, so late decisions of an earlier candidate do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sqlalchemy import Connection, and_, case, delete, func, insert, or_, select, update

from metasched.db.schema import job, shadow, shadow_decision
from metasched.model.policy_version import PolicyVersion
from metasched.model.shadow import Shadow, ShadowDecision, ShadowGroup

MAX_DECISIONS: Final = 100_000  # rows; older decisions are deleted


def read(connection: Connection) -> Shadow | None:
    """Return the candidate that runs or ran last."""
    newest = select(shadow).order_by(shadow.c.number.desc()).limit(1)
    row = connection.execute(newest).mappings().first()
    return None if row is None else Shadow(**row)


def start(connection: Connection, candidate: Shadow) -> int:
    """Store a candidate in place of the last candidate; return its number."""
    last = connection.execute(select(func.max(shadow.c.number))).scalar() or 0
    connection.execute(delete(shadow_decision))
    connection.execute(delete(shadow))
    connection.execute(insert(shadow).values(asdict(candidate) | {"number": last + 1}))
    return last + 1


def end(connection: Connection, number: int, time: float, reason: str) -> None:
    """Store that a candidate has ended; nothing if it has ended already."""
    connection.execute(
        update(shadow)
        .where(shadow.c.number == number, shadow.c.ended.is_(None))
        .values(ended=time, end_reason=reason)
    )


def end_in_force(connection: Connection, version: PolicyVersion, time: float) -> None:
    """End the candidate if a version of the policy has its text."""
    candidate = read(connection)
    if candidate is not None and candidate.text == version.text and version.file:
        end(connection, candidate.number, time, f"in force as policy version {version.number}")


def add_decisions(connection: Connection, number: int, decisions: Sequence[ShadowDecision]) -> None:
    """Add decisions of a candidate, and delete those beyond `MAX_DECISIONS`."""
    if not decisions:
        return
    rows = [decision._asdict() | {"shadow": number} for decision in decisions]
    connection.execute(insert(shadow_decision), rows)
    newest = connection.execute(select(func.max(shadow_decision.c.id))).scalar_one()
    oldest = newest - MAX_DECISIONS  # ids may have gaps: then fewer rows stay
    connection.execute(delete(shadow_decision).where(shadow_decision.c.id <= oldest))


def read_differing(
    connection: Connection, number: int, limit: int
) -> list[tuple[ShadowDecision, bool]]:
    """Return the last decisions of a candidate that differ, the newest first. O(rows).

    And of each whether its job is an array, as far as that job is not pruned.
    """
    columns = shadow_decision.c
    moves = and_(columns.eligible > 1, columns.cluster != columns.live_cluster)
    rows = connection.execute(
        select(*(columns[name] for name in ShadowDecision._fields), job.c.array.is_not(None))
        .outerjoin_from(shadow_decision, job, job.c.id == columns.job)
        .where(columns.shadow == number, or_(columns.priority != columns.live_priority, moves))
        .order_by(columns.id.desc())
        .limit(limit)
    )
    return [(ShadowDecision(*fields), in_array) for *fields, in_array in rows]


def read_groups(connection: Connection, number: int) -> list[ShadowGroup]:
    """Return the decisions of a candidate, grouped by their differences. O(rows)."""
    columns = shadow_decision.c
    had_choice = case((and_(columns.eligible > 1, columns.cluster.is_not(None)), 1), else_=0)
    change = case(
        (columns.priority > columns.live_priority, 1),
        (columns.priority < columns.live_priority, -1),
        else_=0,
    )
    keys = (
        columns.user_class,
        columns.deadline,
        had_choice.label("had_choice"),
        change.label("change"),
        columns.live_cluster,
        columns.cluster,
    )
    rows = connection.execute(
        select(*keys, func.count().label("tasks")).where(columns.shadow == number).group_by(*keys)
    )
    return [
        ShadowGroup(
            user_class=row.user_class,
            deadline=row.deadline,
            had_choice=bool(row.had_choice),
            change=row.change,
            live_cluster=row.live_cluster,
            cluster=row.cluster,
            tasks=row.tasks,
        )
        for row in rows
    ]
