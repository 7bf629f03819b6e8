"""Client of the daemon: a method for each call, with typed errors."""

from __future__ import annotations

import os
import time

from metasched.client.changes import unfold
from metasched.client.connection import (
    TIMEOUT,
    BadRequest,
    ClientError,
    Connection,
    DaemonUnreachable,
    ResponseLost,
    percent_encode,
)
from metasched.paths import FOLD, NEXT_CURSOR_HEADER

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from metasched.client.job_answers import (
        ChangedTask,
        Explanation,
        FoldedChange,
        JobDetails,
        JobRow,
        OutputPaths,
        StoryEvent,
        SubmittedJob,
    )
    from metasched.client.site_answers import (
        CalendarRow,
        ClusterRow,
        EventRow,
        FreeWindow,
        HealthRow,
        LicenceRow,
        LicenceServerRow,
        LimitRow,
        NewLink,
        NewTokenRow,
        NotificationRow,
        PolicyRow,
        PolicyVersionRow,
        ReleasedTask,
        ReloadRow,
        Report,
        ReservationRow,
        SeriesRow,
        ShadowRow,
        ShareRow,
        TokenRow,
    )

RETRY_TIME = 30.0  # seconds from the first try for which a submission is repeated
RETRY_INTERVAL = 0.5  # seconds between two tries
PAGE_SIZE = 5000  # rows of a listing that are requested at once
LONG_POLL = 30.0  # seconds after which the daemon answers `wait` though jobs are still open


class Client:
    """Calls of a daemon."""

    def __init__(
        self, path: object, timeout: float = TIMEOUT, retry_time: float = RETRY_TIME
    ) -> None:
        """Call the daemon at `path`, a socket or a URL: see `Connection`.

        `timeout` and `retry_time` are in seconds, the latter for a submission whose response was
        lost.
        """
        self._connection, self._retry_time = Connection(path, timeout), retry_time

    @property
    def path(self) -> str:
        """The socket or URL of the daemon."""
        return self._connection.path

    def submit(
        self, submission: Mapping[str, object], key: str | None = None
    ) -> list[SubmittedJob]:
        """Submit all jobs of a `SubmitRequest`, or none, if a job is invalid.

        Return `job`, `priority`, `cluster` and `warnings` of each. If the response is lost, the
        submission is repeated for `retry_time` seconds; the daemon recognises it by its key. `key`
        is 1 to 128 letters, digits and . _ : - (None: random). A repeated call with the same key
        and submission within a day submits nothing and returns the same rows.
        """
        key = os.urandom(16).hex() if key is None else key
        if not (key.isascii() and key.isprintable()):
            raise BadRequest(f"{key!r} is no idempotency key; give letters and digits")
        header = {"Idempotency-Key": key}
        deadline = time.monotonic() + self._retry_time
        try:
            answer = self._request("POST", "/jobs", body=submission, headers=header)
        except ResponseLost as lost:
            answer = self._submit_again(submission, header, deadline, lost)
        return self._parse_rows(answer, "jobs")

    def _submit_again(
        self,
        submission: Mapping[str, object],
        header: Mapping[str, str],
        deadline: float,
        lost: ResponseLost,
    ) -> Any:
        """Repeat a submission without a response, until `deadline` (monotonic).

        Raise `lost` if the daemon does not answer until then.
        """
        while time.monotonic() < deadline:
            try:
                self.health()
            except (DaemonUnreachable, ResponseLost):
                time.sleep(RETRY_INTERVAL)
                continue
            except ClientError:
                raise lost from None
            try:
                return self._request("POST", "/jobs", body=submission, headers=header)
            except (DaemonUnreachable, ResponseLost):
                time.sleep(RETRY_INTERVAL)
        raise lost

    def jobs(self, jobs: Sequence[str] = (), **filters: str | float | None) -> list[JobRow]:
        """Return the rows of `status` for these jobs, or for all jobs that pass the filters."""
        return self._all_pages("/jobs", {"job": jobs, **filters})

    def job_details(
        self, jobs: Sequence[str] = (), **filters: str | float | None
    ) -> list[JobDetails]:
        """Return rows of `jobs` with what each job asks for and where it runs."""
        return self._all_pages("/jobs/details", {"job": jobs, **filters})

    def lowest_job(self, user: str, state: str) -> int | None:
        """Return the lowest id of a user's jobs with a task in any of the states."""
        page: dict[str, object] = {"user": user, "state": state, "limit": 1}
        while True:
            answer, fields = self._connection.request("GET", "/jobs", page)
            if rows := self._parse_rows(answer):
                return int(rows[0]["job"])
            if (cursor := fields.get(NEXT_CURSOR_HEADER.lower())) is None:
                return None
            page["cursor"] = cursor  # a page of many rows that do not match is empty

    def change(
        self,
        action: str,
        jobs: Sequence[str],
        user: str | None = None,
        state: str | None = None,
        cluster: str | None = None,
        exit_code: int | None = None,
    ) -> list[ChangedTask]:
        """Cancel, hold, release or requeue jobs; `lost` and `ran` resolve unknown jobs.

        `exit_code` is that of jobs that `ran`. Return the state before and after, and a note, for
        each task.
        """
        return unfold(self.change_folded(action, jobs, user, state, cluster, exit_code))

    def change_folded(
        self,
        action: str,
        jobs: Sequence[str],
        user: str | None = None,
        state: str | None = None,
        cluster: str | None = None,
        exit_code: int | None = None,
    ) -> list[FoldedChange]:
        """Call `change`; return a single row for equal tasks of a job."""
        body: dict[str, object] = {"jobs": list(jobs), "user": user, "state": state}
        optional = {"cluster": cluster, "exit_code": exit_code}
        body |= {name: value for name, value in optional.items() if value is not None}
        return self._parse_rows(self._request("POST", f"/jobs/{action}", FOLD, body), "folded")

    def modify(
        self,
        changes: Mapping[str, object],
        jobs: Sequence[str],
        user: str | None = None,
        state: str | None = None,
    ) -> list[ChangedTask]:
        """Change job attributes (`JobChanges`); return the state before and after for each task."""
        return unfold(self.modify_folded(changes, jobs, user, state))

    def modify_folded(
        self,
        changes: Mapping[str, object],
        jobs: Sequence[str],
        user: str | None = None,
        state: str | None = None,
    ) -> list[FoldedChange]:
        """Call `modify`; return a single row for equal tasks of a job."""
        body = {
            "choice": {"jobs": list(jobs), "user": user, "state": state},
            "changes": dict(changes),
        }
        return self._parse_rows(self._request("POST", "/jobs/modify", FOLD, body), "folded")

    def wait(self, jobs: Sequence[str], timeout: float = LONG_POLL) -> list[JobRow]:
        """Return the rows of the jobs when all have ended, or after `timeout` seconds."""
        return self._parse_rows(
            self._request("GET", "/jobs/wait", {"job": jobs, "timeout": timeout})
        )

    def story(self, job: str) -> list[StoryEvent]:
        """Return the events of a job, oldest first."""
        return self._all_pages(f"/jobs/{percent_encode(job)}/story", {}, "events")

    def explain(self, job: str) -> Explanation:
        """Return the state of a job with its reason, priority and eligible clusters."""
        return self._parse_object(self._request("GET", f"/jobs/{percent_encode(job)}/explain"))

    def output(self, job: str) -> OutputPaths:
        """Return the paths of a job's `output` and `error` (None: the same file)."""
        return self._parse_object(self._request("GET", f"/jobs/{percent_encode(job)}/output"))

    def clusters(self) -> list[ClusterRow]:
        return self._all_pages("/clusters", {})

    def licence_servers(self) -> list[LicenceServerRow]:
        return self._parse_rows(self._request("GET", "/licences/servers"))

    def drain(self, cluster: str, reason: str = "", keep_pending: bool = False) -> ClusterRow:
        """Stop dispatching to a cluster. Return its new row of `clusters`."""
        body = {"reason": reason, "keep_pending": keep_pending}
        path = f"/clusters/{percent_encode(cluster)}/drain"
        return self._parse_object(self._request("POST", path, body=body))

    def resume(self, cluster: str) -> ClusterRow:
        """Dispatch to a cluster again. Return its new row of `clusters`."""
        return self._parse_object(
            self._request("POST", f"/clusters/{percent_encode(cluster)}/resume")
        )

    def licences(self) -> list[LicenceRow]:
        return self._all_pages("/licences", {})

    def limits(self, user: str | None = None) -> list[LimitRow]:
        """Return the limits of a user's tasks (None: all that the caller may see) and their use."""
        return self._all_pages("/limits", {} if user is None else {"user": user})

    def shares(self, user: str | None = None) -> list[ShareRow]:
        """Return where a user stands in the tree of shares; None: all that the caller may see.

        Accounts come first, then users by place.
        """
        rows = self._all_pages("/shares", {} if user is None else {"user": user})
        return sorted(rows, key=lambda row: row["place"] or 0)

    def set_licence(self, name: str, total: int | None) -> LicenceRow:
        """Set the total of a licence (None: as configured). Return its new row of `licences`."""
        path = f"/licences/{percent_encode(name)}/total"
        return self._parse_object(self._request("POST", path, body={"total": total}))

    def release_licences(self, jobs: Sequence[str]) -> list[ReleasedTask]:
        """Release the leases of unknown jobs. Return the tokens released by each task."""
        return self._parse_rows(
            self._request("POST", "/licences/release", body={"jobs": list(jobs)}), "jobs"
        )

    def reserve(self, request: Mapping[str, object]) -> ReservationRow:
        """Make a reservation (`ReservationTerms`). Return its row. BadRequest for a dry run."""
        if request.get("dry_run"):
            raise BadRequest("a dry run, which reserves nothing; call free_windows")
        return self._parse_object(self._request("POST", "/reservations", body=dict(request)))

    def free_windows(self, request: Mapping[str, object]) -> list[FreeWindow]:
        """Return windows for a reservation (`ReservationTerms`)."""
        body = {**request, "dry_run": True}
        return self._parse_rows(self._request("POST", "/reservations", body=body), "offers")

    def reservations(self, include_closed: bool = False) -> list[ReservationRow]:
        """Return the reservations that are open or closed in the last hour, or all, by start."""
        rows = self._all_pages("/reservations", {"all": include_closed})
        return sorted(rows, key=lambda row: (row["start"], row["reservation"]))

    def cancel_reservation(self, reservation_id: int) -> ReservationRow:
        return self._parse_object(self._request("POST", f"/reservations/{reservation_id}/cancel"))

    def make_series(self, request: Mapping[str, object]) -> SeriesRow:
        """Make a series of reservations (`SeriesTerms`). Return its row of `calendar`."""
        return self._parse_object(self._request("POST", "/series", body=dict(request)))

    def cancel_series(self, series_id: int) -> CalendarRow:
        return self._parse_object(self._request("POST", f"/series/{series_id}/cancel"))

    def calendar(self, runs: int = 1) -> list[CalendarRow]:
        """Return the entries of the calendar by id, each with its next `runs` times."""
        return self._all_pages("/calendar", {"runs": runs})

    def create_token(self, lifetime: float, *, for_metrics: bool = False) -> NewTokenRow:
        """Create a token for the caller, valid for `lifetime` seconds: `id`, `token`, `expires`.

        `for_metrics`: a token that reads metrics, and nothing else.
        """
        body: dict[str, Any] = {"seconds": lifetime}
        if for_metrics:
            body["scope"] = "metrics"
        return self._parse_object(self._request("POST", "/tokens", body=body))

    def create_link(self) -> NewLink:
        """Make a link that signs a browser in once: `url` and `expires`."""
        return self._parse_object(self._request("POST", "/tokens/link"))

    def tokens(self) -> list[TokenRow]:
        return self._all_pages("/tokens", {})

    def revoke_token(self, token_id: int) -> None:
        self._request("POST", f"/tokens/{token_id}/revoke")

    def events(
        self, cursor: str | None = None, limit: int = PAGE_SIZE, **filters: object
    ) -> tuple[list[EventRow], str]:
        """Return audit records after a cursor, at most `limit`, and the cursor after them.

        `filters`: see GET /events. With `wait` (seconds) the daemon waits for a record.
        """
        query = {"cursor": cursor, "limit": limit, **filters}
        answer, fields = self._connection.request("GET", "/events", query)
        return self._parse_rows(answer), fields.get(NEXT_CURSOR_HEADER.lower(), cursor or "0")

    def report(self, kind: str, by: Sequence[str], **query: str | None) -> Report:
        """Return a report of ended jobs, or of leases: `rows`, their `total`, and the period.

        `kind` is use, waits, deadlines or licences. `query`: see GET /reports/{kind}.
        """
        path = f"/reports/{percent_encode(kind)}"
        return self._parse_object(self._request("GET", path, {"by": by, **query}))

    def notifications(self, *, delivered: bool = False) -> list[NotificationRow]:
        """Return mails and groups of events that are not delivered, or all, by id."""
        return self._all_pages("/notifications", {"delivered": delivered} if delivered else {})

    def reload(self) -> ReloadRow:
        """Let the daemon read its configuration again: `changes`, `restart_needed`, `findings`."""
        return self._parse_object(self._request("POST", "/reload"))

    def policy(self) -> PolicyRow:
        """Return the policy in force: its version and `values`."""
        return self._parse_object(self._request("GET", "/policy"))

    def policy_versions(self) -> list[PolicyVersionRow]:
        """Return the versions of the policy, the newest first, without their texts."""
        return self._parse_rows(self._request("GET", "/policy/versions"))

    def policy_version(self, number: int) -> PolicyVersionRow:
        """Return a version of the policy with its `text`."""
        return self._parse_object(self._request("GET", f"/policy/versions/{number}"))

    def activate_policy(
        self, text: str, file: str, reason: str = "", expected: int | None = None
    ) -> PolicyVersionRow:
        """Put the policy of a text in force; refused unless version `expected` is in force."""
        body = {"text": text, "file": file, "reason": reason, "expected": expected}
        return self._parse_object(self._request("POST", "/policy/activate", body=body))

    def undo_policy(self, reason: str = "", expected: int | None = None) -> PolicyVersionRow:
        """Put the policy before the present policy in force; refused as `activate_policy`."""
        body = {"reason": reason, "expected": expected}
        return self._parse_object(self._request("POST", "/policy/undo", body=body))

    def shadow(self) -> ShadowRow:
        """Return the candidate policy beside the policy in force, and its comparison."""
        return self._parse_object(self._request("GET", "/policy/shadow"))

    def start_shadow(self, text: str, file: str, reason: str = "") -> ShadowRow:
        """Run the policy of a text beside the policy in force; refused while another runs."""
        body = {"text": text, "file": file, "reason": reason}
        return self._parse_object(self._request("POST", "/policy/shadow", body=body))

    def stop_shadow(self) -> ShadowRow:
        """End the candidate policy; its comparison stays."""
        return self._parse_object(self._request("DELETE", "/policy/shadow"))

    def health(self) -> HealthRow:
        return self._parse_object(self._request("GET", "/health"))

    def _all_pages(self, path: str, query: Mapping[str, object], key: str | None = None) -> Any:
        """Return the rows of all pages of a listing, in the order of the pages.

        `key`: of the rows in an answer; None: the answer is the list of rows.
        """
        rows: list[Any] = []
        page = {**query, "limit": PAGE_SIZE}
        while True:
            answer, fields = self._connection.request("GET", path, page)
            rows += self._parse_rows(answer, key)
            if (cursor := fields.get(NEXT_CURSOR_HEADER.lower())) is None:
                return rows
            page["cursor"] = cursor

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request; return the JSON of its response."""
        return self._connection.request(method, path, query, body, headers)[0]

    def _parse_rows(self, answer: Any, key: str | None = None) -> Any:
        rows = answer.get(key) if key is not None and isinstance(answer, dict) else answer
        if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
            raise ResponseLost(
                f"unexpected response, socket {self.path}; check that it is metasched's"
            )
        return rows

    def _parse_object(self, answer: Any) -> Any:
        if not isinstance(answer, dict):
            raise ResponseLost(
                f"unexpected response, socket {self.path}; check that it is metasched's"
            )
        return answer
