"""Pages behind a real nginx that speaks TLS, knows its users, and passes requests to the socket."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from playwright.sync_api import expect

from tests.conftest import require
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.e2e.test_tcp import make_certificate
from tests.harness import browser
from tests.harness.daemons import wait_until
from tests.harness.ports import free_port
from tests.harness.reaper import dying_with

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONFIGURATION = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {folder}/c;
    ssl_certificate_key {folder}/c.key;
    auth_basic "site";
    auth_basic_user_file {folder}/users;
    location /web/ {{
      proxy_pass http://unix:{folder}/web.sock:;
      proxy_set_header Host $http_host;
      proxy_set_header X-Remote-User $remote_user;
      proxy_set_header X-Forwarded-Proto $scheme;
    }}
  }}
}}
"""


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


@contextmanager
def proxy(folder: Path, port: int, user: str) -> Iterator[None]:
    """Run nginx as this account, which is not root; it knows one user, by a password."""
    if NGINX is None:
        require("nginx", "nginx not found; apt-get install nginx-light")
    make_certificate(folder, "c")
    (folder / "users").write_text(f"{user}:{{PLAIN}}password\n")
    (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, port=port))
    with (folder / "nginx.log").open("wb") as log:
        process = subprocess.Popen(
            [str(NGINX), "-p", folder, "-c", folder / "nginx.conf", "-e", "stderr"],
            stderr=log,
            preexec_fn=dying_with(os.getpid()),
        )
    try:
        wait_until(partial(_accepts, port), 30, "nginx", (folder / "nginx.log").read_text)
        yield
    finally:
        process.terminate()
        process.wait(30)


def test_a_browser_acts_by_tls_through_nginx(tmp_path: Path) -> None:
    """The cookie of forms is for this host and TLS alone; a forged user counts for nothing."""
    if (reason := browser.missing()) is not None:
        require("chromium", reason)
    site, port, user = Site(tmp_path), free_port(), getpass.getuser()
    site.configure(TWO_LOCAL, f'[web]\nproxy_socket = "web.sock"\nproxy_user = "{user}"\n')
    try:
        with proxy(tmp_path, port, user), browser.chromium() as running:
            site.start()
            job = site.submit("--hold", "-t", "9", "--wrap", "true")
            context = running.new_context(
                base_url=f"https://localhost:{port}",
                ignore_https_errors=True,
                http_credentials={"username": user, "password": "password"},
                extra_http_headers={"X-Remote-User": "root", "X-Forwarded-Proto": "http"},
            )
            page = context.new_page()
            page.goto("/web/")
            expect(page.locator(".who")).to_contain_text(user)
            [cookie] = context.cookies()
            assert cookie["name"] == f"__Host-metasched-{port}"
            assert (cookie["secure"], cookie["httpOnly"]) == (True, True)
            assert (cookie["sameSite"], cookie["path"]) == ("Strict", "/")
            # changes reach the page through the proxy, and acts the daemon
            page.goto("/web/queue")
            row = page.get_by_role("row").filter(has_text=str(job))
            expect(row).to_contain_text("held")
            site.run("release", str(job))
            expect(row).to_contain_text("completed", timeout=60_000)
            last = site.submit("--hold", "-t", "9", "--wrap", "true")
            page.goto(f"/web/acts/jobs/cancel?job={last}")
            page.get_by_role("button", name=f"Cancel job {last}").click()
            expect(page.get_by_role("status")).to_contain_text("is now cancelled")
            assert site.row(last)["state"] == "cancelled"
            stranger = running.new_context(
                base_url=f"https://localhost:{port}", ignore_https_errors=True
            )
            refused = stranger.request.get("/web/", headers={"X-Remote-User": user})
            assert refused.status == 401
    finally:
        site.close()
