"""The options of `srun` and `salloc`, which end at the program."""

from __future__ import annotations

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Option = tuple[str, str, list[str]]  # long name if it matters here, value, words

# Options of 22.05 to 24.11 whose value, if any, stands in the same word. All others have a value.
_FLAGS = {
    *("label", "overcommit", "oversubscribe", "quiet", "unbuffered", "verbose", "version", "help"),
    *("usage", "hold", "preserve-env", "disable-status", "no-allocate", "contiguous", "exact"),
    *("overlap", "multi-prog", "pty", "quit-on-interrupt", "reboot", "spread-job", "share"),
    *("use-min-nodes", "resv-ports", "exclusive", "propagate", "nice", "compress", "send-libs"),
    *("bcast", "x11", "no-kill", "kill-on-bad-exit", "immediate", "test-only", "external"),
    *("interactive", "debugger-test", "wait-for-children", "oom-kill-step", "stepmgr"),
    *("bell", "no-bell", "no-shell", "kill-command", "get-user-env"),  # of salloc
}
_SHORT_FLAGS = "EHhlOQsuvVXZ"
_SHORT_OPTIONAL = "IKk"  # their value, if any, is the rest of the word
# the options that matter here, with their short ones
_KNOWN = {
    "output": "o",
    "error": "e",
    "input": "i",
    "export": "",
    "jobid": "",
    "ntasks": "n",
    "chdir": "D",
    "task-prolog": "",
    "help": "h",
    "usage": "",
    "version": "V",
    # on which the choice of a cluster depends
    "account": "A",
    "clusters": "M",
    "constraint": "C",
    "cpus-per-task": "c",
    "exclusive": "",
    "gpus": "G",
    "gpus-per-node": "",
    "gpus-per-task": "",
    "gres": "",
    "licenses": "L",
    "mem": "",
    "mem-per-cpu": "",
    "nodes": "N",
    "ntasks-per-node": "",
    "partition": "p",
    "qos": "q",
    "reservation": "",
    "time": "t",
}


def split_options(arguments: Sequence[str]) -> tuple[list[Option], list[str]]:
    """Return the options before the program, and all other words."""
    options: list[Option] = []
    rest = list(arguments)
    rest.reverse()
    while rest and rest[-1].startswith("-") and rest[-1] not in ("-", "--"):
        word = rest.pop()
        for name, value, words, has_value in _options_of(word):
            if has_value or not rest:
                options.append((name, value, words))
            else:
                options.append((name, rest[-1], [*words, rest.pop()]))
    rest.reverse()
    return options, rest


def _options_of(word: str) -> Iterator[tuple[str, str, list[str], bool]]:
    """Yield (name, value, words, whether no value follows) of the options in a word."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        name = _full_name(name)
        yield (name if name in _KNOWN else ""), value, [word], bool(equals) or name in _FLAGS
        return
    for position, letter in enumerate(word[1:], 2):
        name = next((long for long, short in _KNOWN.items() if short == letter), "")
        if letter in _SHORT_FLAGS:
            yield name, "", [f"-{letter}"], True
            continue
        value = word[position:]
        yield name, value, [f"-{letter}{value}"], bool(value) or letter in _SHORT_OPTIONAL
        return


def _full_name(name: str) -> str:
    """Return the option that a shortened name means; the name itself if that is unclear."""
    names = [*_FLAGS, *(long for long in _KNOWN if long not in _FLAGS)]
    matches = [long for long in names if long.startswith(name)]
    return matches[0] if name not in names and len(matches) == 1 else name
