"""Lists of hosts as Slurm prints them. Pure."""

from __future__ import annotations

import re

from metasched.adapters.slurm.records import EMPTY_VALUES, parse_int

MAX_HOSTS = 100_000  # in a list
_LIST = re.compile(r"([^\[\],]|\[[\d,-]+\])+(,([^\[\],]|\[[\d,-]+\])+)*", re.ASCII)


def expand_hosts(host_list: str) -> tuple[str, ...]:
    """Return the names in a list such as `n1,rack[1-2,07]x[1-2]`, at most MAX_HOSTS.

    Raises ValueError.
    """
    if host_list in EMPTY_VALUES:
        return ()
    if _LIST.fullmatch(host_list) is None:
        raise ValueError(f"{host_list[:80]!r} is no list of hosts")
    names: list[str] = []
    for item in re.findall(r"(?:[^\[\],]|\[[^\]]*\])+", host_list):
        names += _expand_item(item)
        if len(names) > MAX_HOSTS:
            raise ValueError(f"{host_list[:80]!r} names more than {MAX_HOSTS} hosts")
    return tuple(names)


def _expand_item(item: str) -> list[str]:
    names = [""]
    for literal, inside in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", item):
        if literal:
            names = [name + literal for name in names]
            continue
        numbers = [number for part in inside.split(",") for number in _expand_range(part)]
        if len(names) * len(numbers) > MAX_HOSTS:
            raise ValueError(f"{item[:80]!r} names more than {MAX_HOSTS} hosts")
        names = [name + number for name in names for number in numbers]
    return names


def _expand_range(text: str) -> list[str]:
    """Return the numbers of `07` or `1-9`, as wide as the first."""
    first, _, last = text.partition("-")
    start, end = parse_int(first), parse_int(last or first)
    if end - start > MAX_HOSTS:
        raise ValueError(f"{text!r} names more than {MAX_HOSTS} hosts")
    return [f"{number:0{len(first)}}" for number in range(start, end + 1)]
