"""The Standard Workload Format: reading and writing traces, plain or gzipped.

Chapin et al. 1999, "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers";
version 2.2. Eighteen numbers a line, -1 for unknown; lines starting with `;` are the header.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import gt
from pathlib import Path
from typing import IO, NamedTuple

from metasched.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"
LINES_PER_BATCH = 1000


class WorkloadError(UserError):
    """A workload that cannot be read; the message names the file and the line."""


class SwfRecord(NamedTuple):
    """One job of a trace, as written; -1 where unknown. Times are seconds, memory kilobytes."""

    number: int
    submitted: float  # from the origin of the trace
    wait_time: float
    run_time: float
    allocated: float  # processors
    cpu_time: float  # per processor
    memory: float  # per processor
    requested_cpus: float
    requested_time: float
    requested_memory: float  # per processor
    status: float  # 0 failed, 1 completed, 5 cancelled
    user: float
    group: float
    application: float
    queue: float
    partition: float
    preceding_job: float
    think_time: float  # after the preceding job

    @property
    def cpus(self) -> int:
        """Requested processors, else allocated; not positive if the trace records neither."""
        return int(self.requested_cpus if self.requested_cpus > 0 else self.allocated)

    @property
    def estimated(self) -> float:
        """Requested seconds, else the run time."""
        return self.requested_time if self.requested_time > 0 else self.run_time


FIELD_COUNT = len(SwfRecord._fields)


class SwfTrace(NamedTuple):
    """A trace."""

    header: dict[str, list[str]]  # label to values, in order
    records: list[SwfRecord]

    @property
    def processors(self) -> int | None:
        """`MaxProcs` of the header, if present."""
        for text in self.header.get("MaxProcs", []):
            first = text.split()[0] if text.split() else ""
            if first.isdecimal() and int(first) > 0:
                return int(first)
        return None


def read_trace(path: Path) -> SwfTrace:
    """Read a trace. WorkloadError, with the line, if it is not valid SWF sorted by submission."""
    header: dict[str, list[str]] = {}
    records: list[SwfRecord] = []
    for number, lines in _read_batches(path):
        last_submission = records[-1].submitted if records else 0.0
        records += _parse_job_lines(lines, last_submission) or _parse_mixed_lines(
            lines, last_submission, header, path, number
        )
    if not records:
        raise WorkloadError(f"no job, {path}; give a trace in the Standard Workload Format")
    return SwfTrace(header, records)


def _read_batches(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of a file in batches, each with the number of its first line."""
    number = 1
    lines: list[str] = []
    try:
        with open(path, "rb") as file:
            gzipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        stream: IO[str]
        with (gzip.open if gzipped else open)(path, "rt", encoding="latin-1") as stream:
            while True:
                lines.extend(islice(stream, LINES_PER_BATCH))
                if not lines:
                    return
                yield number, lines
                number, lines = number + len(lines), []
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise WorkloadError(
            f"damaged or truncated ({error}), {path} after line {number - 1 + len(lines)}; "
            "fetch the trace again"
        ) from None
    except OSError as error:
        raise WorkloadError(f"{error.strerror or error}, {path}; name a readable trace") from None


def _parse_job_lines(lines: list[str], last_submission: float) -> list[SwfRecord] | None:
    """Return the records of lines that are all jobs, in order after `last_submission`; else None.

    Converting and checking the numbers of a batch together takes a third of the time.
    """
    rows = [line.split() for line in lines]
    if {len(row) for row in rows} != {FIELD_COUNT}:
        return None
    try:
        values = [*map(float, chain.from_iterable(rows))]
    except ValueError:
        return None
    columns: list[list[float]] = [values[field::FIELD_COUNT] for field in range(FIELD_COUNT)]
    times = columns[1]
    if not math.isfinite(sum(values)) or any(map(gt, [last_submission, *times], times)):
        return None
    return [*map(SwfRecord._make, zip(map(int, columns[0]), *columns[1:], strict=True))]


def _parse_mixed_lines(
    lines: list[str], last_submission: float, header: dict[str, list[str]], path: Path, first: int
) -> list[SwfRecord]:
    """Return the records of any lines and extend the header. WorkloadError as `read_trace`."""
    records: list[SwfRecord] = []
    for number, line in enumerate(lines, first):
        if line.startswith(";"):
            label, colon, text = line[1:].partition(":")
            if colon:
                header.setdefault(label.strip(), []).append(text.strip())
            continue
        if not line or line.isspace():
            continue
        record = _parse_job_line(line, path, number)
        if record.submitted < last_submission:
            raise WorkloadError(
                f"job {record.number} was submitted before the job above it, {path} line {number}; "
                "sort the jobs by their submission"
            )
        last_submission = record.submitted
        records.append(record)
    return records


def _parse_job_line(line: str, path: Path, number: int) -> SwfRecord:
    texts = line.split()
    if len(texts) < FIELD_COUNT:
        raise WorkloadError(
            f"{len(texts)} fields instead of {FIELD_COUNT}, {path} line {number}; "
            "the file is not an SWF trace, or is truncated"
        )
    try:
        values = [float(text) for text in texts[:FIELD_COUNT]]
    except ValueError:
        raise WorkloadError(
            f"a field is not a number, {path} line {number}; the file is not an SWF trace"
        ) from None
    if not math.isfinite(sum(values)):
        raise WorkloadError(f"a field is not a finite number, {path} line {number}; correct it")
    if values[1] < 0:
        raise WorkloadError(f"a submission before the origin, {path} line {number}; correct it")
    return SwfRecord(int(values[0]), *values[1:])


def write_trace(path: Path, records: Iterable[SwfRecord], header: dict[str, list[str]]) -> None:
    """Write a trace; gzipped if the name ends in .gz."""
    stream: IO[str]
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="latin-1") as stream:
        for label, texts in header.items():
            for text in texts:
                stream.write(f"; {label}: {text}\n")
        for record in records:
            stream.write(" ".join(f"{value:.15g}" for value in record) + "\n")
