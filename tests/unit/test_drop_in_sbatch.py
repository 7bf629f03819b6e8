"""Options, directives and values of the drop-in sbatch; answers of real ones are in tests/e2e."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import metasched
from metasched.adapters.base import Capabilities
from metasched.api.slurm_options import apply_slurm_options
from metasched.client.option_words import FLAG
from metasched.client.schemas import JobRequest
from metasched.config.settings import ClusterSettings
from metasched.drop_in import sbatch_options, sbatch_script, sbatch_values, slurm_time
from metasched.drop_in.command import CommandError
from metasched.drop_in.sbatch_options import OPTIONS, UsageError, parse_arguments
from metasched.drop_in.sbatch_values import Conversion, export_entries, merge
from metasched.drop_in.slurm_time import parse_time
from metasched.errors import ApiError
from metasched.model.cluster import Cluster
from metasched.model.manager_options import EarlySignal, ManagerOptions

PACKAGE = Path(metasched.__file__).parent
PAGE = Path(__file__).parents[2] / "docs/sbatch.md"
NOW = time.mktime((2026, 11, 23, 14, 30, 0, 0, 0, -1))
EFFECTS = {
    sbatch_options.MAPPED: "mapped",
    sbatch_options.SLURM: "passed to Slurm clusters",
    sbatch_options.SLURM_ONLY: "Slurm clusters alone",
    sbatch_options.ACCEPTED: "accepted, no effect",
    sbatch_options.IGNORED: "ignored with a warning",
    sbatch_options.REFUSED: "refused",
}


def convert(*words: str) -> Conversion:
    return Conversion(merge(([], [], parse_arguments(words)[0])), NOW)


def table_rows() -> Iterator[str]:
    for option in OPTIONS.values():
        short = f", `-{option.short}`" if option.short else ""
        variables = " ".join(f"`{variable}`" for variable in option.variables)
        yield f"| `--{option.name}`{short} | {EFFECTS[option.treatment]} | {option.remark} | " + (
            f"{variables} |"
        )


def test_the_document_shows_the_table() -> None:
    shown = [re.sub(" +", " ", line) for line in PAGE.read_text().splitlines() if "| `--" in line]
    assert shown == [re.sub(" +", " ", line) for line in table_rows()]


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        (
            ["-Hn2", "--mem=4G", "f", "-x"],
            [("hold", None), ("ntasks", "2"), ("mem", "4G")],
            ["f", "-x"],
        ),
        (["--part", "p", "--", "-f"], [("partition", "p")], ["-f"]),
        (["-k", "--nice", "f"], [("no-kill", None), ("nice", None)], ["f"]),
        (["-koff", "--nice=3"], [("no-kill", "off"), ("nice", "3")], []),
        (["-t", "-5"], [("time", "-5")], []),
        (["-"], [], ["-"]),
    ],
)
def test_words_after_the_options_are_the_script(
    words: list[str], options: list[tuple[str, str | None]], rest: list[str]
) -> None:
    assert parse_arguments(words) == (options, rest)


def refusal(call: Callable[[], object]) -> str:
    """Return the message with which a call refuses its input; "" if it takes it."""
    try:
        call()
    except CommandError as error:
        return str(error)
    return ""


@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_words_are_parsed_or_refused(words: list[str]) -> None:
    message = refusal(lambda: convert(*words))
    assert message.startswith(("sbatch: ", "Invalid time")) or not message


@given(st.sampled_from(sorted(OPTIONS)), st.text(max_size=20))
def test_any_value_is_converted_or_refused(name: str, text: str) -> None:
    message = refusal(lambda: Conversion({name: text}, NOW))
    assert message.startswith(("sbatch: ", "Invalid time")) or not message


@given(st.text(max_size=80))
def test_any_directive_is_parsed_or_refused(text: str) -> None:
    script = f"#!/bin/sh\n#SBATCH {text}\n"
    message = refusal(lambda: sbatch_script.script_options(script, "f"))
    assert message.startswith("sbatch: ") or not message


def test_directives_end_at_the_first_command() -> None:
    lines = ["#!/bin/sh", '#SBATCH -J "a # b" -H # comment', "  # x", "", r"#SBATCH -o a\ b"]
    script = "\n".join([*lines, "true", "#SBATCH --foo"])
    options = sbatch_script.script_options(script, "f")
    assert options == [("job-name", "a # b"), ("hold", None), ("output", "a b")]


def test_lines_of_another_manager_become_options(capsys: pytest.CaptureFixture[str]) -> None:
    script = "#!/bin/sh\n#PBS -l nodes=2:ppn=4 -p 3\n"
    expected = [("nodes", "2"), ("ntasks-per-node", "4")]
    assert sbatch_script.options_of_dialects(script, "f") == expected
    assert capsys.readouterr().err.startswith("sbatch: Warning: -p 3 is ignored, f line 2: ")
    with pytest.raises(CommandError, match=r"^sbatch: error: .*has no equivalent, f line 2; "):
        sbatch_script.options_of_dialects("#!/bin/sh\n#PBS -l cput=1", "f")


def test_lines_of_metasched_submit_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    sbatch_script.script_options("#!/bin/sh\n#MS --urgency 3\n", "f")
    assert "only metasched submit reads #MS lines, f line 2" in capsys.readouterr().err


def test_parts_of_a_heterogeneous_job_are_refused() -> None:
    with pytest.raises(CommandError, match="f: line 2: heterogeneous jobs are not supported"):
        sbatch_script.script_options("#!/bin/sh\n#SBATCH hetjob\n", "f")


def test_the_stronger_source_counts() -> None:
    script: list[tuple[str, str | None]] = [("time", "1"), ("gpus", "1"), ("requeue", None)]
    environment: list[tuple[str, str | None]] = [("time", "2"), ("mem", "4G"), ("qos", "a")]
    line: list[tuple[str, str | None]] = [("mem-per-cpu", "1G"), ("gpus-per-node", "2")]
    assert merge((script, environment, [*line, ("no-requeue", None)])) == {
        "time": "2",
        "qos": "a",
        "mem-per-cpu": "1G",
        "gpus-per-node": "2",
        "no-requeue": None,
    }
    assert merge(([], [("mem", "4G")], [])) == {"mem": "4G"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("1:30", 120),
        ("1:2:3", 3780),
        ("1-0", 86400),
        ("1-2:3", 93780),
        ("1-2:3:4", 93840),
        ("0", 0),
        ("UNLIMITED", 0),
        ("-1", 0),
        ("5s", None),
        ("", None),
        ("1:2:3:4", None),
        ("1-2-3", None),
        ("\u0665", None),
    ],
)
def test_time_limits(text: str, seconds: int | None) -> None:
    assert slurm_time.parse_time_limit(text) == seconds


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", (2026, 11, 23, 14, 30)),
        ("now+1hour", (2026, 11, 23, 15, 30)),
        ("now+3weeks", (2026, 12, 14, 14, 30)),
        ("now+60", (2026, 11, 23, 14, 31)),
        ("now-2days", (2026, 11, 21, 14, 30)),
        ("16:00", (2026, 11, 23, 16, 0)),
        ("14:30", (2026, 11, 24, 14, 30)),
        ("2:15pm", (2026, 11, 24, 14, 15)),
        ("12:00 AM", (2026, 11, 24, 0, 0)),
        ("teatime", (2026, 11, 23, 16, 0)),
        ("noon tomorrow", (2026, 11, 24, 12, 0)),
        ("tomorrow", (2026, 11, 24, 0, 0)),
        ("2030-01-20T12:34:00", (2030, 1, 20, 12, 34)),
        ("2030-01-20", (2030, 1, 20, 0, 0)),
        ("12/31", (2026, 12, 31, 0, 0)),
        ("010130", (2030, 1, 1, 0, 0)),
        ("12/31/30-17:05", (2030, 12, 31, 17, 5)),
        ("foo", None),
        ("", None),
        ("25:00", None),
        ("1/2/3x", None),
        ("now+1fortnight", None),
        ("13/01", None),
        ("2030-01-20T12:34:00Z", None),
    ],
)
def test_times(text: str, moment: tuple[int, ...] | None) -> None:
    expected = moment and time.mktime(
        time.strptime("{} {} {} {} {}".format(*moment), "%Y %m %d %H %M")
    )
    assert slurm_time.parse_time(text, NOW) == expected


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_none(text: str) -> None:
    assert isinstance(slurm_time.parse_time(text, NOW), float | None)
    assert isinstance(slurm_time.parse_time_limit(text), int | None)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("f_%A_%4a.%j", "f_%A_%4a.%j"),
        ("%J %n%t %3t %s", "%J %n%t %3t %s"),
        ("%q 100%", "%%q 100%%"),
        (r"a\%j", "a%%j"),
        ("NONE", "/dev/null"),
    ],
)
def test_output_patterns(text: str, pattern: str) -> None:
    assert sbatch_values.output_pattern(text) == pattern


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (None, ["ALL"]),
        ("all", ["ALL"]),
        ("NIL", ["NONE"]),
        ("", ["NONE"]),
        ("ALL,A='b,c',D", ["ALL", "A=b,c", "D"]),
    ],
)
def test_export(text: str | None, entries: list[str]) -> None:
    assert sbatch_values.export_entries(text) == entries


def test_fields_of_a_request() -> None:
    conversion = convert(
        *("-N2", "-G", "a100:2", "-d", "afterok:1:2?singleton", "--mem-per-cpu=1G", "-a"),
        *("1-9%3", "-L", "matlab:2,ansys", "-M", "left,right", "--reservation=4", "-D", "sub"),
    )
    fields = conversion.fields
    assert fields["directory"] == str(Path.cwd() / "sub")
    assert (fields["tasks"], fields["nodes"], fields["gres"]) == (2, 2, {"gpu:a100": 1})
    assert fields["licences"] == {"matlab": 2, "ansys": 1}
    assert fields["clusters"] == ["left", "right"]
    assert (fields["array"], fields["reservation"]) == ("1-9%3", 4)
    assert (fields["memory_per_cpu"], fields["dependency"]) == (1024, "afterok:1:2?singleton")
    assert conversion.slurm_options == []
    assert "clusters" not in convert("-M", "all").fields


def test_options_that_are_passed_on() -> None:
    conversion = convert("--contiguous", "--tmp=2", "--mem=0", "--reservation=maintenance")
    assert conversion.fields["slurm_options"] == [
        *("--contiguous", "--tmp=2", "--mem=0", "--reservation=maintenance")
    ]
    assert conversion.fields["slurm_only"]
    assert not convert("--contiguous").fields["slurm_only"]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--nice"], {"nice": 100}),
        (["--nice=-5"], {"nice": -5}),
        (["-w", "a[1-2]", "-x", "b"], {"nodelist": "a[1-2]", "exclude": "b"}),
        (["--open-mode=append", "--wckey=k"], {"append_output": True, "wckey": "k"}),
        (["-t0"], {"unlimited": True}),
        (["-t", "UNLIMITED"], {"unlimited": True}),
        (["--signal=USR2@9"], {"signal": EarlySignal(number=12, seconds=9)}),
        (["--signal=B:sigterm"], {"signal": EarlySignal(number=15, batch_only=True)}),
        (["--signal=RB:1"], {"signal": EarlySignal(number=1, batch_only=True, may_overlap=True)}),
    ],
)
def test_options_that_managers_honour(words: list[str], options: dict[str, object]) -> None:
    fields = convert(*words).fields
    assert msgspec.convert(fields["manager_options"], ManagerOptions) == ManagerOptions(**options)  # type: ignore[arg-type]
    assert "slurm_options" not in fields
    assert "manager_options" not in convert("-t5").fields


def test_alternative_licences() -> None:
    fields = convert("-L a:2|b").fields
    assert (fields["licences"], fields["licence_choices"]) == ({"a": 2}, [{"a": 2}, {"b": 1}])
    assert "licence_choices" not in convert("-L a,b").fields
    with pytest.raises(CommandError, match="Invalid license specification"):
        convert("-L a,b|c")


def test_alternative_gres() -> None:
    fields = convert("--gpus-per-node=a100:2|h100").fields
    assert (fields["gres"], fields["gres_alternatives"]) == (
        {"gpu:a100": 2},
        [{"gpu:h100": 1}],
    )
    assert "gres_alternatives" not in convert("--gres=gpu:2").fields
    with pytest.raises(CommandError, match="Invalid generic resource"):
        convert("--gres=gpu:2|")


@pytest.mark.parametrize(
    "word",
    [
        *("--signal=USR9", "--signal=B:", "--signal=USR1@x", "--signal=X:USR1", "--signal=0"),
        *("--signal=USR1@65536", "--nice=x", "--nice=--1", "--nice=2147483648", "--open-mode=x"),
        *("-w=", "-xa,,b", "-wa[1", "-wa]1[", "-w./nodes", "-xa b"),
    ],
)
def test_values_that_no_manager_takes(word: str) -> None:
    with pytest.raises(CommandError, match=r"Invalid --|control characters"):
        convert(word)


@pytest.mark.parametrize("name", [o.name for o in OPTIONS.values() if o.treatment == "refused"])
def test_options_that_are_refused(name: str) -> None:
    with pytest.raises(CommandError, match=f"--{name} is not supported; "):
        convert(f"--{name}" if OPTIONS[name].value == FLAG else f"--{name}=x")


def test_no_input_is_accepted() -> None:
    assert "input" not in convert("-i", "/dev/null").fields


def test_a_value_of_another_encoding_is_refused() -> None:
    with pytest.raises(CommandError, match="is not UTF-8 text, --account"):
        convert("-A", "\udcff")


def request(**values: object) -> JobRequest:
    fixed: dict[str, object] = {"script": "s", "environment": "e", "directory": "/"}
    return JobRequest(**{**fixed, **values})  # type: ignore[arg-type]


CLUSTERS = [
    ClusterSettings(
        Cluster(name=name, adapter="mine"),
        *({}, 1.0, 1.0, None, {}),
        capabilities=Capabilities(takes_sbatch_options=takes),
    )
    for name, takes in (("a", True), ("b", False))
]


def test_each_cluster_that_takes_them_gets_the_options() -> None:
    options = ("--nice=5", "--comment=a b")
    passed, warnings = apply_slurm_options(
        request(slurm_options=options, native={"a": "--tmp=1"}), CLUSTERS
    )
    assert (passed.native, passed.clusters) == ({"a": "--nice=5 '--comment=a b' --tmp=1"}, ())
    assert warnings == ["--nice --comment: no effect on clusters other than Slurm's"]
    only, warnings = apply_slurm_options(request(slurm_options=options, slurm_only=True), CLUSTERS)
    assert (only.clusters, warnings) == (("a",), [])
    with pytest.raises(ApiError, match="--nice --comment: for Slurm clusters alone"):
        apply_slurm_options(
            request(slurm_options=options, slurm_only=True, clusters=("b",)), CLUSTERS
        )
    plain = request()
    assert apply_slurm_options(plain, CLUSTERS) == (plain, [])


def test_usage_errors_have_the_code_of_the_real_command() -> None:
    with pytest.raises(UsageError) as refused:
        convert("-t", "x")
    assert refused.value.exit_code == 255


def test_sbatch_imports_few_modules() -> None:
    code = f"import sys; sys.path.append({str(PACKAGE.parent)!r}); "
    code += "import metasched.drop_in.command, metasched.drop_in.sbatch; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    slow = {"typing", "dataclasses", "pathlib", "argparse", "datetime", "hashlib", "shlex"}
    assert not loaded & (slow | {"getopt", "subprocess", "contextlib", "inspect", "pwd"})


def test_a_date_without_a_year_is_the_next_one() -> None:
    now = time.mktime((2026, 11, 23, 14, 0, 0, 0, 0, -1))
    assert parse_time("01/15", now) == time.mktime((2027, 1, 15, 0, 0, 0, 0, 0, -1))
    assert parse_time("12/15-16:00", now) == time.mktime((2026, 12, 15, 16, 0, 0, 0, 0, -1))
    assert parse_time("01/15/26", now) == time.mktime((2026, 1, 15, 0, 0, 0, 0, 0, -1))
    assert parse_time("Tomorrow", now) == time.mktime((2026, 11, 24, 0, 0, 0, 0, 0, -1))
    assert parse_time("2030-01-31T17:30", now) == time.mktime((2030, 1, 31, 17, 30, 0, 0, 0, -1))


def test_all_in_the_list_of_export_has_any_case() -> None:
    assert export_entries("all,A=1") == ["ALL", "A=1"]


def test_mail_is_a_matter_of_metasched() -> None:
    conversion = convert("--mail-type=end,STAGE_OUT", "--mail-user=ada@example.org")
    assert conversion.slurm_options == []
    assert conversion.fields["mail"] == {"types": ("END",), "user": "ada@example.org"}
    assert conversion.warnings == ["--mail-type: no mail is sent for STAGE_OUT"]
    for words in ([], ["--mail-type=NONE"], ["--mail-user=ada"]):  # as in Slurm
        assert "mail" not in convert(*words).fields
