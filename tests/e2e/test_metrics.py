"""Metrics, probes, alert rules and the board, with a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import require
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, running_site
from tests.harness.accounts import A, B
from tests.harness.http_calls import call
from tests.harness.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "docs/examples/prometheus"
PAGE = Path(__file__).parents[2] / "docs/admin/monitoring.md"
PROGRAMS = "".join(f"[cluster.{name}]\n{SUPERVISE}" for name in ("left", "right"))
LICENCE = '[[licence]]\nname = "matlab"\ntotal = 4\n'


def scraped(site: Site) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all samples over the unix socket, by name and labels."""
    answer = call(site.folder / "ms.sock", "GET", "/metrics")
    assert answer.status == 200, answer
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    }


def sample(site: Site, name: str, **labels: str) -> float | None:
    required = {(key.rstrip("_"), value) for key, value in labels.items()}
    return scraped(site).get((f"metasched_{name}", frozenset(required)))


class Remote:
    """A daemon's TCP port and a credential."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token

    def get(self, path: str, method: str = "GET", data: bytes | None = None) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def far_site(site: Site) -> tuple[Site, int]:
    port = free_port()
    tcp = f'[tcp]\nlisten = "127.0.0.1:{port}"\n'
    site.configure(TWO_LOCAL, tcp + LICENCE)
    site.start()
    return site, port


def scraped_by(site: MultiUserSite, account: str) -> str:
    """Return what an account reads from /metrics, over the unix socket."""
    program = (
        "import sys, pathlib; from tests.harness.http_calls import call; "
        "answer = call(pathlib.Path(sys.argv[1]), 'GET', '/metrics'); "
        "assert answer.status == 200, answer; print(answer.content.decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, site.folder / "state/ms.sock"],
        env=site.environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
        **site.by(account).caller,
    )
    return str(done.stdout)


def metrics_token(site: Site, *options: str) -> str:
    return site.run("token", "create", "--metrics", *options).stdout.strip()


def test_a_scrape_shows_queue_clusters_and_licences(site: Site) -> None:
    site.configure(TWO_LOCAL, LICENCE)
    site.start()
    done = site.submit("--wrap", "true")
    site.until_ended(done)
    site.submit("--hold", "--array", "1-40", "--wrap", "true")
    running = site.submit("-L", "matlab:3", "--wrap", "sleep 600")
    site.until(lambda: site.row(running)["state"] == "running")
    assert sample(site, "tasks", state="held", class_="regular", reason="held") == 40
    assert sample(site, "tasks", state="running", class_="regular", reason="") == 1
    assert sample(site, "licence_tokens", licence="matlab") == 4
    assert sample(site, "licence_tokens_leased", licence="matlab") == 3
    assert sample(site, "licence_tokens_free", licence="matlab") == 1
    assert sample(site, "cluster_up", cluster="left") == 1
    assert sample(site, "cluster_processors", cluster="right") == 4
    assert sample(site, "scheduler_running") == sample(site, "database_up") == 1
    assert (sample(site, "database_bytes") or 0) >= 2**16
    assert (sample(site, "database_free_bytes") or 0) > 0
    values = scraped(site)
    starts = sum(v for (name, _), v in values.items() if name == "metasched_tasks_started_total")
    assert starts == 2
    waits = frozenset({("class", "regular")})
    assert values["metasched_wait_seconds_count", waits] == 2
    assert all(name.startswith(("metasched_", "process_")) for name, _ in values)
    site.run("cluster", "drain", "left")
    assert sample(site, "cluster_drained", cluster="left") == 1


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text;version=x", "application/openmetrics-text; version=1.0.0", "*"],
)
def test_any_scraper_gets_a_format(shared: Site, accept: str) -> None:
    answer = call(shared.folder / "ms.sock", "GET", "/metrics", None, {"Accept": accept})
    assert answer.status == 200
    assert b"metasched_cluster_up" in answer.content


def test_every_metric_is_in_the_documents_and_all_that_is_there_exists(site: Site) -> None:
    """Names in page, alerts and board, against a scrape."""
    site.configure(TWO_LOCAL, LICENCE)
    site.start()
    answer = call(site.folder / "ms.sock", "GET", "/metrics").content.decode()
    families = {
        family.name.removeprefix("metasched_"): family
        for family in text_string_to_metric_families(answer)
        if family.name.startswith("metasched_")
    }
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE))
    assert families.keys() == rows.keys()
    for name, family in families.items():
        labels = {label for s in family.samples for label in s.labels} - {"le"}
        documented = set(re.findall(r"\w+", rows[name].replace("`", "")))
        assert labels <= documented, name
    board = (EXAMPLES / "dashboard.json").read_text()
    used = (EXAMPLES / "alerts.yml").read_text() + board
    suffixes = re.compile(r"_(total|bucket|count|sum)$")
    for name in set(re.findall(r"metasched_(\w+)", used)):
        assert suffixes.sub("", name) in families, name
    assert json.loads(board)["panels"]


def test_a_token_for_metrics_reads_nothing_else(far_site: tuple[Site, int]) -> None:
    site, port = far_site
    scraper = Remote(port, metrics_token(site))
    status, text = scraper.get("/metrics")
    assert (status, "metasched_cluster_up" in text) == (200, True)
    for path, method in (
        *(("/jobs", "GET"), ("/health", "GET"), ("/clusters", "GET"), ("/tokens", "GET")),
        *(("/tokens", "POST"), ("/jobs", "POST"), ("/clusters/left/drain", "POST")),
        *(("/metrics/../jobs", "GET"), ("//metrics", "GET"), ("/metrics/", "GET")),
    ):
        status, text = scraper.get(path, method, b"{}" if method == "POST" else None)
        assert status == 403, (path, status)
        assert "reads /metrics alone" in text
    [row] = [row for row in site.json("token", "list") if row["scope"] == "metrics"]
    site.run("token", "revoke", str(row["id"]))
    assert scraper.get("/metrics")[0] == 401
    assert Remote(port, "").get("/metrics")[0] == 401
    user = Remote(port, site.run("token", "create").stdout.strip())
    assert user.get("/metrics")[0] == 200


def test_anybody_may_ask_whether_the_daemon_is_ready(far_site: tuple[Site, int]) -> None:
    _, port = far_site
    nobody = Remote(port, "")
    assert nobody.get("/ready") == (200, '{"ready":true}')
    assert nobody.get("/health")[0] == 401
    assert nobody.get("/ready", "POST", b"{}")[0] == 401


@pytest.mark.root
def test_no_metric_names_an_account_or_a_job(common_folder: Path) -> None:
    """Any account may read the metrics of a site; hostile names of jobs and reasons stay out."""
    tcp = f'[tcp]\nlisten = "127.0.0.1:{free_port()}"\n'
    with running_site(common_folder / "metrics", tcp + TWO_LOCAL + LICENCE, PROGRAMS) as site:
        name = 'x"} 1\nforged_metric 1\n#'
        site.by(A).run("submit", "--name", "secret-project", "--hold", "--wrap", "true")
        site.by(A).run("submit", "--hold", "--comment", name.replace("\n", " "), "--wrap", "true")
        text = scraped_by(site, B)
        assert "metasched_tasks{" in text
        for secret in (A, B, "secret-project", "forged"):
            assert secret not in text
        message = site.by(B).error("token", "create", "--metrics", code=3)
        assert "only operators may create tokens for metrics" in message


def test_alert_rules_are_valid_and_fire(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        require("prometheus", "promtool not found; apt-get install prometheus")
    for arguments in (
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ):
        done = subprocess.run([promtool, *arguments], cwd=EXAMPLES, capture_output=True, text=True)
        assert done.returncode == 0, done


@pytest.mark.slow("alerts fire after seconds of scrapes")
def test_a_real_prometheus_scrapes_and_alerts(far_site: tuple[Site, int], tmp_path: Path) -> None:
    """The files of the documents, with shorter times. The daemon is killed: an alert fires."""
    if shutil.which("prometheus") is None:
        require("prometheus", "prometheus not found; apt-get install prometheus")
    site, port = far_site
    token = tmp_path / "token"
    site.run("token", "create", "--metrics", "--file", token)
    settings = (EXAMPLES / "prometheus.yml").read_text()
    settings = settings.replace("/etc/prometheus/metasched.token", str(token))
    settings = settings.replace("metasched.example.org:6450", f"127.0.0.1:{port}")
    (tmp_path / "prometheus.yml").write_text(
        settings.replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s")
    )
    rules = re.sub(r"for: \d+m", "for: 1s", (EXAMPLES / "alerts.yml").read_text())
    (tmp_path / "alerts.yml").write_text(rules)
    own_port = free_port()
    server = subprocess.Popen(
        [
            *("prometheus", f"--config.file={tmp_path}/prometheus.yml"),
            *(f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{own_port}"),
        ],
        stdout=(tmp_path / "out").open("wb"),
        stderr=subprocess.STDOUT,
    )

    def query(text: str) -> dict[str, float]:
        address = f"http://127.0.0.1:{own_port}/api/v1/query?query={urllib.parse.quote(text)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except OSError:
            return {}
        return {row["metric"].get("cluster", ""): float(row["value"][1]) for row in series}

    try:
        site.until(lambda: query("metasched_cluster_up") == {"left": 1.0, "right": 1.0})
        assert query('up{job="metasched"}') == {"": 1.0}
        firing = 'ALERTS{alertname="MetaschedDown",alertstate="firing"}'
        site.stop(signal.SIGKILL)
        site.until(lambda: query(firing) == {"": 1.0})
        site.start()
        site.until(lambda: query("metasched_cluster_up") and not query(firing))
    finally:
        server.terminate()
        server.wait(30)
