"""Stored spellings of fields that have been renamed.

Databases, messages and files keep the name under which a field was first written. A class takes
its spellings by `Struct(rename=STORED_FIELDS["Class"])`; an unlisted field is stored under its own
name.
"""

from collections.abc import Mapping

STORED_FIELDS: Mapping[str, Mapping[str, str]] = {
    # Events, in the column event.data
    "DaemonStarted": {"licence_count": "licences"},
    "JobSubmitted": {"target_summaries": "fates"},
    "DispatchStarted": {"dispatch_id": "sending"},
    "DispatchAccepted": {"dispatch_id": "sending", "native_ids": "natives"},
    "DispatchRejected": {"dispatch_id": "sending", "retry_later": "again"},
    "DispatchUncertain": {"dispatch_id": "sending"},
    "DispatchSkipped": {"dispatches": "sendings"},
    "ListingReceived": {"info": "facts", "previous_taken": "before"},
    "AccountingReceived": {"never_started": "unstarted"},
    "ClaimsRevoked": {"already_started": "begun"},
    "UserRequested": {"action": "wish"},
    "JobRequeued": {"last_dispatch": "last_sending", "target_summaries": "fates"},
    "JobModified": {"change_summary": "what", "redispatch": "resend"},
    "ClockSet": {"step": "by"},
    "ReservationRequested": {"horizon": "until"},
    # Checkpoints, rows and JSON columns
    "Attempt": {
        "dispatch_id": "sending",
        "dispatched": "sent",
        "in_last_listing": "seen",
        "missing": "given_up",
        "last_listed": "listed",
        "accounting_queries": "looks",
        "next_accounting_query": "look_at",
        "withdrawal_requested": "asked",
        "manager_reason": "word",
        "rejected": "refused",
        "observed_at_dispatch": "watched",
        "yields_to": "rival",
        "has_started": "begun",
    },
    "PastAttempt": {"has_started": "began"},
    "EndedTask": {"last_attempt": "attempt", "past_attempts": "past"},
    "Task": {
        "queue_key": "key",
        "rejected_by": "refused",
        "ignore_rejections_until": "forgiven",
        "past_attempts": "past",
        "task_id": "place",
        "classified_priority": "classified",
    },
    "RecoveredState": {
        "last_dispatches": "last_sendings",
        "info": "facts",
        "target_summaries": "fates",
        "used_outside": "past_us",
    },
    "TargetSummary": {"succeeded": "ok", "failed": "bad", "last_start": "begun"},
    "LingeringTokens": {"returned": "given_back"},
    "Reservation": {
        "created": "made",
        "bound_nodes": "placed",
        "known_to_manager": "held",
        "rejections": "tries",
    },
    "ReservationRequest": {
        "min_size": "least",
        "max_size": "most",
        "min_duration": "shortest",
        "max_duration": "longest",
    },
    "Cluster": {
        "max_tasks_per_dispatch": "chunk",
        "supports_reservations": "reserves",
        "licence_features": "licensed",
    },
    "ClusterInfo": {
        "used_cpus": "used",
        "running_jobs": "running",
        "owed_by_others": "owed",
        "pending_jobs": "pending",
        "queue_head": "head",
        "upcoming_windows": "coming",
        "accounting_source": "records",
    },
    "JobStatus": {"manager_reason": "word"},
    "MissingTask": {"dispatched": "sent"},
    "AccountingAnswer": {"never_started": "unstarted"},
    "Survey": {"observed": "taken", "reservations": "held"},
    # Messages between the daemon and its workers
    "WorkerCall": {
        "operation": "call",
        "submission": "order",
        "criticality": "rho",
        "reservation": "window",
        "reservation_name": "name",
    },
    "ListingDelta": {"info": "facts", "expected_starts": "expected"},
    "WorkerReply": {
        "retry_later": "again",
        "native_ids": "natives",
        "delta": "news",
        "accounting": "trace",
    },
    "Submission": {"leased_licences": "leased"},
    "Withdrawal": {"native_ids": "natives", "only_pending": "unstarted"},
    # Files of Grid Engine and DRMAA clusters
    "Deletion": {"native_id": "native", "requested_at": "asked", "never_started": "never_began"},
    "_TaskRecord": {"time_limit": "limit", "native_id": "native"},
}

# The kind of each event in the column event.kind
EVENT_KINDS: Mapping[str, str] = {
    "DaemonStarted": "booted",
    "JobSubmitted": "submitted",
    "DispatchStarted": "tried",
    "DispatchAccepted": "accepted",
    "DispatchRejected": "declined",
    "DispatchUncertain": "unsure",
    "DispatchSkipped": "returned",
    "ListingReceived": "seen",
    "AccountingReceived": "traced",
    "ClaimsRevoked": "revoked",
    "ClusterUnreachable": "silent",
    "UserRequested": "asked",
    "JobRequeued": "requeued",
    "JobModified": "modified",
    "ClusterDrained": "drained",
    "ClusterResumed": "resumed",
    "LicencesCounted": "licencescounted",
    "LicenceSet": "licenceset",
    "LicencesReleased": "licencesreleased",
    "UseReported": "usereported",
    "SharesReported": "sharesreported",
    "TimerExpired": "due",
    "ClockSet": "clockset",
    "SurveyReceived": "surveyed",
    "ReservationRequested": "reservationasked",
    "ReservationBound": "reservationbound",
    "ReservationRejected": "reservationdeclined",
    "ReservationReleased": "reservationreleased",
    "ReservationCancelled": "reservationcancelled",
}
