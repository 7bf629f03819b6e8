"""The stored state from which a fresh core is restored; checkpoints hold it packed. Pure.

mypyc does not compile this module: msgspec decodes it by its annotations.
"""

from __future__ import annotations

import zlib

import msgspec
from msgspec import structs

from metasched.core.array_remainder import Remainder
from metasched.core.dependency_status import TargetSummary
from metasched.core.events import ClusterDrained
from metasched.core.strikes import Strike
from metasched.core.tasks import EndedTask, Task, TaskId
from metasched.model.calendar import CalendarEntry
from metasched.model.cluster import ClusterInfo
from metasched.model.fair_share import ShareTree, ShareUse
from metasched.model.job import Job
from metasched.model.licence import Lease, LicenceCount, LingeringTokens
from metasched.model.reservation import Reservation
from metasched.model.tuning import TuningState

_ARRAY, _MAP = b"\xdd", b"\xdf"  # of msgpack; the number of items follows in four bytes


class RecoveredState(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of the core."""

    tasks: list[Task]  # open tasks, without those of `remainders`
    last_dispatches: dict[int, int]  # highest dispatch id of each open job
    info: dict[str, ClusterInfo]  # last lasting information of each cluster
    margins: list[Job]  # recent jobs with a deadline that could be met, oldest first
    drains: list[ClusterDrained]  # clusters kept closed by operators
    ended: dict[TaskId, EndedTask] = msgspec.field(default_factory=dict)  # recently, oldest first
    # progress of the jobs on which an open job depends, by open job
    target_summaries: dict[int, list[TargetSummary]] = msgspec.field(default_factory=dict)
    strikes: list[Strike] = msgspec.field(default_factory=list)
    leases: list[Lease] = msgspec.field(default_factory=list)  # live leases
    lingering: list[LingeringTokens] = msgspec.field(default_factory=list)
    totals: dict[str, int] = msgspec.field(default_factory=dict)  # set by operators, by licence
    # tokens given to others by managers, by licence and cluster
    used_outside: dict[str, dict[str, LicenceCount]] = msgspec.field(default_factory=dict)
    # open, or perhaps still held by a manager
    reservations: list[Reservation] = msgspec.field(default_factory=list)
    share_uses: list[ShareUse] = msgspec.field(default_factory=list)
    share_trees: dict[str, ShareTree] = msgspec.field(default_factory=dict)  # by cluster
    # of the self-optimising classification
    tuning: list[TuningState] = msgspec.field(default_factory=list)
    remainders: list[Remainder] = msgspec.field(default_factory=list)  # of arrays, by job
    calendar: list[CalendarEntry] = msgspec.field(default_factory=list)  # by id

    def pack(self) -> bytes:
        """Encode as compressed msgpack, item by item: each task repeats its job, uncompressed."""
        encode, compressor = msgspec.msgpack.Encoder().encode, zlib.compressobj(1)
        fields = structs.fields(self)
        packed = [compressor.compress(_MAP + len(fields).to_bytes(4, "big"))]
        for field in fields:
            packed.append(compressor.compress(encode(field.name)))
            value = getattr(self, field.name)
            if not isinstance(value, list):
                packed.append(compressor.compress(encode(value)))
                continue
            packed.append(compressor.compress(_ARRAY + len(value).to_bytes(4, "big")))
            packed += filter(None, (compressor.compress(encode(element)) for element in value))
        return b"".join([*packed, compressor.flush()])

    @staticmethod
    def unpack(data: bytes) -> RecoveredState:
        """Decode the result of `pack`."""
        return msgspec.msgpack.decode(zlib.decompress(data), type=RecoveredState)
