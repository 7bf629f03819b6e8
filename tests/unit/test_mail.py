"""Mails: kinds, addresses, subjects and texts, headers, and failures of the mail program."""

from __future__ import annotations

import asyncio
from email import message_from_bytes, policy
from pathlib import Path

import pytest
from msgspec import structs

from metasched.api.notifications import apply_mail
from metasched.client.schemas import JobRequest
from metasched.config.settings import MailSettings
from metasched.core import notifications
from metasched.core.notifications import End
from metasched.core.tasks import Attempt, Task
from metasched.daemon import mail
from metasched.daemon.mail import MailFailed, MailUncertain, UnknownAddress, command_for, send_mail
from metasched.daemon.notification_texts import (
    alert_message,
    clock_time,
    digest_message,
    job_message,
    reservation_message,
)
from metasched.errors import ParseError
from metasched.model.job import State
from metasched.model.mail import ADDRESS, MailRequest, is_allowed
from metasched.model.mail_types import parse_mail_types
from metasched.model.notice import DIGEST, JOB_BEGAN, JOB_ENDED, Notice
from metasched.model.reservation import Reservation, ReservationState
from metasched.model.reservation_request import Offer
from tests.unit.core_site import NOW, job

BROKEN = Reservation(
    id=3,
    user="ada",
    cluster="alpha",
    start=1_000_000.0,
    end=1_003_600.0,
    size=2,
    cpus=8,
    created=0.0,
    nodes=("n1", "n2"),
    state=ReservationState.BROKEN,
    cause="n1 cannot be used,\n~ and no other node is free",
    offers=(Offer(1_007_200.0, 1_010_800.0, 2),),
)
ENDED = Notice(
    kind=JOB_ENDED,
    time=NOW,
    user="ada",
    job=17,
    name="mesh",
    state="completed",
    cluster="alpha",
    submitted=NOW - 70.0,
    started=NOW - 65.0,
    ended=NOW,
    exit_code=0,
    output=("/home/ada/out",),
)


def settings(program: Path, **values: object) -> MailSettings:
    defaults = {"is_sendmail": True, "sender": "ms@example.org", "domains": (), "per_hour": 9}
    return MailSettings(program=program, **{**defaults, **values})  # type: ignore[arg-type]


# Kinds


@pytest.mark.parametrize(
    ("text", "wanted", "unsent"),
    [
        ("END", ("END",), ()),
        ("fail,Begin", ("BEGIN", "FAIL"), ()),
        ("ALL", ("BEGIN", "END", "FAIL", "REQUEUE"), ()),
        ("ALL,ARRAY_TASKS", ("BEGIN", "END", "FAIL", "REQUEUE", "ARRAY_TASKS"), ()),
        ("NONE", (), ()),
        ("END,NONE,FAIL", (), ()),
        ("TIME_LIMIT_80,TIME_LIMIT", ("TIME_LIMIT", "TIME_LIMIT_80"), ()),
        ("STAGE_OUT,time_limit_50", ("TIME_LIMIT_50",), ("STAGE_OUT",)),
        ("STAGE_OUT,INVALID_DEPEND", (), ("INVALID_DEPEND", "STAGE_OUT")),
    ],
)
def test_kinds_of_mails(text: str, wanted: tuple[str, ...], unsent: tuple[str, ...]) -> None:
    assert parse_mail_types(text) == (wanted, unsent)


@pytest.mark.parametrize("text", ["", "END,", "ENDS", "END FAIL", "END\n"])
def test_other_words_are_no_kinds(text: str) -> None:
    with pytest.raises(ParseError, match="is no kind of mail"):
        parse_mail_types(text)


@pytest.mark.parametrize(
    ("types", "state", "is_sent"),
    [
        (("END",), State.COMPLETED, True),
        (("END",), State.FAILED, True),  # as in Slurm
        (("END",), State.CANCELLED, True),
        (("FAIL",), State.COMPLETED, False),
        (("FAIL",), State.CANCELLED, False),
        (("FAIL",), State.FAILED, True),
        (("FAIL",), State.REJECTED, True),
        (("TIME_LIMIT",), State.TIMEOUT, True),
        (("TIME_LIMIT",), State.FAILED, False),
        (("BEGIN", "REQUEUE"), State.FAILED, False),
    ],
)
def test_which_ends_are_mailed(types: tuple[str, ...], state: State, is_sent: bool) -> None:
    assert notifications.reports_end(MailRequest(types=types), state) is is_sent


# Addresses


@pytest.mark.parametrize("address", ["ada", "ada@example.org", "a.b+c@mail-1.example.org", "_x"])
def test_addresses(address: str) -> None:
    assert ADDRESS.fullmatch(address)


@pytest.mark.parametrize(
    "text",
    ["", "-v", "|rm", "/etc/passwd", "a/b", "a b", "a\nb", "a@b@c", "a@-b", "x" * 99, "é", "a\n"],
)
def test_texts_that_a_mail_program_might_interpret_are_no_addresses(text: str) -> None:
    assert not ADDRESS.fullmatch(text)


@pytest.mark.parametrize(
    ("address", "domains", "allowed"),
    [
        ("ada", (), True),
        ("bob", (), False),
        ("bob", ("*",), False),  # another account of this host
        ("ada@example.org", (), False),
        ("ada@Example.ORG", ("example.org",), True),
        ("ada@evil.example.org", ("example.org",), False),
        ("x@anywhere", ("*",), True),
        ("-x@anywhere", ("*",), False),
        ("$USER@anywhere", ("*",), False),
        ("ada@anywhere,bob@anywhere", ("*",), False),
    ],
)
def test_mail_goes_to_the_owner_and_to_allowed_domains(
    address: str, domains: tuple[str, ...], allowed: bool
) -> None:
    assert is_allowed(address, "ada", domains) is allowed


def request(mail_request: MailRequest | None) -> JobRequest:
    return JobRequest(script="s", environment="e", directory="/", mail=mail_request)


def test_a_job_gets_the_mail_that_the_site_sends() -> None:
    asked = request(MailRequest(types=("END",), user="ada@example.org"))
    sends = settings(Path("/x"), domains=("example.org",))
    assert apply_mail(sends, "ada", asked) == (asked, [])
    assert apply_mail(None, "ada", asked) == (
        request(None),
        ["--mail-type: this site sends no mail"],
    )
    applied, [warning] = apply_mail(settings(Path("/x")), "ada", asked)
    assert applied == request(MailRequest(types=("END",)))
    assert warning == (
        "--mail-user: this site allows no addresses; mail goes to ada, not to ada@example.org"
    )
    _, [warning] = apply_mail(sends, "-oQ/tmp", request(MailRequest(types=("END",))))
    assert warning == "--mail-type: your user name is no address"
    assert apply_mail(None, "ada", request(MailRequest(types=()))) == (request(None), [])


# Texts


def test_a_mail_about_an_end_is_like_that_of_slurm() -> None:
    subject, text = job_message(ENDED)
    assert subject == (
        "metasched Job_id=17 Name=mesh Ended, Run time 00:01:05, COMPLETED, ExitCode 0"
    )
    assert text.splitlines() == [
        "Job: 17",
        "Name: mesh",
        "User: ada",
        "Cluster: alpha",
        "State: completed",
        "Exit code: 0",
        "Submitted: 1970-01-12T13:45:30.000+00:00",
        "Started: 1970-01-12T13:45:35.000+00:00",
        "Ended: 1970-01-12T13:46:40.000+00:00",
        "Output: /home/ada/out",
        "Details: metasched story 17",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "failed", "exit_code": 3}, "Failed, Run time 00:01:05, FAILED, ExitCode 3"),
        ({"state": "timeout", "exit_code": None}, "Failed, Run time 00:01:05, TIMEOUT"),
        ({"state": "cancelled", "started": None, "exit_code": None}, "Ended, CANCELLED"),
        ({"kind": JOB_BEGAN, "ended": None}, "Began, Queued time 00:00:05"),
        ({"kind": "job_requeued"}, "Requeued"),
    ],
)
def test_words_of_subjects(changes: dict[str, object], words: str) -> None:
    subject, _ = job_message(structs.replace(ENDED, **changes))
    assert subject == f"metasched Job_id=17 Name=mesh {words}"


def test_subjects_of_arrays() -> None:
    task = structs.replace(ENDED, array="1-9", task=3)
    assert job_message(task)[0].startswith("metasched Array Task Job_id=17_3 (17) Name=mesh Ended")
    counts = {"completed": 8, "failed": 1}
    whole = structs.replace(
        ENDED, array="1-9", state="failed", counts=counts, started=None, exit_code=None
    )
    subject, text = job_message(whole)
    assert subject == "metasched Array Summary Job_id=17_* (17) Name=mesh Failed, Mixed"
    assert "Tasks completed: 8\nTasks failed: 1\n" in text


def test_durations_are_written_as_in_slurm() -> None:
    assert [clock_time(s) for s in (-1, 59.9, 3600, 93784)] == [
        *("00:00:00", "00:00:59", "01:00:00"),
        "1-02:03:04",
    ]


def test_a_digest_says_how_many_mails_it_stands_for() -> None:
    counts = {JOB_ENDED: 99_940, JOB_BEGAN: 2}
    digest = Notice(kind=DIGEST, time=NOW, user="ada", counts=counts)
    subject, text = digest_message(digest, 60)
    assert subject == "metasched: 99942 more notifications"
    assert "This site sends at most 60 an hour to a user.\nOf kind job_began: 2\n" in text
    _, text = digest_message(structs.replace(digest, user=None), 60)
    assert "This site sends at most 60 an hour of a kind of alert.\n" in text


def test_an_alert_names_what_it_is_about() -> None:
    alert = Notice(
        kind="cluster_unreachable", time=NOW, severity="warning", cluster="a", reason="silent"
    )
    subject, text = alert_message(alert)
    assert subject == "metasched warning: cluster_unreachable cluster a"
    assert text.splitlines() == [
        "Kind: cluster_unreachable",
        "Severity: warning",
        "Time: 1970-01-12T13:46:40.000+00:00",
        "Cluster: a",
        "Cause: silent",
        "Details: metasched events --since 1h",
    ]


def test_the_owner_is_notified_of_the_break_its_cause_and_free_windows() -> None:
    subject, text = reservation_message(BROKEN)
    assert subject == "metasched: reservation 3 is broken"
    assert text.splitlines() == [
        "Your reservation 3 on alpha cannot be kept.",
        "Window: 2 nodes from 1970-01-12T13:46:40.000+00:00 to 1970-01-12T14:46:40.000+00:00",
        "Cause: n1 cannot be used, ~ and no other node is free",
        "Jobs that wait for it stay queued in metasched until you cancel them.",
        "Free instead: 2 nodes of alpha from 1970-01-12T15:46:40.000+00:00"
        " to 1970-01-12T16:46:40.000+00:00. To reserve it:",
        "    metasched reserve --cluster alpha --size 2 --nodes"
        " --start 1970-01-12T15:46:40.000+00:00 --end 1970-01-12T16:46:40.000+00:00",
    ]


def test_reservations_without_nodes_are_given_in_processors() -> None:
    _, text = reservation_message(structs.replace(BROKEN, nodes=(), offers=()))
    assert "Window: 8 processors from" in text
    assert "No other window was found" in text
    assert "--size 8 --start" in reservation_message(structs.replace(BROKEN, nodes=()))[1]


def test_a_window_of_another_cluster_is_offered_in_processors_with_its_name() -> None:
    offer = Offer(1_007_200.0, 1_010_800.0, 8, "beta")
    _, text = reservation_message(structs.replace(BROKEN, offers=(offer,)))
    assert "Free instead: 8 processors of beta from" in text
    assert "metasched reserve --cluster beta --size 8 --start" in text


# Headers


@pytest.mark.parametrize(
    "name",
    [
        "a\r\nBcc: eve@example.org",
        "a\nTo: eve",
        "a\x0bb\x85Bcc: x\u2028Bcc: y",
        "n\N{LATIN SMALL LETTER A WITH DIAERESIS}me \N{ROCKET}",
        "=?utf-8?q?Bcc:?=",
        "=?utf-8?q?=ff?=\N{LATIN SMALL LETTER E WITH ACUTE}",
        "x" * 255,
    ],
)
def test_the_name_of_a_job_forges_no_header(name: str) -> None:
    ended = job(17, name=name, user="ada", writes=(f"/tmp/{name}",))
    attempt = Attempt(number=1, dispatch_id=1, cluster="a", state=State.COMPLETED, dispatched=NOW)
    task = Task(ended, 0, 5, 0.0, state=State.COMPLETED, ended=NOW)
    subject, text = job_message(notifications.end_notice(End(task, attempt), NOW))
    assert subject.isprintable()
    assert all(line.isprintable() for line in text.split("\n"))
    command, content = command_for(settings(Path("/s")), "c-1", "ada", subject, text)
    assert command == ["/s", "-i", "ada"]
    message = message_from_bytes(content, policy=policy.default)
    assert message.keys() == [
        *("From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted"),
        *("Content-Type", "Content-Transfer-Encoding", "MIME-Version"),
    ]
    assert (message["To"], message["Message-ID"]) == ("ada", "<c-1@metasched.invalid>")
    assert message["Subject"] == subject.replace("=?", "= ?")
    body = message.get_content()
    assert body == text


def test_a_header_with_an_end_of_a_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="linefeed"):
        command_for(settings(Path("/s")), "c-1", "ada", "a\nBcc: eve", "text")


def test_a_program_like_mail_gets_subject_and_address_as_arguments() -> None:
    plain = settings(Path("/m"), is_sendmail=False)
    assert command_for(plain, "c-1", "ada", "subject", "text") == (
        ["/m", "-s", "subject", "ada"],
        b"text",
    )


# The program


def program(folder: Path, script: str) -> Path:
    path = folder / "mail"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def send(path: Path) -> None:
    command, content = command_for(settings(path), "c-1", "ada", "subject", "text")
    asyncio.run(send_mail(command, content))


def test_exit_code_0_means_that_the_mail_was_taken(tmp_path: Path) -> None:
    send(program(tmp_path, f"cat >{tmp_path}/taken"))
    assert b"\n\ntext\n" in (tmp_path / "taken").read_bytes()
    with pytest.raises(MailFailed, match="mail ended with exit code 75"):
        send(program(tmp_path, "cat >/dev/null; exit 75"))
    with pytest.raises(UnknownAddress, match=r"no such address: .*/mail ended with 67"):
        send(program(tmp_path, "exit 67"))
    with pytest.raises(MailFailed, match="No such file"):
        send(tmp_path / "none")
    send(program(tmp_path, "exit 0"))  # it reads nothing


def test_a_program_that_hangs_is_killed_and_makes_the_mail_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "MAIL_TIMEOUT", 1.0)
    path = program(tmp_path, f"echo $$ >{tmp_path}/pid\nsleep 600 &\nwait")
    with pytest.raises(MailUncertain, match="did not end in 1 s"):
        send(path)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
