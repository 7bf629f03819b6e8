"""Mails and webhooks of a real daemon, which is killed; a mail program and a receiver that fail."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_string
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from metasched.core.events import Outcome
from metasched.db import reservations
from metasched.model.reservation import Reservation, ReservationState
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.e2e.multi_user_site import SUPERVISE, running_site
from tests.e2e.test_doctor import findings
from tests.harness.accounts import OPERATOR, A, B
from tests.harness.databases import database_from_url

# It writes each mail to a file. The first call fails; the mail of job "deadly" kills the daemon.
PROGRAM = """#!/bin/sh
cd {folder}/mails
number=$(ls | wc -l)
echo "$@" >$number.draft
cat >>$number.draft
if [ $number = 0 ]; then mv 0.draft 0.failed; exit 75; fi
mv $number.draft $number.mail
if grep -q "Name=deadly" $number.mail; then kill -9 $PPID; sleep 60; fi
"""
KEY = bytes(range(32))


class Receiver:
    """A receiver of a webhook. It answers with `statuses`, then with 204."""

    def __init__(self, statuses: list[int]) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.append((self.path, dict(self.headers.items()), body))
                self.send_response(statuses.pop(0) if statuses else 204)
                self.send_header("location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def jobs(self) -> list[int]:
        """The jobs whose ends were reported, as often as they were."""
        bodies = [json.loads(body) for _, _, body in self.requests]
        return [event["job"] for body in bodies for event in body["data"] if event["job"]]


@contextmanager
def receiver(*statuses: int) -> Iterator[Receiver]:
    running = Receiver(list(statuses))
    try:
        yield running
    finally:
        running.server.shutdown()
        running.server.server_close()


def is_signed(headers: dict[str, str], body: bytes) -> bool:
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = hmac.digest(KEY, signed, hashlib.sha256)
    return headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"


def mails(site: Site) -> list[tuple[str, Any]]:
    """Return arguments and message of each mail that the program took."""
    received = []
    for path in sorted((site.folder / "mails").glob("*.mail"), key=lambda p: int(p.stem)):
        arguments, _, text = path.read_text().partition("\n")
        received.append((arguments, message_from_string(text)))
    return received


def words(site: Site) -> list[str]:
    """Return the subjects of mails behind the name of the job, without times."""
    subjects = [" ".join(mail["Subject"].split()) for _, mail in mails(site)]
    return [subject.partition("Name=")[2] or subject for subject in subjects]


def broken(site: Site, id: int, *, closed: float) -> None:
    """Store a broken reservation, as a daemon does just before it is killed."""
    reservation = Reservation(
        id=id,
        user="ada",
        cluster="here",
        start=closed,
        end=closed + 60,
        size=1,
        cpus=4,
        created=closed - 60,
        nodes=("n1",),
        state=ReservationState.BROKEN,
        cause="n1 cannot be used",
        known_to_manager=False,
        closed=closed,
        mail="ada@example.org",
    )
    engine = database_from_url(site.url, site.folder).open_existing()
    with engine.begin() as connection:
        reservations.store(connection, [Outcome(reservations={id: reservation})])
    engine.dispose()


def set_up(site: Site, port: int, silent_port: int) -> None:
    (site.folder / "mails").mkdir()
    secret = site.folder / "secret"
    secret.write_text(f"whsec_{base64.b64encode(KEY).decode()}\n")
    secret.chmod(0o600)
    site.configure(
        f'[mail]\nprogram = "sendmail"\nsender = "ms@example.org"\ndomains = ["example.org"]\n'
        f'[[webhook]]\nname = "ops"\nurl = "http://127.0.0.1:{port}/in"\n'
        f'secret_file = "secret"\nallow_private = true\n'
        f'[[webhook]]\nname = "hangs"\nurl = "http://127.0.0.1:{silent_port}/"\n'
        f'secret_file = "secret"\nallow_private = true\n{ONE_LOCAL}'
    )


def notifications(site: Site) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = site.json("notifications", "--all")
    return rows


@pytest.mark.slow("failed deliveries are retried after seconds")
def test_each_mail_once_and_all_events_in_order_over_failures_and_a_crash(
    site: Site,
) -> None:
    # nobody accepts the connections of the second webhook
    with receiver(500, 302) as hook, socket.create_server(("127.0.0.1", 0)) as silent:
        set_up(site, hook.server.server_port, silent.getsockname()[1])
        site.start()
        assert "no program" in findings(site, 1)["mail program"]["text"]
        program = site.folder / "sendmail"
        program.write_text(PROGRAM.format(folder=site.folder))
        program.chmod(0o755)
        to_ada = ("--mail-user", "ada@example.org")
        first = site.submit("--name", "a", "--mail-type=END,FAIL", *to_ada, "--wrap", "exit 3")
        site.until_ended(first)
        # the program fails first; the receiver answers 500, then redirects
        site.until(lambda: "ops: not delivered: it answered 500; retry" in site.log.read_text())
        site.until(lambda: len(mails(site)) == 1)
        site.until(lambda: len(hook.requests) == 3)
        assert [path for path, _, _ in hook.requests] == ["/in"] * 3  # no redirect is followed
        assert all(is_signed(headers, body) for _, headers, body in hook.requests)
        assert len({headers["webhook-id"] for _, headers, _ in hook.requests}) == 1
        [(arguments, mail)] = mails(site)
        assert arguments == "-i ada@example.org"
        assert (mail["From"], mail["To"]) == ("ms@example.org", "ada@example.org")
        text = mail.get_payload()
        assert f"Job: {first}\nName: a\n" in text
        assert "State: failed\nExit code: 3\n" in text
        assert words(site)[0].startswith("a Failed, Run time")
        assert words(site)[0].endswith(", FAILED, ExitCode 3")

        # an address that the site does not allow; an array; a job whose mail kills the daemon
        result = site.run("submit", "--mail-type=END", "--mail-user=eve@evil.org", "--wrap", ":")
        assert "mail goes to" in result.stderr
        array = site.submit("--name", "b", "-a", "1-3", "--mail-type=END", *to_ada, "--wrap", ":")
        site.until(lambda: len(mails(site)) == 3)
        assert sorted(words(site))[1] == "b Ended, COMPLETED"
        deadly = site.submit("--name", "deadly", "--mail-type=END", *to_ada, "--wrap", ":")
        assert site._daemon is not None
        assert site._daemon.wait(60) == -signal.SIGKILL
        broken(site, 1, closed=time.time())
        broken(site, 2, closed=time.time() - 2 * 86400.0)  # too old for a mail
        site.start()
        site.until(lambda: "metasched: reservation 1 is broken" in words(site))
        site.until(lambda: hook.jobs[-1:] == [deadly])
        site.stop()
        site.start()
        last = site.submit("--name", "last", "--mail-type=END", *to_ada, "--wrap", ":")
        site.until(lambda: hook.jobs[-1:] == [last])
        site.until(lambda: words(site)[-1].startswith("last"))
        assert len(mails(site)) == 6
        assert sum(name.startswith("deadly") for name in words(site)) == 1
        ordered = list(dict.fromkeys(hook.jobs))
        assert ordered[0] == first
        assert ordered[-2:] == [deadly, last]
        assert array in ordered
        log = site.log.read_text()
        assert "hangs: not delivered: no answer in 10 s; retrying in 5 s" in log
        states = {(row["receiver"], row["job"]): row["state"] for row in notifications(site)}
        assert states["mail", deadly] == "uncertain"
        assert states["mail", last] == "delivered"
        [shown] = [row for row in site.json("notifications") if row["receiver"] == "mail"]
        assert (shown["job"], shown["kind"], shown["address"]) == (
            *(deadly, "job_ended"),
            "ada@example.org",
        )
        events = site.json("events", "--kind", "notification_uncertain")
        assert [event["count"] for event in events] == [1]
        site.replayed()


def test_without_a_program_no_mail_is_promised(running: Site) -> None:
    reserve = ("reserve", "--size", "1", "--duration", "1h")
    message = running.error(*reserve, "--mail", "ada", code=3)
    assert "this site has no mail program to notify you by, --mail; leave it out" in message
    message = running.error(*reserve, "--mail", "|sh", code=2)
    assert message == "'|sh' is no address, --mail; write an address as ada@example.org"
    result = running.run("submit", "--mail-type", "END", "--wrap", ":")
    assert result.stderr == "metasched: warning: --mail-type: this site sends no mail\n"
    message = running.error("submit", "--mail-type", "ENDE", "--wrap", ":", code=2)
    assert "is no kind of mail, --mail-type; write BEGIN, END, FAIL or ALL" in message


TABLES = f"""
[mail]
program = "{{folder}}/sendmail"
{ONE_LOCAL}
"""


@pytest.mark.root
def test_users_get_their_own_mail_and_see_their_own_notifications(common_folder: Path) -> None:
    folder = common_folder / "mail"
    tables = TABLES.replace("{folder}", str(folder))
    with running_site(folder, tables, f"[cluster.here]\n{SUPERVISE}") as site:
        a, b, operator = site.by(A), site.by(B), site.by(OPERATOR)
        options = ("--mail-type", "END", "-o", "/dev/null", "--wrap", ":")
        result = a.run("submit", "--mail-user", B, *options)
        assert f"mail goes to {A}, not to {B}" in result.stderr
        b.submit(*options)

        def addresses(reader: Site) -> set[str]:
            return {row["address"] for row in reader.json("notifications")}

        operator.until(lambda: addresses(operator) == {A, B})
        assert addresses(a) == {A}
        assert addresses(b) == {B}
