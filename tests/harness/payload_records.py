"""What payloads record of themselves: each run of a task, where, and whether two overlapped."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """A record of a payload: what happened to a run of a task on a cluster."""

    task: str  # JOB_INDEX
    cluster: str
    event: str  # `begun`, `ended`, or `overlaps`: another run of the task had not ended


class PayloadRecords:
    """Records of payloads that run until `let_end`.

    Each run holds a lock of its task, which the kernel frees with the process. So an overlap is
    recorded whatever ended the run before.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self._locks, self._go = folder / "runs", folder / "locks", folder / "go"
        self._locks.mkdir()

    @property
    def payload(self) -> str:
        """Lines of sh: a payload that ends with code 0, at once if it runs on `here`."""
        record = f'>>"{self._file}" echo "$task $METASCHED_CLUSTER'
        return "\n".join(
            (
                "task=${METASCHED_JOB_ID}_${METASCHED_TASK:-0}",
                f'exec 9>>"{self._locks}/$task"',
                f'flock -n 9 || {record} overlaps"',
                f'{record} begun"',
                f'until [ "$METASCHED_CLUSTER" = here ] || [ -e "{self._go}" ]; do',
                "  sleep 0.1 9>&-",
                "done",
                f'{record} ended"',
            )
        )

    def let_end(self) -> None:
        """Let all payloads end, also those that begin later."""
        self._go.touch()

    @property
    def lines(self) -> list[Line]:
        """The records so far, in their order."""
        if not self._file.exists():
            return []
        return [Line(*line.split()) for line in self._file.read_text().splitlines()]

    def runs(self, job: int, index: int = 0) -> list[str]:
        """Return the clusters on which a task has begun; no two of its runs overlapped."""
        lines = [line for line in self.lines if line.task == f"{job}_{index}"]
        assert "overlaps" not in [line.event for line in lines], lines
        return [line.cluster for line in lines if line.event == "begun"]
