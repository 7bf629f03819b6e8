"""Standard Workload Format: all fields are read and written; invalid files are refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from metasched.laboratory.simulate import swf
from metasched.laboratory.simulate.swf import SwfRecord, WorkloadError
from metasched.laboratory.simulate.workload import Overlay, from_trace, merge_workloads, to_trace
from metasched.model.job import Job

LINES = [
    "; Version: 2.2",
    "; MaxProcs: 64",
    ";",
    "; Partition: 1 small",
    "; Partition: 2 large",
    "7 10 5 100 4 99.5 1024 8 200 2048 1 3 4 5 6 1 -1 -1",
    "8 10 -1 50 4 -1 -1 -1 -1 -1 0 -1 -1 -1 -1 2 7 30",
    "",
    "9 12 -1 -1 4 -1 -1 -1 60 -1 5 -1 -1 -1 -1 -1 -1 -1",
    "10 13 -1 60 0 -1 -1 -1 60 -1 5 -1 -1 -1 -1 -1 -1 -1",
]


def written(folder: Path, *lines: str) -> Path:
    path = folder / "t.swf"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_every_field_is_read(tmp_path: Path) -> None:
    trace = swf.read_trace(written(tmp_path, *LINES))
    assert trace.processors == 64
    assert trace.header["Partition"] == ["1 small", "2 large"]
    assert trace.records[0] == SwfRecord(
        7, 10, 5, 100, 4, 99.5, 1024, 8, 200, 2048, 1, 3, 4, 5, 6, 1, -1, -1
    )
    assert (trace.records[0].cpus, trace.records[0].estimated) == (8, 200)
    assert (trace.records[1].cpus, trace.records[1].estimated) == (4, 50)


def test_what_is_read_is_written(tmp_path: Path) -> None:
    trace = swf.read_trace(written(tmp_path, *LINES))
    for name in ("again.swf", "again.swf.gz"):
        swf.write_trace(tmp_path / name, trace.records, trace.header)
        assert swf.read_trace(tmp_path / name) == trace
    assert (tmp_path / "again.swf.gz").read_bytes()[:2] == swf.GZIP_MAGIC


def test_jobs_that_cannot_be_run_are_dropped_and_counted(tmp_path: Path) -> None:
    workload = from_trace("t", swf.read_trace(written(tmp_path, *LINES)), partitions=True)
    assert [(r.number, r.job.id, r.home) for r in workload.entries] == [(7, 1, "1"), (8, 2, "2")]
    assert [(e.job.estimated, e.job.time_limit) for e in workload.entries] == [
        (200, 200),
        (50, None),
    ]
    assert workload.dropped == {"negative run time": 1, "no processors": 1}
    again = from_trace("t", to_trace(workload), partitions=True)
    assert again.entries == workload.entries


def test_a_job_that_ended_at_once_gets_no_limit_by_being_written(tmp_path: Path) -> None:
    trace = swf.read_trace(written(tmp_path, *LINES))
    ended_at_once = trace.records[1]._replace(run_time=0.0, requested_time=-1.0)
    workload = from_trace("t", trace._replace(records=[ended_at_once]))
    again = from_trace("t", to_trace(workload))
    assert [entry.job.time_limit for entry in (*workload.entries, *again.entries)] == [None, None]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no job"),
        (["; Version: 2"], "no job"),
        (["1 2 3"], "3 fields instead of 18, {path} line 1"),
        ([LINES[5], "8 9" + " -1" * 16], "was submitted before the job above it, {path} line 2"),
        (["1 -5" + " -1" * 16], "a submission before the origin, {path} line 1"),
        (["1 nan" + " -1" * 16], "not a finite number, {path} line 1"),
        (["1 x" + " -1" * 16], "not a number, {path} line 1"),
        (["\0" * 40 + " 1" * 20], "not a number, {path} line 1"),
    ],
)
def test_a_broken_trace_is_reported_with_its_line(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(WorkloadError) as error:
        swf.read_trace(path)
    assert message.format(path=path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_gzip_is_reported_with_its_line(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join([LINES[5]] * 5000).encode())
    cut, bad = tmp_path / "cut.swf.gz", tmp_path / "bad.swf.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    bad.write_bytes(whole[:30] + b"\xff" * 20 + whole[50:])
    for path in (cut, bad):
        with pytest.raises(WorkloadError, match="damaged or truncated"):
            swf.read_trace(path)
    with pytest.raises(WorkloadError, match="No such file"):
        swf.read_trace(tmp_path / "none.swf")


def test_rules_laid_over_a_trace_are_seeded(tmp_path: Path) -> None:
    lines = [f"{n} {n * 10} -1 50 4 -1 -1 4 60 -1 1 {n % 7}" + " -1" * 6 for n in range(200)]
    workload = from_trace("t", swf.read_trace(written(tmp_path, *lines)))
    overlay = Overlay(deadlines=0.5, gold=0.2, silver=0.3, licences=3, needs=0.4, pace=2.0)
    laid = overlay.apply(workload, 1)
    assert laid == overlay.apply(workload, 1) != overlay.apply(workload, 2)
    assert [r.job.submitted for r in laid.entries] == [20.0 * n for n in range(200)]
    bound = [r.job for r in laid.entries if r.job.deadline is not None]
    assert 70 < len(bound) < 130
    assert all(30 <= (job.margin or 0) <= 480 for job in bound)
    classes = {(r.job.user, r.job.user_class) for r in laid.entries}
    assert len(classes) == 7, "a user is in one class"
    with_licence = sum(len(r.job.licences) for r in laid.entries)
    assert 180 < with_licence < 300
    # a subset of the workload draws the same deadlines
    part = overlay.apply(workload.subset(100, None), 1)
    assert [r.job.deadline is None for r in part.entries] == [
        r.job.deadline is None for r in laid.entries[100:]
    ]


@pytest.mark.parametrize(
    "wrong", [{"deadlines": 1.1}, {"gold": 0.6, "silver": 0.6}, {"pace": 0}, {"margin": (2, 1)}]
)
def test_rules_make_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|lower one"):
        Overlay(**wrong)  # type: ignore[arg-type]


def test_traces_make_a_federation(tmp_path: Path) -> None:
    workload = from_trace("a", swf.read_trace(written(tmp_path, *LINES[:7])))
    both = merge_workloads("both", [workload, workload.subset(1, None)])
    assert [(r.job.id, r.job.submitted, r.home) for r in both.entries] == [
        (1, 0.0, "a"),
        (2, 0.0, "a"),
        (3, 0.0, "a"),
    ]


def test_a_job_with_a_value_out_of_range_is_refused_however_it_is_made() -> None:
    job = Job(id=3, submitted=5.0, estimated=60.0, cpus=4, user="ada")
    message = r"cpus is 0; it must be 1 or more"
    with pytest.raises(ValueError, match=message):
        Job(id=3, submitted=5.0, estimated=60.0, cpus=0, user="ada")
    with pytest.raises(ValueError, match=message):
        structs.replace(job, cpus=0)
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(msgspec.to_builtins(job) | {"cpus": 0}, Job)
