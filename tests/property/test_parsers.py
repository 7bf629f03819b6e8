"""Any output of a manager: no undeclared error, and good rows amid garbage are still returned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.adapters.base import Adapter
from metasched.adapters.claims import new_claim_folder, read_end
from metasched.adapters.gridengine import listing as cell
from metasched.adapters.gridengine import reservation_listing as cell_reservations
from metasched.adapters.gridengine.accounting import AccountingFile
from metasched.adapters.gridengine.cluster_info import CellDemand
from metasched.adapters.gridengine.cluster_info import cluster_info as cell_info
from metasched.adapters.protocol import WorkerReply
from metasched.adapters.slurm import (
    accounting_records,
    associations,
    cluster_info,
    reservation_listing,
    statuses,
)
from metasched.adapters.slurm import listing as slurm
from metasched.adapters.slurm.records import split_records
from metasched.adapters.worker import AdapterHost, encode_reply
from metasched.model import host_lists
from metasched.model.cluster import ClusterInfo
from metasched.model.job import State
from metasched.model.listing import JobStatus, Listing, TaskClaim
from tests.harness.examples import examples
from tests.unit.gridengine_answers import QPING, QSTAT, line
from tests.unit.test_associations import LISTED
from tests.unit.test_slurm_windows import SHOWN

RECORDED = [
    json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[1] / "recorded").glob("slurm-*.json"))
]
CELL: dict[str, list[str]] = json.loads(  # answers of Grid Engine 8.1.9
    (Path(__file__).parents[1] / "recorded" / "gridengine" / "8.1.9.json").read_text()
)
NOW = 1_795_255_950.0
INSTANCE = "recorded"
CELL_INSTANCES = frozenset({"k3f9"})
numbers = st.one_of(
    st.integers(-3, 10).map(str),
    st.sampled_from(["9" * 17, "9" * 30, "9" * 5000, "nan", "inf", "1e999", "-", "N/A", "", "²"]),
)
pieces = st.one_of(
    numbers,
    st.sampled_from(["~", "~\n", "\n", ":", ",", "[", "]", "<", "&", "/a"]),
    st.sampled_from(["[1-9:0]", "[0-99999999]", "[1-9999][1-9999]"]),
    st.text(max_size=4),
)


@st.composite
def mutated(draw: st.DrawFn, *texts: str) -> str:
    """Draw a recorded answer with pieces replaced or inserted, perhaps truncated."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(pieces) + text[at + draw(st.integers(0, 8)) :]
    return text[: draw(st.sampled_from([len(text), len(text), len(text) // 2]))]


def recorded(name: str) -> list[str]:
    return ["\n".join(answer[name]) + "\n" for answer in RECORDED]


def recorded_cell(name: str) -> list[str]:
    return ["\n".join(CELL[name]) + "\n"]


def parsed(parse: Callable[[str], Any], text: str) -> Any:
    """Return the parsed value, or None after an error that queries of a manager catch."""
    try:
        return parse(text)
    except (ValueError, KeyError, OverflowError):
        return None


RESERVATION = (
    "ReservationName=ms-recorded-r1 StartTime=1795255943 EndTime=1795256943 Duration=00:16:40"
    " Nodes=a[1-2] NodeCnt=2 CoreCnt=32 Features=(null) Flags=SPEC_NODES TRES=cpu=32 Users=root\n"
    "  NodeName=a1 CoreIDs=0-15\n"
)
SACCT = (
    "7_3~1001~CANCELLED by 0~0:15~1795255943~1795255944~1795255950~a1~ms-recorded-7-1~~wrap~sbatch "
    "--comment=ms-recorded-7-1 job.sh~\n"
)
COMPLEXES = cell.parse_complexes(recorded_cell("complexes")[0])
LICENCES = "LicenseName=solver Total=8 Used=3 Free=5 Reserved=0 Remote=no\n"
PARSERS: list[tuple[Callable[[str], Any], list[str]]] = [
    (lambda text: slurm.parse_queue(text, "~"), recorded("queue")),
    (lambda text: slurm.parse_nodes(text, "~"), recorded("nodes")),
    (slurm.parse_controller, recorded("config")),
    (slurm.parse_licences, [LICENCES]),
    (slurm.parse_release, ["slurm-wlm 24.11.5\n"]),
    (slurm.parse_gres, ["gpu:a100:2(S:0-1),shard:8"]),
    (host_lists.expand_hosts, ["n1,rack[1-2,07]x[1-2]"]),
    (reservation_listing.parse_reservations, [RESERVATION, SHOWN]),
    (associations.parse_associations, [LISTED]),
    (lambda text: reservation_listing.parse_cores(text, "~"), ["a1~2/14/0/16~1~16~\n"]),
    (lambda text: reservation_listing.parse_reserved_jobs(text, "~"), ["7_3~PENDING~r~\n"]),
    (lambda text: accounting_records.parse_sacct(text, "~", "comment"), [SACCT]),
    (lambda text: accounting_records.parse_completion(text, "name"), recorded("completions")),
    (accounting_records.parse_unsent_messages, ["DBD Agent queue size: 0\n"]),
    (accounting_records.parse_purge_age, ["PurgeJobAfter = 12months\n"]),
    (cell.parse_jobs, [QSTAT]),
    (cell.parse_accounting_line, [line("0", 3)]),
    (lambda text: cell.parse_job_name(text, CELL_INSTANCES), ["ms-k3f9-42-1.7"]),
    (cell.parse_jobs, recorded_cell("qstat")),
    (cell.parse_hosts, recorded_cell("qhost")),
    (lambda xml: cell.parse_global_licences(xml, {"matlab": 3.0}), recorded_cell("qhost")),
    (lambda text: cell.parse_host_totals(text, COMPLEXES), recorded_cell("qhost totals")),
    (cell.parse_queue_limits, recorded_cell("queues")),
    (cell.parse_complexes, recorded_cell("complexes")),
    (cell.parse_accounting_delay, recorded_cell("configuration")),
    (cell.parse_duration_offset, recorded_cell("scheduler")),
    (cell.parse_qmaster_times, [QPING]),
    (cell_reservations.parse_reservations, recorded_cell("reservation")),
    (cell_reservations.parse_reservation_ids, recorded_cell("reservation ids")),
    (
        cell_reservations.parse_reserved_jobs,
        [recorded_cell("job")[0].replace("<JB_ar>0<", "<JB_ar>1<")],
    ),
]


@pytest.mark.parametrize("number", range(len(PARSERS)))
def test_a_recorded_answer_is_read(number: int) -> None:
    parse, answers = PARSERS[number]
    for answer in answers:
        assert parse(answer) not in (None, [], {}, ())


@pytest.mark.parametrize("number", range(len(PARSERS)))
@examples(40)
@given(data=st.data())
def test_any_answer_is_read_or_refused(number: int, data: st.DataObject) -> None:
    parse, answers = PARSERS[number]
    parsed(parse, data.draw(st.one_of(mutated(*answers), st.text())))


@examples(100)
@given(mutated(*recorded("queue")), mutated(*recorded("nodes")))
def test_any_readable_line_of_slurm_can_be_used(queue: str, nodes: str) -> None:
    listed = parsed(lambda text: slurm.parse_queue(text, "~"), queue)
    node_lines = parsed(lambda text: slurm.parse_nodes(text, "~"), nodes) or []
    if listed is None:
        return
    for user in (0, None):
        rows, _, set_aside = statuses.job_statuses(listed, frozenset({INSTANCE}), user)
        assert not listed.unreadable or "" in {row.tag for row in set_aside}
        encode_rows(rows)
    lines = [job for job in listed.lines if statuses.is_readable(job)]
    info = cluster_info.build_cluster_info(lines, node_lines, NOW, set())
    assert encode_rows([], info)
    usable = {name: cpus for name, (_, cpus) in cluster_info.usable_cpus(node_lines).items()}
    coming = RESERVATION.replace("StartTime=1795255943", "StartTime=1795256000")
    reservations = reservation_listing.parse_reservations(coming)
    reservation_listing.upcoming_windows(usable, {}, lines, reservations, NOW)
    reservation_listing.nodes_outside_reservations(node_lines, {}, lines, reservations, {}, NOW)


def encode_rows(rows: list[JobStatus], info: ClusterInfo | None = None) -> bytes:
    """Encode a listing as a worker does; the daemon must be able to decode it."""
    host = AdapterHost.__new__(AdapterHost)
    AdapterHost.__init__(host, cast(Adapter, SimpleNamespace(settle=0.0)))
    delta = host._delta(Listing(NOW, NOW, NOW, tuple(rows), info or ClusterInfo(1, 0, ())))
    encoded = encode_reply(WorkerReply(delta=delta))
    assert not msgspec.json.decode(encoded, type=WorkerReply).error
    return encoded


no_delimiter = st.text(st.characters(exclude_characters="~\r\n"), max_size=30)
# messages of a wrapper, and records with too few fields
garbage = st.one_of(
    st.text(st.characters(exclude_characters="~\r"), max_size=30).filter(str.strip),
    st.lists(no_delimiter, min_size=1, max_size=4).map(lambda fields: "~".join([*fields, ""])),
)


@examples(60)
@given(st.sampled_from(recorded("queue")), st.lists(st.tuples(st.integers(0, 20), garbage)))
def test_good_rows_amid_garbage_lines_are_returned(
    queue: str, inserted: list[tuple[int, str]]
) -> None:
    whole = slurm.parse_queue(queue, "~")
    lines = queue.splitlines(keepends=True)
    for position, text in inserted:
        lines.insert(min(position, len(lines)), text + "\n")
    listed = slurm.parse_queue("".join(lines), "~")
    assert [job for job in listed.lines if job in whole.lines] == whole.lines
    # short records in a row may have as many fields as one line
    invented = len(listed.lines) - len(whole.lines)
    assert bool(listed.unreadable or invented) == bool(inserted)


@examples(60)
@given(st.lists(st.text(max_size=8), min_size=2, max_size=2), st.integers(0, 40))
def test_a_truncated_text_is_not_taken_for_a_whole_one(fields: list[str], end: int) -> None:
    """A cut between two records shows only in the exit code of the command."""
    record = "".join(f"{field.replace('~', '')}~" for field in ("7", *fields)) + "\n"
    cut = (record * 2)[:end]
    answer = parsed(lambda text: split_records(text, "~", 3), cut)
    assert answer is None or answer.unreadable or cut in ("", record, record * 2)


@examples(60)
@given(st.lists(st.one_of(mutated(line("0", 3)), st.text(max_size=30)), max_size=4))
def test_lines_of_the_accounting_amid_garbage_are_returned(inserted: list[str]) -> None:
    with NamedTemporaryFile("w", errors="replace") as file:
        file.writelines(f"{text}\n" for text in [*inserted, line("0", 77).strip()])
        file.flush()
        followed = AccountingFile(Path(file.name), CELL_INSTANCES)
        records = followed.read_new()
        followed.close()
    assert records[-1].exit_status == 77
    for record in records:
        if (status := cell.ended_status(record, "ms-k3f9-42-1", 0, False)) is not None:
            encode_rows([status])


@examples(60)
@given(mutated(QSTAT))
def test_any_readable_job_of_a_cell_can_be_used(xml: str) -> None:
    listed = parsed(cell.parse_jobs, xml)
    if listed is None:
        return
    own = cell.OwnJobs(CELL_INSTANCES, "")
    encode_rows([cell.live_status(job, *key[:2]) for key, job in own.select(listed.jobs).items()])
    own.set_aside(listed.unreadable)
    info = cell_info(CellDemand(listed.jobs, NOW, 60.0, set()), [], {}, {}, None)
    encode_rows([], info)


CLAIM = "claimed\nstarted 7\nended 3 9\n"


@examples(60)
@given(st.one_of(st.binary(max_size=99), mutated(CLAIM).map(lambda text: text.encode())))
def test_any_claim_is_read_or_none(content: bytes) -> None:
    with TemporaryDirectory() as fence_dir:
        folder = Path(new_claim_folder(fence_dir, 1))
        folder.mkdir(parents=True)
        (folder / "task.0").write_bytes(content)
        end = read_end(TaskClaim(str(folder), "ms-recorded-1-1", 0))
    assert end is None or (0 <= end.exit_code <= 999 and end.started <= end.ended)


rows = st.builds(
    JobStatus,
    st.text(max_size=9),
    st.integers(),
    st.text(max_size=9),
    st.sampled_from(State),
    st.floats(),
    st.floats(),
    st.integers(),
    manager_reason=st.text(st.characters(), max_size=9),
    cpu_seconds=st.floats(),
    restarts=st.integers(),
    expected=st.floats(),
)


@examples(60)
@given(st.lists(rows, max_size=3))
def test_any_row_of_an_adapter_reaches_the_daemon_or_is_set_aside(listed: list[JobStatus]) -> None:
    encode_rows(listed)
