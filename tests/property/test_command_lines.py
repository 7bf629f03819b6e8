"""The reader of command lines against getopt_long(3) of the C library."""

from __future__ import annotations

import ctypes
import string
from collections.abc import Mapping, Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from metasched.client.option_words import FLAG, OPTIONAL, VALUE
from metasched.drop_in import sacct, scancel, scontrol, sinfo, squeue, sstat
from metasched.drop_in.command_line import CommandLineError, Option, OptionTable

TABLES = [command.OPTIONS for command in (sacct, scancel, scontrol, sinfo, squeue, sstat)]
HAS_VALUE = {FLAG: 0, VALUE: 1, OPTIONAL: 2}
Parsed = tuple[list[tuple[str, str | None]], list[str]]


class LongOption(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("has_arg", ctypes.c_int),
        ("flag", ctypes.c_void_p),
        ("val", ctypes.c_int),
    )


def read_by_libc(options: Mapping[str, str], arguments: Sequence[str], permutes: bool) -> Parsed:
    """Return what getopt_long(3) reads. ValueError if it reports an error."""
    libc = ctypes.CDLL(None)
    optind, opterr = ctypes.c_int.in_dll(libc, "optind"), ctypes.c_int.in_dll(libc, "opterr")
    optarg = ctypes.c_char_p.in_dll(libc, "optarg")
    table = [Option.parse(long, short) for long, short in options.items()]
    long_options = (LongOption * (len(table) + 1))()
    names: dict[int, str] = {}
    letters = "" if permutes else "+"
    for number, option in enumerate(table):
        value = ord(option.short) if option.short else 1000 + number
        if value not in names and option.short:
            letters += option.short + ":" * HAS_VALUE[option.value]
        names.setdefault(value, option.name)
        fields = (option.name.encode(), HAS_VALUE[option.value], None, value)
        long_options[number] = LongOption(*fields)
    argv = (ctypes.c_char_p * (len(arguments) + 2))(b"x", *map(str.encode, arguments), None)
    optind.value = opterr.value = 0
    parsed = []
    while (value := libc.getopt_long(len(argv) - 1, argv, letters.encode(), long_options, 0)) != -1:
        if value == ord("?"):
            raise ValueError
        parsed.append((names[value], None if optarg.value is None else optarg.value.decode()))
    return parsed, [(argument or b"").decode() for argument in argv[optind.value : -1]]


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[Mapping[str, str], list[str]]:
    options = draw(st.sampled_from(TABLES))
    names = [Option.parse(long, "").name for long in options]
    shortened = st.sampled_from(names).flatmap(
        lambda name: st.integers(0, len(name)).map(lambda length: name[:length])
    )
    long = st.builds("--{}{}".format, shortened, st.sampled_from(["", "=", "=5", "=--x"]))
    letters = [*filter(None, options.values()), *"=5:W"]
    short = st.lists(st.sampled_from(letters), max_size=4).map(lambda word: "-" + "".join(word))
    other = st.sampled_from(["", "-", "--", "---", "17", "17_*", "a=b", "-17"])
    texts = st.text(string.ascii_letters + "-=:", max_size=5)
    return options, draw(st.lists(long | short | other | texts, max_size=6))


@given(line=command_lines(), permutes=st.booleans())
@example(line=(squeue.OPTIONS, ["17", "-j", "--clus=a", "--", "-h"]), permutes=True)
def test_a_command_line_is_read_as_by_getopt_long(
    line: tuple[Mapping[str, str], list[str]], permutes: bool
) -> None:
    options, arguments = line
    table = OptionTable(Option.parse(long, short) for long, short in options.items())
    try:
        expected = read_by_libc(options, arguments, permutes)
    except ValueError:
        try:
            table.read(arguments, permutes=permutes)
        except CommandLineError:
            return
        raise
    assert table.read(arguments, permutes=permutes) == expected
