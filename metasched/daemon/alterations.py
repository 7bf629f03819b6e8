"""What a cluster's manager lists otherwise than metasched sent it, since the daemon's start."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from metasched.model.listing import Alteration

log = logging.getLogger("metasched")


@dataclass
class Alterations:
    """The first alteration of each kind on a cluster, with the number of all."""

    cluster: str
    _first: dict[str, Alteration] = field(default_factory=dict)  # by kind

    def add(self, alterations: Iterable[Alteration]) -> None:
        """Add those of a listing; log the first of each kind."""
        for alteration in alterations:
            first = self._first.get(alteration.kind)
            if first is None:
                log.warning("cluster %s: %s", self.cluster, describe_alteration(alteration))
                self._first[alteration.kind] = alteration
            else:
                jobs = first.jobs + alteration.jobs
                self._first[alteration.kind] = structs.replace(first, jobs=jobs)

    @property
    def first(self) -> list[Alteration]:
        """The first of each kind, with the number of all."""
        return list(self._first.values())


def describe_alteration(alteration: Alteration) -> str:
    """Return what was altered, by the first job with such an alteration."""
    job = f"job {alteration.native_id} ({alteration.tag}, task {alteration.task})"
    match alteration.kind:
        case "tag":
            return f"{job} was listed without its tag; a plug-in of its manager may remove tags"
        case "copy":
            return f"job {alteration.native_id} carries the tag {alteration.tag} of another job"
        case kind:
            sent, listed = alteration.sent, alteration.listed
            return f"{job} was sent with {kind} {sent}, and is listed with {listed}"
