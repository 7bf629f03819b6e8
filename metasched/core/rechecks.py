"""Requests to examine waiting tasks again. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metasched.model.refusal_scope import JobSet


@dataclass(frozen=True)
class Recheck:
    """Jobs for which a cluster may have become eligible."""

    jobs: JobSet
    has_room: Callable[[], bool]  # whether that cluster accepts another task of them
