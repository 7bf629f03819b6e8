"""The clusters' own jobs in a listing of `sacct`."""

from __future__ import annotations

import os

from metasched.drop_in.format_language import printable
from metasched.drop_in.native_listing import Listing, collect

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from metasched.drop_in.native_clusters import NativeCluster

_FILTERS = (
    *("account", "constraints", "endtime", "name", "ncpus", "nnodes", "nodelist", "partition"),
    *("qos", "starttime", "state", "units", "wckeys"),
)
_FLAGS = ("allocations", "allusers", "duplicates", "noconvert", "truncate")
# fields in which a job of metasched has its tag; sacct keeps comments only where it is asked to
_TAGGED = ("jobid", "comment", "wckey", "jobname", "submitline")
_SECONDS = 10.0  # for all clusters together


class NativeRecords:
    """Real commands that list jobs of clusters (None: the default cluster) from accounting.

    They list the jobs `ids`, or without ids all jobs of the named users, else of the caller. Jobs
    that metasched has sent are listed only by their ids.
    """

    def __init__(
        self,
        clusters: Sequence[NativeCluster | None],
        headings: Sequence[str],
        options: Mapping[str, str],
        ids: Sequence[str],
        tag_prefixes: tuple[str, ...],
    ) -> None:
        """Start the commands; `headings` are those of the fields."""
        self._headings, self._tag_prefixes = headings, () if ids else tag_prefixes
        words = [f"--{name}={options[name]}" for name in _FILTERS if options.get(name)]
        words += [f"--{name}" for name in _FLAGS if name in options]
        if ids:
            words.append(f"--jobs={','.join(ids)}")
        elif "allusers" not in options:
            words.append(f"--user={options.get('user') or os.getuid()}")

        def arguments(delimiter: str) -> list[str]:
            fields = ",".join((*_TAGGED, *headings))
            form = ("--noheader", "--parsable", f"--delimiter={delimiter}", f"--format={fields}")
            return [*words, *form]

        width = len(_TAGGED) + len(headings)
        self._listings = [Listing("sacct", cluster, arguments, width) for cluster in clusters]

    def cells(
        self, sent: Collection[tuple[str | None, str | None]], is_required: bool
    ) -> tuple[list[tuple[str, list[str]]], int]:
        """Return the cluster and the texts of each job and step, and an exit code.

        `sent` are clusters and native ids of jobs of metasched.
        """
        answers, code = collect("sacct", self._listings, _SECONDS, is_required)
        lines = []
        for cluster, records in answers:
            name = cluster.name if cluster else ""
            own = {native_id for of, native_id in sent if self._tag_prefixes and of == name}
            own |= {record[0] for record in records if self._has_tag(record)}
            for record in records:
                if record[0].partition(".")[0] in own:
                    continue
                cells = map(printable, record[len(_TAGGED) :])
                lines.append(
                    (
                        name,
                        [
                            name if name and heading == "Cluster" else cell
                            for heading, cell in zip(self._headings, cells)
                        ],
                    )
                )
        return lines, code

    def _has_tag(self, record: Sequence[str]) -> bool:
        """Return whether metasched has sent a job, by a field or by an option of its submission."""
        words = (*record[1:4], *(word.partition("=")[2] for word in record[4].split()))
        return any(word.startswith(self._tag_prefixes) for word in words)
