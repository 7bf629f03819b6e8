"""An adapter in its own worker process, hosted as by the daemon, with the interface of `Adapter`.

For managers that can be reached only from another network namespace or interpreter, or whose
library must not be loaded into the tests.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from metasched.adapters.base import Adapter, Capabilities, Submission, Withdrawal
from metasched.adapters.protocol import (
    FIRST_CURSOR,
    WORKER_PROTOCOL,
    WorkerBoot,
    WorkerCall,
    WorkerReply,
)
from metasched.model.adapter_errors import PartlySubmitted, Refused, Unreachable
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.fair_share import ShareTree
from metasched.model.foreign_use import UseAnswer, UseQuery
from metasched.model.job_usage import EndedRun, RunUsage
from metasched.model.listing import AccountingAnswer, JobStatus, Listing, MissingTask
from metasched.model.survey import ReservationSpec, Survey
from metasched.processes.frames import read_frames, write_frame
from tests.harness.reaper import dying_with

# Commands of sh that read a call and answer it. The length of a reply is in four bytes before it.
ANSWER_A_CALL = (
    "call=$(dd bs=65536 count=1 2>/dev/null | tr -d '\\000'); "
    'number=${call##*\\"number\\":}; '
    f'reply="{{\\"number\\":${{number%%[!0-9]*}},\\"protocol\\":{WORKER_PROTOCOL}}}"; '
    r'printf "\\000\\000\\000\\$(printf %03o ${#reply})%s" "$reply"'
)


class WorkerAdapter(Adapter):
    """The adapter registered as `cluster.adapter`, run by the command `interpreter`."""

    def __init__(
        self,
        cluster: Cluster,
        options: Any,
        instance: str,
        folder: Path,
        capabilities: Capabilities,
        interpreter: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(cluster, options, instance, folder)
        self.capabilities = capabilities  # type: ignore[misc]
        self._command = [*interpreter, "-m", "metasched.adapters.worker"]
        self._environment = os.environ | environment
        self._worker: subprocess.Popen[bytes] | None = None
        self._rows: dict[tuple[str, int, str], JobStatus] = {}
        self._info: ClusterInfo | None = None

    def submit(self, submission: Submission) -> dict[int, str]:
        return self._call(WorkerCall("submit", submission=submission)).native_ids

    def withdraw(self, withdrawal: Withdrawal) -> None:
        self.withdraw_all([withdrawal])

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        self._call(WorkerCall("withdraw", withdrawals=tuple(withdrawals)))

    def poll(self) -> Listing:
        delta = self._call(WorkerCall("poll", cursor=FIRST_CURSOR)).delta
        assert delta is not None
        if delta.full:
            self._rows.clear()
        for key in delta.vanished:
            del self._rows[key]
        self._rows |= {(row.tag, row.task, row.owner): row for row in delta.rows}
        for tag, task, owner, start in delta.expected_starts:
            if (row := self._rows.get((tag, task, owner))) is not None:
                self._rows[tag, task, owner] = structs.replace(row, expected=start)
        self._info = delta.info or self._info
        assert self._info is not None
        return Listing(
            taken=delta.taken,
            since=delta.since,
            until=delta.until,
            rows=tuple(self._rows.values()),
            info=self._info,
            up_since=delta.up_since,
        )

    def query_accounting(self, missing: Sequence[MissingTask]) -> AccountingAnswer:
        answer = self._call(WorkerCall("accounting", missing=tuple(missing))).accounting
        assert answer is not None
        return answer

    def query_foreign_use(self, query: UseQuery) -> UseAnswer:
        answer = self._call(WorkerCall("use", use_query=query)).use
        assert answer is not None
        return answer

    def query_usage(self, ended: Sequence[EndedRun]) -> Mapping[int, RunUsage]:
        return self._call(WorkerCall("usage", ended=tuple(ended))).usage

    def read_shares(self) -> ShareTree:
        answer = self._call(WorkerCall("shares")).shares
        assert answer is not None
        return answer

    def survey(self) -> Survey:
        answer = self._call(WorkerCall("survey")).survey
        assert answer is not None
        return answer

    def reserve(self, spec: ReservationSpec) -> None:
        self._call(WorkerCall("reserve", reservation=spec))

    def delete_reservation(self, name: str) -> None:
        self._call(WorkerCall("unreserve", reservation_name=name))

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.communicate(timeout=20)

    @property
    def pid(self) -> int | None:
        """The process id of the worker, None if no worker runs."""
        return None if self._worker is None else self._worker.pid

    def _call(self, call: WorkerCall) -> WorkerReply:
        worker = self._worker or self._start()
        assert worker.stdin is not None
        assert worker.stdout is not None
        write_frame(worker.stdin, msgspec.json.encode(call))
        answer = msgspec.json.decode(next(read_frames(worker.stdout)), type=WorkerReply)
        if answer.error == "refused":
            raise Refused(answer.reason, retryable=answer.retry_later)
        if answer.error == "unreachable":
            raise Unreachable(answer.reason)
        if answer.error == "partial":
            raise PartlySubmitted(answer.reason, answer.native_ids, answer.untried)
        assert answer.error == "", answer.reason
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        self._worker = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=dying_with(os.getpid()),
        )
        self._rows, self._info = {}, None
        boot = WorkerBoot(
            self.cluster.adapter,
            self.cluster,
            asdict(self.options),
            self.instance,
            str(self.folder),
            protocol=WORKER_PROTOCOL,
            former_instances=tuple(self.instances - {self.instance}),
        )
        assert self._worker.stdin is not None
        write_frame(self._worker.stdin, msgspec.json.encode(boot))
        return self._worker
