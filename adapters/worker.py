"""The process that hosts an adapter, and executes its calls.

It reads frames of JSON. The first is a `WorkerBoot`, each further one a `WorkerCall`, answered by a
`WorkerReply`. The process ends at the end of its input, so it never outlives the daemon.

The main thread executes the calls without an owner: the adapter polls there. A thread for each
owner executes the owner's calls, so a user whose processes hang delays nobody else. Another thread
queries use and shares, since accounting may be slow.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
from msgspec import structs

from metasched.adapters.answered_calls import AnsweredCalls
from metasched.adapters.base import Adapter, Submission
from metasched.adapters.claims import (
    FenceError,
    apply_fence,
    check_fence,
    read_end,
    revoke_claim,
)
from metasched.adapters.known_jobs import KnownJobs, SentJob, merge_alterations
from metasched.adapters.launcher_client import LauncherClient, owner_deadline, requests_for
from metasched.adapters.login_environment import with_login_environment
from metasched.adapters.other_dialects import with_dialect_variables
from metasched.adapters.prologue import with_prologue
from metasched.adapters.protocol import (
    WORKER_PROTOCOL,
    ListingDelta,
    WorkerBoot,
    WorkerCall,
    WorkerReply,
)
from metasched.adapters.registry import adapter_class
from metasched.model.adapter_errors import PartlySubmitted, Refused, SiteFault, Unreachable
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.foreign_use import UseQuery
from metasched.model.listing import (
    Alteration,
    JobStatus,
    ListedQueue,
    Listing,
    QuarantinedRow,
    TaskClaim,
)
from metasched.model.row_checks import (
    MAX_TEXT_LENGTH,
    clean_row,
    clean_text,
    quarantined,
    row_defect,
)
from metasched.model.survey import ReservationSpec
from metasched.processes.frames import read_frames, replies_to_parent, write_frame
from metasched.times.active_until import ActiveUntil
from metasched.times.clock import ClockStepDetector

MAX_TRACEBACK_LENGTH = 20_000  # characters
MAX_SET_ASIDE = 10_000  # rows of a manager with a cursor; each delta repeats them
USE_OPERATIONS = frozenset({"use", "shares", "usage"})  # executed beside the polls
MAX_SENT_JOBS = 10_000  # that no listing has shown yet; the terms of later jobs are compared
CHANGES = frozenset({"submit", "withdraw", "revoke", "reserve", "unreserve"})  # change the manager
IDLE_SECONDS = 30.0  # without a call, after which the thread of an owner ends

RowKey = tuple[str, int, str]  # tag, task, owner


@dataclass
class AdapterHost:
    """An adapter with its last reported listing, from which changes are computed."""

    adapter: Adapter
    launcher: LauncherClient | None = None  # in site mode
    active_until: ActiveUntil | None = None  # None: no other daemon can become active
    _rows: dict[RowKey, JobStatus] = field(default_factory=dict)
    # rows quarantined in that listing, and in earlier listings if it has a cursor
    _set_aside: dict[RowKey, QuarantinedRow] = field(default_factory=dict)
    _expected_starts: dict[RowKey, float] = field(default_factory=dict)
    _info: ClusterInfo | None = None
    _queue: ListedQueue | None = None
    _is_full: bool = True  # the next delta reports the whole listing
    _position: str | None = None  # cursor of the last listing; "": it has none
    _broken_chains: set[str] = field(default_factory=set)  # owners: chained submits are skipped
    _sent: dict[str, SentJob] = field(default_factory=dict)  # not listed yet, by native id
    # owners whose jobs were listed without their tags, when this worker saw them first
    _without_tags: set[str] = field(default_factory=set)
    _copies: frozenset[str] = frozenset()  # native ids of jobs with copied tags, of that listing

    def __post_init__(self) -> None:
        self._answered = AnsweredCalls(self.adapter.settle)

    def execute(self, call: WorkerCall) -> WorkerReply:
        """Execute a call; return every failure as a reply. Thread-safe for different owners."""
        if call.chained and call.owner in self._broken_chains:
            reply = WorkerReply("untried")
        else:
            if self.active_until is not None and call.operation in CHANGES:
                self.active_until.wait()
            begun = time.monotonic()
            with owner_deadline(call.time_limit), requests_for(_tags_of(call)):
                reply = self._execute(call)
            # An owner can make his own commands fail, so these say nothing about the manager.
            if call.operation in CHANGES and not call.owner and _has_lost_tasks(call, reply):
                self._answered.fail_change(begun, time.monotonic())
        if call.operation == "submit":
            if reply.retry_later or _has_lost_tasks(call, reply):
                self._broken_chains.add(call.owner)
            else:
                self._broken_chains.discard(call.owner)
        limit = MAX_TRACEBACK_LENGTH if reply.error == "defect" else MAX_TEXT_LENGTH
        return structs.replace(
            reply,
            reason=clean_text(reply.reason, limit),
            sentence=clean_text(reply.sentence),
            access=self.adapter.access,
            exclusions=self.adapter.exclusions,
            number=call.number,
            protocol=WORKER_PROTOCOL,
        )

    def _execute(self, call: WorkerCall) -> WorkerReply:
        try:
            match call:
                case WorkerCall(operation="submit", submission=Submission() as submission):
                    return self._submit(submission)
                case WorkerCall(operation="withdraw"):
                    self.adapter.withdraw_all(call.withdrawals)
                    return WorkerReply()
                case WorkerCall(operation="poll"):
                    self.adapter.update_licence_demand(call.criticality)
                    return self._poll(call)
                case WorkerCall(operation="accounting"):
                    return WorkerReply(accounting=self.adapter.query_accounting(call.missing))
                case WorkerCall(operation="revoke"):
                    return self._revoke(call.claims)
                case WorkerCall(operation="survey"):
                    return WorkerReply(survey=self.adapter.survey())
                case WorkerCall(operation="reserve", reservation=ReservationSpec() as reservation):
                    self.adapter.reserve(reservation)
                    return WorkerReply()
                case WorkerCall(operation="use", use_query=UseQuery() as use_query):
                    return WorkerReply(use=self.adapter.query_foreign_use(use_query))
                case WorkerCall(operation="usage"):
                    return WorkerReply(usage=dict(self.adapter.query_usage(call.ended)))
                case WorkerCall(operation="shares"):
                    return WorkerReply(shares=self.adapter.read_shares())
                case WorkerCall(operation="unreserve"):
                    self.adapter.delete_reservation(call.reservation_name)
                    return WorkerReply()
                case _:
                    return WorkerReply("defect", f"{call.operation} without its argument")
        except Refused as error:
            return WorkerReply(
                "refused", error.reason, retry_later=error.retryable, scope=error.scope
            )
        except PartlySubmitted as error:
            return WorkerReply(
                "partial",
                error.reason,
                sentence=error.sentence,
                native_ids=error.native_ids,
                untried=error.untried,
            )
        except Unreachable as error:
            site_fault = isinstance(error, SiteFault)
            return WorkerReply(
                "unreachable", error.reason, sentence=error.sentence, site_fault=site_fault
            )
        except Exception:
            return WorkerReply("defect", traceback.format_exc())

    def _poll(self, call: WorkerCall) -> WorkerReply:
        """Poll the manager. A listing during which the clock was set is discarded.

        In site mode the launcher must be able to change jobs: otherwise the cluster is down.
        A whole listing begins at the daemon's cursor, later listings where the last ended.
        """
        if call.full:
            self._is_full, self._position = True, None
        if call.cursor is None:
            self.adapter.resume_after(None)
        else:
            self.adapter.resume_after(self._position or call.cursor)
        if self.launcher is not None:
            self.launcher.check_cluster(self.adapter.launcher_verbs)
        clock_detector = ClockStepDetector()
        known, sent = KnownJobs(self._rows, call.known), self._sent.copy()
        self.adapter.known_jobs = known
        self.adapter.new_jobs = {id: job.job.account for id, job in sent.items()}
        self._answered.begin_poll(time.monotonic())
        listing = self.adapter.poll()
        self._answered.end_poll(time.monotonic())
        if clock_step := clock_detector.detect_step():
            return WorkerReply(
                "unreachable", f"the clock was set by {clock_step:+.0f} s during a poll"
            )
        lead = listing.clock_lead
        rows, copies, set_aside = known.identify(listing.rows, listing.untagged, lead)
        untagged = {row.native_id for row in listing.untagged}
        self._without_tags |= {
            row.owner
            for row in rows
            if row.native_id in untagged and (row.tag, row.task, row.owner) not in self._rows
        }
        set_aside += [
            row
            for row in known.may_have_arrived(listing.untagged, lead)
            if self._loses_tags_of(row.owner)
        ]
        alterations = self._compare(listing, rows, sent) if sent else []
        alterations += [
            Alteration("copy", row.tag, row.task, row.native_id, "no tag", row.tag)
            for row in copies
            if row.native_id not in self._copies
        ]
        self._copies = frozenset(row.native_id for row in copies)
        quarantined_rows = (*listing.quarantined, *set_aside)
        delta = self._delta(replace(listing, rows=tuple(rows), quarantined=quarantined_rows))
        self._position = listing.cursor
        return WorkerReply(delta=structs.replace(delta, alterations=merge_alterations(alterations)))

    def _loses_tags_of(self, owner: str) -> bool:
        """Return whether the manager has shown that it removes tags from an owner's jobs.

        The owner can remove his own. So one owner's jobs show nothing of those of others.
        """
        return owner in self._without_tags or len(self._without_tags) > 1

    def _compare(
        self, listing: Listing, rows: Sequence[JobStatus], sent: Mapping[str, SentJob]
    ) -> list[Alteration]:
        """Compare jobs with what was sent, when a listing shows them for the first time."""
        without_tag = {row.native_id for row in listing.untagged}
        granularity = self.adapter.capabilities.limit_granularity
        alterations: list[Alteration] = []
        for row in rows:
            job = sent.get(row.native_id)
            if job is None or (row.tag, row.task) != (job.tag, job.task):
                continue
            self._sent.pop(row.native_id, None)
            alterations += job.alterations(
                row.native_id,
                row.native_id not in without_tag,
                listing.terms.get(row.native_id),
                granularity,
            )
        return alterations

    def _submit(self, submission: Submission) -> WorkerReply:
        is_slurm = submission.dialect == "slurm"
        if not is_slurm:
            submission = structs.replace(submission, exports_job_id=False)
        submission = with_login_environment(with_prologue(submission))
        if not is_slurm:
            bin_dir = getattr(self.adapter.options, "bin_dir", None) or ""
            submission = with_dialect_variables(submission, self.adapter.cluster.name, bin_dir)
        try:
            native_ids = self.adapter.submit(apply_fence(submission))
        except PartlySubmitted as error:
            self._remember(submission, error.native_ids)
            raise
        self._remember(submission, native_ids)
        return WorkerReply(native_ids=native_ids)

    def _remember(self, submission: Submission, native_ids: Mapping[int, str]) -> None:
        """Store the jobs of a submission, to compare them with their first listing."""
        if len(self._sent) + len(native_ids) > MAX_SENT_JOBS:
            self._sent.clear()
        tag, has_options = submission.tag, bool(submission.options or submission.reservation)
        for index, native_id in native_ids.items():
            self._sent[native_id] = SentJob(tag, index, submission.job, has_options)

    @staticmethod
    def _revoke(claims: Sequence[TaskClaim]) -> WorkerReply:
        """Revoke claims of unstarted tasks, and read the ends of the others.

        The result omits claims whose folder does not answer.
        """
        revoked, ends, reason = {}, {}, ""
        for position, claim in enumerate(claims):
            try:
                if not claim.started:
                    revoked[position] = revoke_claim(claim)
                if not revoked.get(position) and (end := read_end(claim)) is not None:
                    ends[position] = end
            except FenceError as error:
                reason = str(error)
        return WorkerReply(reason=reason, revoked=revoked, ends=ends)

    def _delta(self, listing: Listing) -> ListingDelta:
        """Return the changes since the last reported listing, and remember this listing."""
        full = self._is_full
        rows: dict[RowKey, JobStatus] = {}
        set_aside = {(row.tag, row.task, row.owner): row for row in listing.quarantined}
        for row in listing.rows:
            # also before encoding: JSON has no NaN and no half characters
            if defect := row_defect(row):
                entry = quarantined(row, defect)
                set_aside[entry.tag, entry.task, entry.owner] = entry
            else:
                rows[row.tag, row.task, row.owner] = clean_row(row)
        if listing.cursor:
            # a task that has ended is not listed again, so its row stays set aside
            set_aside = {k: v for k, v in self._set_aside.items() if k not in rows} | set_aside
            for key in list(set_aside)[:-MAX_SET_ASIDE]:
                del set_aside[key]
        if listing.partial:
            return self._partial_delta(listing, rows, set_aside)
        expected_starts = {
            key: row.expected for key, row in rows.items() if row.expected is not None
        }
        previous_starts = {} if full else self._expected_starts
        gone = [*self._rows, *sorted(self._set_aside.keys() - self._rows.keys())]
        delta = ListingDelta(
            taken=listing.taken,
            since=listing.since,
            until=self._arrived_until(listing),
            rows=tuple(row for key, row in rows.items() if full or self._rows.get(key) != row),
            vanished=tuple(key for key in gone if key not in rows and key not in set_aside),
            info=listing.info if full or listing.info != self._info else None,
            full=full,
            up_since=listing.up_since,
            expected_starts=tuple(
                (*key, expected_starts.get(key))
                for key in previous_starts.keys() | expected_starts.keys()
                if previous_starts.get(key) != expected_starts.get(key)
            ),
            quarantined=tuple(set_aside.values()),
            cursor=listing.cursor,
            queue=listing.queue if full or listing.queue != self._queue else None,
        )
        if listing.cursor:
            rows = {key: row for key, row in rows.items() if row.ended is None}
        self._set_aside = set_aside
        self._rows, self._info, self._is_full = rows, listing.info, False
        self._expected_starts, self._queue = expected_starts, listing.queue
        return delta

    def _arrived_until(self, listing: Listing) -> float:
        """Return `ListingDelta.until`: the listing lacks no command that ended by then."""
        epoch = time.time() - time.monotonic()  # of the monotonic clock
        return max(self._answered.arrived_until(listing.until - epoch) + epoch, 0.0)

    def _partial_delta(
        self,
        listing: Listing,
        rows: dict[RowKey, JobStatus],
        set_aside: dict[RowKey, QuarantinedRow],
    ) -> ListingDelta:
        """Return the first ends of a listing; the rest is compared when it arrives."""
        self._set_aside = set_aside
        self._rows = {key: row for key, row in self._rows.items() if key not in rows}
        return ListingDelta(
            taken=listing.taken,
            since=listing.since,
            until=0.0,
            rows=tuple(rows.values()),
            quarantined=tuple(set_aside.values()),
            cursor=listing.cursor,
            partial=True,
        )


def _has_lost_tasks(call: WorkerCall, reply: WorkerReply) -> bool:
    """Return whether no answer came to some task of a submit, and further submits may get none."""
    if reply.sentence:
        return False  # the program has ended by itself
    if reply.error == "partial" and call.submission is not None:
        return len(reply.native_ids) + len(reply.untried) < len(call.submission.indices)
    return reply.error not in ("", "refused")


def _tags_of(call: WorkerCall) -> list[str]:
    """Return the tags of the dispatches that a call submits or withdraws."""
    submitted = [] if call.submission is None else [call.submission.tag]
    return submitted + [withdrawal.tag for withdrawal in call.withdrawals]


def _warn_about_fence(cluster: Cluster) -> None:
    """Write a line to the daemon's log if the cluster's claims cannot be created."""
    try:
        if cluster.fence_dir:
            check_fence(cluster.fence_dir)
    except FenceError as error:
        fix = f"; {error.fix}" if error.fix else ""
        message = f"cluster {cluster.name} takes no jobs: fence_dir: {error}{fix}"
        print(f"metasched: warning: {message}", file=sys.stderr, flush=True)


def encode_reply(reply: WorkerReply) -> bytes:
    """Encode a reply; of values that JSON cannot hold, encode a report of the defect."""
    try:
        return msgspec.json.encode(reply)
    except (ValueError, TypeError, RecursionError) as error:
        reason = clean_text(f"a reply that cannot be sent: {error}")
        return msgspec.json.encode(
            WorkerReply("defect", reason, number=reply.number, protocol=WORKER_PROTOCOL)
        )


class OwnerThreads:
    """A thread for each owner with calls; it ends when it is idle."""

    def __init__(self, execute: Callable[[WorkerCall], None]) -> None:
        self._execute = execute
        self._lock = threading.Lock()
        self._queues: dict[str, queue.SimpleQueue[WorkerCall]] = {}  # by owner

    def submit(self, call: WorkerCall) -> None:
        """Queue a call behind the earlier calls of its owner."""
        with self._lock:
            calls = self._queues.get(call.owner)
            if calls is None:
                calls = self._queues[call.owner] = queue.SimpleQueue()
                name = f"calls of {call.owner}"
                threading.Thread(
                    target=self._run, args=(call.owner,), name=name, daemon=True
                ).start()
            calls.put(call)

    def _run(self, owner: str) -> None:
        calls = self._queues[owner]
        while True:
            try:
                call = calls.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if calls.empty():
                        del self._queues[owner]
                        return
            else:
                self._execute(call)


def serve(host: AdapterHost, messages: Iterable[bytes], write: Callable[[bytes], object]) -> None:
    """Execute the calls of `messages` and write their replies, until the end of either."""
    own_calls: queue.SimpleQueue[WorkerCall | None] = queue.SimpleQueue()  # None: the end
    write_lock = threading.Lock()

    def execute(call: WorkerCall) -> None:
        reply = encode_reply(host.execute(call))
        try:
            with write_lock:
                write(reply)
        except BrokenPipeError:  # the daemon has died
            own_calls.put(None)

    owner_threads, use_thread = OwnerThreads(execute), OwnerThreads(execute)

    def read_calls() -> None:
        try:
            for message in messages:
                call = msgspec.json.decode(message, type=WorkerCall)
                if call.owner:
                    owner_threads.submit(call)
                elif call.operation in USE_OPERATIONS:
                    use_thread.submit(call)
                else:
                    own_calls.put(call)
        finally:
            own_calls.put(None)

    threading.Thread(target=read_calls, name="calls", daemon=True).start()
    while (own_call := own_calls.get()) is not None:
        execute(own_call)


def main() -> int:
    """Host the adapter of the first message of input until the end of input."""
    replies, messages = replies_to_parent(), read_frames(sys.stdin.buffer)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon handles Ctrl-C at the terminal
    try:
        if (message := next(messages, None)) is None:
            return 0  # the daemon could not start this process completely, or has ended
    except ValueError:  # lines of JSON, without their lengths
        sys.exit(
            "metasched: error: the daemon has no frames, as before protocol 3; "
            f"install the daemon's release for {sys.executable}"
        )
    boot = msgspec.json.decode(message, type=WorkerBoot)
    if boot.protocol != WORKER_PROTOCOL:
        sys.exit(
            f"metasched: error: {boot.cluster.name}: the daemon has protocol {boot.protocol}, this "
            f"worker {WORKER_PROTOCOL}; install the daemon's release for {sys.executable}"
        )
    adapter_type = adapter_class(boot.adapter)
    options = msgspec.convert(boot.options, adapter_type.Options)
    _warn_about_fence(boot.cluster)
    launcher = None
    launcher_argument = {}
    if boot.launcher:
        os.umask(0o077)  # users can pass through some of its folders
        launcher = LauncherClient(Path(boot.launcher), boot.cluster.name)
        launcher_argument["launcher"] = launcher
    adapter = adapter_type(
        boot.cluster, options, boot.instance, Path(boot.folder), **launcher_argument
    )
    adapter.add_former_instances(frozenset(boot.former_instances))
    shared = None if boot.active_until is None else ActiveUntil(boot.active_until)
    host = AdapterHost(adapter, launcher, shared)
    try:
        serve(host, messages, partial(write_frame, replies))
    finally:
        host.adapter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
