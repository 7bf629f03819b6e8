"""Options of a job that some kinds of managers cannot honour. Pure.

A cluster whose adapter does not list such an option in `Capabilities.job_options` takes no job with
it: no option is lost in silence.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec import Meta

from metasched.model.host_lists import compress_hosts, count_hosts, expand_hosts
from metasched.model.request_bounds import MAX_OPTION_TEXT

SIGNAL = "--signal"
SIGNAL_AT_DEFAULT = "--signal without --time"  # before the end by the cluster's own limit
APPEND = "--open-mode=append"
NICE = "--nice"
RAISE = "--nice below 0"
NODELIST = "--nodelist"
NODELISTS = "--nodelist with several nodes"
EXCLUDE = "--exclude"
UNLIMITED = "--time=0"
ALL_OPTIONS = (
    *(SIGNAL, SIGNAL_AT_DEFAULT, APPEND, NICE, RAISE),
    *(NODELIST, NODELISTS, EXCLUDE, UNLIMITED),
)

MAX_NAMED_HOSTS = 1000  # in a list of a job
MAX_NICE = 2**31 - 6  # as in Slurm
_MAX_SIGNAL = 64
_MAX_SECONDS = 65535  # as in Slurm


class EarlySignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal before the time limit, as sbatch --signal. ValueError for a value out of range."""

    number: int
    seconds: int = 60  # before the time limit
    batch_only: bool = False  # to the process of the script alone; else to its steps alone
    may_overlap: bool = False  # the job may overlap a reservation of Slurm that allows it

    def __post_init__(self) -> None:
        if not 1 <= self.number <= _MAX_SIGNAL:
            raise ValueError(f"signal is {self.number}; it must be 1..{_MAX_SIGNAL}")
        if not 0 <= self.seconds <= _MAX_SECONDS:
            raise ValueError(f"signal time is {self.seconds}; it must be 0..{_MAX_SECONDS}")


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of sbatch that managers honour, not metasched. ValueError for an invalid value."""

    signal: EarlySignal | None = None
    append_output: bool = False  # the files of output and errors are not truncated
    nice: int = 0  # lowers the priority in the manager's queue
    nodelist: Annotated[str, Meta(max_length=MAX_OPTION_TEXT)] = ""  # hosts that it gets: n[1-3],m1
    exclude: Annotated[str, Meta(max_length=MAX_OPTION_TEXT)] = ""  # hosts that it must not get
    unlimited: bool = False  # no time limit; without it the default of the cluster applies
    wckey: Annotated[str, Meta(max_length=MAX_OPTION_TEXT)] = (
        ""  # of Slurm; stored on other clusters
    )

    def __post_init__(self) -> None:
        if abs(self.nice) > MAX_NICE:
            raise ValueError(f"nice is {self.nice}; it must be -{MAX_NICE}..{MAX_NICE}")
        for host_list in (self.nodelist, self.exclude):
            count_hosts(host_list, MAX_NAMED_HOSTS)

    def without_hosts(self, hosts: Collection[str]) -> ManagerOptions:
        """Return these options, with further hosts that the job must not get, if they have room."""
        names = {*expand_hosts(self.exclude), *hosts}
        if len(names) > MAX_NAMED_HOSTS:
            return self
        return msgspec.structs.replace(self, exclude=compress_hosts(names))

    def needed(self, has_limit: bool) -> tuple[str, ...]:
        """Return the options that a cluster must support; `has_limit`: the job has a time limit."""
        ends_by_default = not has_limit and not self.unlimited
        several = count_hosts(self.nodelist) > 1
        requested = {
            SIGNAL: self.signal is not None and not ends_by_default,
            SIGNAL_AT_DEFAULT: self.signal is not None and ends_by_default,
            APPEND: self.append_output,
            NICE: self.nice > 0,
            RAISE: self.nice < 0,
            NODELIST: bool(self.nodelist) and not several,
            NODELISTS: several,
            EXCLUDE: bool(self.exclude),
            UNLIMITED: self.unlimited,
        }
        return tuple(name for name, is_given in requested.items() if is_given)
