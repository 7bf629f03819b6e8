"""Valid configurations and their settings. Invalid ones are tested in e2e/test_bad_input.py."""

from __future__ import annotations

import getpass
import grp
import os
from pathlib import Path

import pytest

from metasched.adapters.slurm.adapter import Slurm
from metasched.config.policy_file import read_policy
from metasched.config.reading import find_config, load_settings
from metasched.config.settings import ConfigError
from metasched.model.fair_share import FairShareSettings, ShareAccount, ShareTree
from metasched.model.job import Job
from metasched.model.reservation_request import ReservationQuota
from metasched.policies.policy import Policy, SelfOptimisation

WHOLE = """
[daemon]
database = "sqlite:///data/ms.db"
socket = "run/ms.sock"

[policy]
file = "policy.toml"

[[cluster]]
name = "left"
adapter = "local"
cpus = 8
benchmark = 300
poll_interval = "2s"
gres = { gpu = 2 }
[cluster.map.account]
"*" = "*"

[[cluster]]
name = "alpha"
adapter = "slurm"
config = "/etc/slurm/slurm.conf"
filesystems = ["home"]
environment = { A = "b" }

[[user_class]]
name = "gold"
users = ["ada"]

[[user_class]]
name = "silver"
users = ["ada"]
groups = ["GROUP"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    group = grp.getgrgid(os.getgid()).gr_name
    path = tmp_path / "metasched.toml"
    path.write_text(WHOLE.replace("GROUP", group))
    (tmp_path / "policy.toml").write_text('age = "2h"\npull_after = 7\n[weights]\nuser = 2\n')
    return path


def test_a_complete_configuration(file: Path) -> None:
    settings = load_settings(file)
    assert settings.database_url.database == str(file.parent / "data/ms.db")
    assert settings.socket == file.parent / "run/ms.sock"
    assert settings.state_folder == file.parent / "data/ms.clusters"
    assert settings.policy == Policy(age=7200.0, pull_after=7.0, weights={"user": 2.0})
    local, alpha = settings.clusters
    assert (local.cluster.name, local.cluster.benchmark, local.poll_interval) == ("left", 300, 2)
    assert local.options["gres"] == {"gpu": 2}
    assert local.cluster.maps == {"account": {"*": "*"}}
    assert (alpha.poll_interval, alpha.call_timeout) == (5, 60)
    assert alpha.cluster.filesystems == ("home",)
    assert alpha.environment == {**Slurm.environment, "A": "b"}


def test_capabilities_may_depend_on_options(tmp_path: Path) -> None:
    path = tmp_path / "metasched.toml"
    cell = '[[cluster]]\nname = "cell"\nadapter = "drmaa"\nlibrary = "/lib/drmaa.so"\n'
    path.write_text(f'{cell}profile = "generic"\ncpus = 4\n{cell.replace("cell", "grid")}')
    assert [
        configured.cluster.supports_reservations for configured in load_settings(path).clusters
    ] == [
        False,
        True,
    ]


def test_the_first_class_that_lists_a_user_precedes_groups(file: Path) -> None:
    settings = load_settings(file)
    assert settings.class_of("ada") == "gold"
    assert settings.class_of(getpass.getuser()) == "silver"
    assert settings.class_of("no such user") == "regular"


def test_without_a_file_this_host_is_the_only_cluster() -> None:
    [cluster] = load_settings(None).clusters
    assert cluster.cluster.adapter == "local"
    assert cluster.options["cpus"] == os.cpu_count()


def test_an_empty_policy_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    assert read_policy(path) == read_policy(None) == Policy()


def test_self_optimisation_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        "max_priority = 3\n[self_optimising.base-span]\ndelta = 0.3\ntarget = [4, 2, 1]\n"
        "[self_optimising.weight-user]\nhistory = 500\n"
    )
    assert read_policy(path).self_optimising == {
        "base-span": SelfOptimisation(delta=0.3, target=(4.0, 2.0, 1.0)),
        "weight-user": SelfOptimisation(history=500),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[self_optimising.bass]", "[self_optimising.bass]; available are base, base-span"),
        ("[self_optimising.base]\ntarget = [1, 1]", "target has 2 shares"),
        ("[self_optimising.base]\ntarget = [-1]", "target has -1"),
        ("[self_optimising.base]\ntarget = [nan]", "target has nan"),
        ("[self_optimising.base]\ntarget = [0, 0]", "target has no share above 0"),
        ("[self_optimising.base]\ndelta = nan", "delta is nan"),
        ("[self_optimising.base]\nhistory = 5", "history is 5"),
        ("[self_optimising.base]\nhistory = 'x'", 'history = "x"'),
        ("[self_optimising.base]\ndelat = 1", 'write "delta"'),
        ("[self_optimising]\nbase = true", "base"),
        ("[self_optimising.base]\n[self_optimising.base-span]", "keep one of them"),
        ("[weights]\nuser = 0\n[self_optimising.weight-user]", "weight of user is 0"),
    ],
)
def test_wrong_self_optimisation_is_reported(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError) as error:
        read_policy(path)
    assert problem in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_must_have_the_class_regular(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[classes]\nvip = 9\n")
    with pytest.raises(ConfigError, match='"regular"'):
        read_policy(path)


def test_a_cluster_for_reservations_only_must_support_them(tmp_path: Path) -> None:
    path = tmp_path / "metasched.toml"
    path.write_text('[[cluster]]\nname = "a"\nadapter = "slurm"\nconfig = "/x"\ntakes = "jobs"\n')
    assert load_settings(path).clusters[0].cluster.takes == "jobs"
    path.write_text(path.read_text().replace('"jobs"', '"reservations"'))
    assert load_settings(path).clusters[0].cluster.takes == "reservations"
    local = '[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\n'
    path.write_text(local + 'takes = "reservations"\n')
    assert load_settings(path).clusters[0].cluster.takes == "reservations"
    local += 'policy = "cs-greedy-np"\n'
    path.write_text(local + 'takes = "reservations"\n')
    with pytest.raises(ConfigError, match=r'takes = "reservations", .* "a"; leave it out'):
        load_settings(path)


@pytest.mark.parametrize(
    ("keys", "site", "takes"),
    [
        ("", '[site]\nlauncher = "l"\n', "jobs"),
        ("", "", "both"),
        ("max_time = 86400\n", '[site]\nlauncher = "l"\n', "both"),
        ('takes = "both"\n', '[site]\nlauncher = "l"\n', "both"),
    ],
)
def test_users_of_a_site_reserve_only_where_jobs_have_limits(
    tmp_path: Path, keys: str, site: str, takes: str
) -> None:
    """A window of a user, a year ahead, would keep all jobs without a limit from starting."""
    path = tmp_path / "metasched.toml"
    path.write_text(f'[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\n{keys}{site}')
    assert load_settings(path).clusters[0].cluster.takes == takes


def test_limits_of_reservations_for_all_users_and_for_a_class(file: Path) -> None:
    file.write_text(
        f'{file.read_text()}[reservations]\nhorizon = "90d"\nmost = 64\n'
        '[reservations.classes.gold]\nlongest = "60d"\nlet_run = "30m"\n'
    )
    settings = load_settings(file)
    day = 86400.0
    assert settings.quota_of("no such user") == ReservationQuota(horizon=90 * day, max_size=64)
    assert settings.quota_of("ada") == ReservationQuota(max_duration=60 * day, let_run=1800.0)
    file.write_text(file.read_text().replace("classes.gold", "classes.golf"))
    with pytest.raises(ConfigError, match='no user class "golf" in the policy'):
        load_settings(file)


def test_limits_of_the_site(file: Path) -> None:
    complete = file.read_text()
    file.write_text(
        f"{complete}[limits]\nopen_tasks = 9\n[limits.each_user]\nrunning = 4\nprocessors = 8\n"
        "[limits.users.ada]\nprocessors = 16\n[limits.groups.aero]\nqueued = 3\n"
    )
    settings = load_settings(file)
    job = Job(id=1, submitted=0.0, estimated=1.0, user="ada", groups=("aero", "other"))
    limits = settings.limits
    assert {str(scope): limits.maxima_of(scope) for scope in limits.scopes_of(job)} == {
        "user ada": {"running": 4, "processors": 16},
        "group aero": {"queued": 3},
        "all users": {"open_tasks": 9},
    }
    assert settings.limited_groups_of("no such user") == ()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("[limits]\nrunning = 5\ndispatched = 4\n", "running = 5 exceeds dispatched = 4"),
        ("[limits.each_user]\nqueued = 5\nopen_tasks = 4\n", r"\[limits.each_user\]; lower it"),
        ("[limits.classes.golf]\nrunning = 5\n", 'no user class "golf" in the policy'),
        ("[limits.users.ada]\nlicences = { nope = 1 }\n", 'no licence "nope"'),
        ("[limits]\nrunning = -1\n", "running = -1"),
        ("[limits.users.ada]\nruning = 1\n", 'unknown key "runing"'),
    ],
)
def test_limits_that_cannot_be_meant(file: Path, tables: str, message: str) -> None:
    file.write_text(file.read_text() + tables)
    with pytest.raises(ConfigError, match=message):
        load_settings(file)


def test_fair_share(file: Path) -> None:
    complete = file.read_text()
    assert load_settings(file).fair_share is None
    file.write_text(
        f'{complete}[fair_share]\nhalf_life = "2-0"\ndefault = 0.5\nusers = {{ root = 4 }}\n'
        "[fair_share.shares.physics]\nweight = 60\nusers = { ada = 2, bob = 1 }\n"
        '[fair_share.shares.theory]\nparent = "physics"\nother_users = 1\n'
    )
    assert load_settings(file).fair_share == FairShareSettings(
        half_life=2 * 86400.0,
        tree=ShareTree(
            accounts=(
                ShareAccount(name="physics", weight=60.0, users={"ada": 2.0, "bob": 1.0}),
                ShareAccount(name="theory", parent="physics", other_users=1.0),
            ),
            users={"root": 4.0},
            default=0.5,
        ),
    )
    file.write_text(f"{complete}[fair_share]\n")
    assert load_settings(file).fair_share == FairShareSettings()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ('a.parent = "b"\nb.parent = "a"\n', "cycle, a below b below a, .*; change a parent"),
        ('a.parent = "nope"\n', 'parent "nope", which is no account, .*; add it, or'),
        ("a.weight = 0\n", "weight = 0, .*; write a number from 1e-09"),
        ("a.users = { ada = -1 }\n", "ada = -1, .*; write a number from 1e-09"),
        ("a.users = { ada = nan }\n", "ada = nan, .*; write a number from 1e-09"),
        ("a.users = { ada = 1, ada = 2 }\n", 'key "ada" is there twice, .*, line 35; remove one'),
        ("a.wieght = 1\n", 'unknown key "wieght"'),
        ("a.users = 3\n", "users = 3"),
    ],
)
def test_shares_that_are_no_tree(file: Path, tables: str, message: str) -> None:
    file.write_text(f"{file.read_text()}[fair_share.shares]\n{tables}")
    with pytest.raises(ConfigError, match=message):
        load_settings(file)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("half_life = 0\n", "half_life = 0"),
        ("half_life = 59\n", "half_life = 59"),
        ("half_life = nan\n", "half_life = nan"),
        ("default = 0\n", "default = 0"),
        ('shares_from = "nope"\n', 'shares_from = "nope", .*; write the name of a cluster'),
        ("halflife = 5\n", 'unknown key "halflife"'),
    ],
)
def test_fair_share_that_cannot_be_meant(file: Path, table: str, message: str) -> None:
    file.write_text(f"{file.read_text()}[fair_share]\n{table}")
    with pytest.raises(ConfigError, match=message):
        load_settings(file)


@pytest.mark.parametrize("other", ["users = { ada = 1 }", "default = 1", "shares.a.weight = 1"])
def test_shares_come_from_one_place(file: Path, other: str) -> None:
    cluster = load_settings(file).clusters[0].cluster.name
    shares_from = f'shares_from = "{cluster}"\n'
    complete = file.read_text()
    file.write_text(f"{complete}[fair_share]\n{shares_from}")
    settings = load_settings(file).fair_share
    assert settings is not None
    assert settings.shares_from == cluster
    file.write_text(f"{complete}[fair_share]\n{shares_from}{other}\n")
    with pytest.raises(ConfigError, match=r"both shares_from and .*; remove one of the two"):
        load_settings(file)


def test_search_order_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.delenv("METASCHED_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    personal = tmp_path / "metasched" / "metasched.toml"
    personal.parent.mkdir()
    personal.write_text(WHOLE)
    assert find_config(None) == personal
    monkeypatch.setenv("METASCHED_CONFIG", str(file))
    assert find_config(None) == file
    assert find_config(personal) == personal


@pytest.mark.parametrize(
    ("adapter", "extra", "send", "message"),
    [
        ('"slurm"\nconfig = "/x"', "exclusive = true", "late", ""),
        ('"slurm"\nconfig = "/x"', "", "late", "write exclusive = true"),
        ('"slurm"\nconfig = "/x"', "exclusive = true", "at_once", 'write send = "late"'),
        ('"local"\ncpus = 1', "exclusive = true", "late", "no nodes can be reserved"),
        (
            '"slurm"\nconfig = "/x"\nreservation_unit = "processor"',
            *("exclusive = true", "late", "no nodes can be reserved"),
        ),
    ],
)
def test_late_binding_needs_an_exclusive_cluster_and_late_sending(
    tmp_path: Path, adapter: str, extra: str, send: str, message: str
) -> None:
    (tmp_path / "policy.toml").write_text(f'send = "{send}"\n')
    path = tmp_path / "metasched.toml"
    late = f'adapter = {adapter}\nbinding = "late"\nlead = "2m"\n{extra}\n'
    path.write_text(f'[policy]\nfile = "policy.toml"\n[[cluster]]\nname = "alpha"\n{late}')
    if message:
        with pytest.raises(ConfigError, match=message):
            load_settings(path)
        return
    [alpha] = load_settings(path).clusters
    assert (alpha.cluster.binds_late, alpha.cluster.lead, alpha.cluster.granularity) == (
        *(True, 120.0),
        60.0,
    )


def test_a_licence_on_some_machines(tmp_path: Path) -> None:
    path = tmp_path / "metasched.toml"
    licence = '[[licence]]\nname = "nx"\ntotal = 2\nmachines = { alpha = "cad" }\n'
    clusters = [
        f'[[cluster]]\nname = "{n}"\nadapter = "slurm"\nconfig = "/x"\n' for n in ("alpha", "beta")
    ]
    path.write_text(licence + "".join(clusters))
    settings = load_settings(path)
    assert [pool.clusters for pool in settings.licences] == [("alpha",)]
    assert [c.cluster.licence_features for c in settings.clusters] == [{"nx": "cad"}, {}]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('listen = "0.0.0.0:7410"', "without a certificate"),
        ('listen = "nowhere"', "address:port"),
        ('listen = "127.0.0.1:7410"\nnames = ["https://ms"]', "host:port"),
        ('listen = "127.0.0.1:99999"', "address:port"),
        ('listen = "127.0.0.1:7410"\ncertificate = "cert.pem"', "give both or neither"),
        ('listen = "127.0.0.1:7410"\ntokens = false', "neither munge nor tokens"),
        *(
            (f'listen = "127.0.0.1:7410"\nurl = "{url}"', 'url = .*write "https://host:port"')
            for url in (
                "http://a:1",
                "https://a b",
                "https://a:0",
                "https://a:65536",
                "https://a/b",
            )
        ),
        (
            'listen = "127.0.0.1:1"\nurl = "https://a"\ncertificate = "c"\nkey = "k"',
            "No such file.*certificate .*/c, ",
        ),
    ],
)
def test_invalid_tables_of_tcp(tmp_path: Path, table: str, message: str) -> None:
    path = tmp_path / "metasched.toml"
    path.write_text(f"[tcp]\n{table}\n[[cluster]]\nname = 'left'\nadapter = 'local'\ncpus = 4\n")
    with pytest.raises(ConfigError, match=message):
        load_settings(path)


@pytest.mark.parametrize(
    ("tcp", "url", "pages"),
    [
        ("", "https://pages.example", "https://pages.example"),
        ("", "http://pages.example:6450", None),
        ("", "http://127.0.0.1.example", None),
        ("", "http://10.0.0.1:6450", None),
        ("", "http://localhost:6450/", "http://localhost:6450"),
        ("", "http://127.0.0.1:7410", "http://127.0.0.1:7410"),
        ("", "http://[::1]:7410", "http://[::1]:7410"),
        ("", "https://[", None),
        ("", None, "http://127.0.0.1:7410"),
        ("https://a.example", None, "https://a.example"),
        ("https://a.example,https://b.example", None, None),
        ("https://a.example,https://b.example", "https://c.example", "https://c.example"),
    ],
)
def test_browsers_reach_the_pages_by_tls_or_on_this_host(
    tmp_path: Path, tcp: str, url: str | None, pages: str | None
) -> None:
    """None: it is a mistake. Over http to another host each reader of the network signs in."""
    path = tmp_path / "metasched.toml"
    table = f'url = "{tcp}"\n' if tcp else ""
    table += "[web]\n" + (f'url = "{url}"\n' if url else "")
    cluster = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\n'
    path.write_text(f'[tcp]\nlisten = "127.0.0.1:7410"\n{table}{cluster}')
    if pages is None:
        with pytest.raises(ConfigError, match=r"\[web\]; write "):
            load_settings(path)
    else:
        settings = load_settings(path)
        assert settings.web is not None
        assert settings.web.url == pages


def test_jobs_learn_the_url_of_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "metasched.toml"
    cluster = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\n'
    table = '[daemon]\nsocket = "ms.sock"\n[tcp]\nlisten = "127.0.0.1:7410"\nmunge = true\n'
    path.write_text(table + cluster)
    assert load_settings(path).job_variables == {}
    path.write_text(f'{table}url = "https://Proxy.example.org"\n{cluster}')
    settings = load_settings(path)
    assert settings.job_variables == {
        "METASCHED_SOCKET": "https://Proxy.example.org",
        "METASCHED_DAEMON": f"https://Proxy.example.org - {os.geteuid()} {tmp_path}/ms.sock",
        "METASCHED_CONFIG": "",
        "METASCHED_JOB_TOKEN_FILE": "",  # not that of the submitting job
    }
    assert settings.tcp is not None
    assert settings.tcp.names == ("proxy.example.org:443",)


@pytest.mark.parametrize(
    ("first_id", "job_id", "exported"),
    [
        ("", "", 1),
        ("", "native", None),
        ("first_id = 1000", "", 1000),
        ("first_id = 1000", "metasched", 1000),
        ("first_id = 1000", "native", None),
    ],
)
def test_scripts_see_the_ids_of_a_site_that_has_set_the_lowest(
    tmp_path: Path, first_id: str, job_id: str, exported: int | None
) -> None:
    path = tmp_path / "metasched.toml"
    job = f'[cluster.job]\njob_id = "{job_id}"\n' if job_id else ""
    cluster = '[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\n'
    path.write_text(f"[daemon]\n{first_id}\n{cluster}{job}")
    [settings] = load_settings(path).clusters
    assert settings.exports_ids_from == exported


@pytest.mark.parametrize(
    ("job_id", "message"),
    [
        ("metasched", r'job_id = "metasched", .*, cluster "a"; write first_id in \[daemon\]'),
        ("theirs", r'job_id = "theirs", .*, \[cluster.job\]; write "metasched" or "native"'),
    ],
)
def test_ids_of_scripts_that_could_be_those_of_other_jobs(
    tmp_path: Path, job_id: str, message: str
) -> None:
    path = tmp_path / "metasched.toml"
    cluster = '[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\n'
    path.write_text(f'{cluster}[cluster.job]\njob_id = "{job_id}"\n')
    with pytest.raises(ConfigError, match=message):
        load_settings(path)


HOOK = """
[[webhook]]
name = "ops"
url = "https://ops.example.org/in"
secret_file = "ops.secret"
"""


def with_tables(folder: Path, tables: str) -> Path:
    path = folder / "metasched.toml"
    path.write_text(f'{tables}\n[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\n')
    return path


def test_mail_and_webhooks(tmp_path: Path) -> None:
    mail = '[mail]\nprogram = "bin/sendmail"\ndomains = ["Example.org"]\n'
    settings = load_settings(with_tables(tmp_path, mail + HOOK))
    assert settings.mail is not None
    assert settings.mail.program == tmp_path / "bin/sendmail"
    assert settings.mail.is_sendmail
    assert (settings.mail.domains, settings.mail.per_hour) == (("example.org",), 60)
    [hook] = settings.webhooks
    assert hook.secret_file == tmp_path / "ops.secret"
    assert {"job_ended", "reservation_broken", "cluster_unreachable"} <= hook.kinds
    assert not hook.allow_private
    old = load_settings(with_tables(tmp_path, '[daemon]\nmail_program = "/usr/bin/mail"\n'))
    assert old.mail is not None
    assert not old.mail.is_sendmail


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ('[daemon]\nmail_program = "m"\n[mail]\nprogram = "s"', "both program in .*; keep one"),
        ('[mail]\nsender = "a b"', "sender = .*; write an address such as"),
        ('[mail]\nalerts_to = ["|sh"]', "alerts_to.*; write an address such as"),
        (HOOK + HOOK, 'webhook "ops" is there twice'),
        (HOOK * 17, 'webhook "ops" is there twice'),
        (
            "".join(HOOK.replace("ops", f"ops{number}", 1) for number in range(17)),
            "17 webhooks, .*; write at most 16",
        ),
        (HOOK.replace('"ops"', '"mail"'), "a webhook cannot have this name, .*; choose another"),
        (HOOK + 'kinds = ["job_end"]', 'no kind "job_end", .*; write "job_ended"'),
        (HOOK + 'kinds = ["notification_failed"]', 'no kind "notification_failed"'),
        (HOOK + "kinds = []", "no kinds, .*; name some"),
        (HOOK.replace("https", "http"), "url is not encrypted, .*; write https://, or allow_priv"),
        (HOOK.replace("https", "ftp"), "url is no URL of HTTP, .*; write https://host/path"),
        (HOOK.replace("https://ops", "https://a:b@ops"), "url holds a user or a fragment"),
        (HOOK.replace("/in", "/in#x"), "url holds a user or a fragment"),
        (HOOK.replace("/in", "/i n"), "url holds spaces or control characters"),
        (HOOK.replace(".org/", ".org:99999/"), "url: .*; write https://host/path"),
        (HOOK.replace("https://ops.example.org", "https://"), "url is no URL of HTTP"),
        (HOOK.replace("//ops", "//\u00f6ps"), "url is no URL of HTTP"),
        (HOOK.replace("//ops", "//ops."), "url holds a host with an empty label"),
        (HOOK.replace("//ops", "//" + "o" * 64), "url holds a host .*; write https://host/path"),
    ],
)
def test_mail_and_webhooks_that_cannot_be_meant(tmp_path: Path, tables: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load_settings(with_tables(tmp_path, tables))
    assert "\n" not in str(error.value)


def test_a_webhook_of_this_site_may_be_called_without_tls(tmp_path: Path) -> None:
    tables = HOOK.replace("https", "http") + "allow_private = true"
    assert load_settings(with_tables(tmp_path, tables)).webhooks[0].allow_private


CLUSTER = '[[cluster]]\nname = "here"\nadapter = "local"\ncpus = 4\n'
HERE = '[mounts]\nhome = "nfs-1"\nscratch = "lustre-alpha"\n'


def test_filesystems_are_compared_with_those_of_the_submit_host(tmp_path: Path) -> None:
    path = tmp_path / "metasched.toml"
    path.write_text(
        f'{HERE}{CLUSTER}filesystems = ["data", "scratch"]\n'
        '[cluster.mounts]\nhome = "nfs-1"\nscratch = "lustre-beta"\n'
        f'{CLUSTER.replace("here", "there")}filesystems = ["scratch"]\n'
    )
    here, there = (entry.cluster for entry in load_settings(path).clusters)
    assert here.filesystems == ("data", "home")
    assert here.other_filesystems == {"scratch": "lustre-beta"}
    assert (there.filesystems, there.other_filesystems) == (("scratch",), {})
    path.write_text(f'{HERE}{CLUSTER}[cluster.mounts]\nscrtch = "lustre-alpha"\n')
    with pytest.raises(ConfigError, match=r'no "scrtch" of the submit host.*here.*; add it'):
        load_settings(path)


def test_accounts_by_user(tmp_path: Path) -> None:
    path = tmp_path / "metasched.toml"
    path.write_text(f'{CLUSTER}[cluster.map.account]\nbio = "b"\naero = {{ ada = "a1" }}\n')
    (entry,) = load_settings(path).clusters
    assert entry.cluster.maps == {"account": {"bio": "b"}}
    assert entry.cluster.user_accounts == {"aero": {"ada": "a1"}}
    for table, error in (
        ('qos]\nfast = { ada = "a1" }', r'qos "fast" is a table.*only accounts'),
        ('account]\n"*" = { ada = "a1" }', r'account "\*" is a table.*name the account'),
        ("account]\naero = { ada = 3 }", "aero = .*; write a name in quotes, or"),
        ('account]\naero = { ada = { x = "y" } }', "aero = .*; write a name in quotes, or"),
        ("account]\naero = 3", "aero = 3, .*; write a name in quotes, or"),
    ):
        path.write_text(f"{CLUSTER}[cluster.map.{table}\n")
        with pytest.raises(ConfigError, match=error):
            load_settings(path)
