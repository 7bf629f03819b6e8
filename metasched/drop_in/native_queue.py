"""The clusters' own jobs in a listing of `squeue`."""

from __future__ import annotations

import os

from metasched.drop_in.native_listing import Listing, collect

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metasched.drop_in.format_language import Format
    from metasched.drop_in.native_clusters import NativeCluster

_FILTERS = (
    *("account", "licenses", "name", "nodelist", "partition", "qos", "reservation", "sort"),
    "states",
)


class NativeQueue:
    """Real commands that list jobs of clusters (None: the default cluster) in a format.

    They list the jobs `ids`, or without ids all jobs of the named users, else of the caller. Jobs
    that metasched has sent are listed only by their ids.
    """

    def __init__(
        self,
        clusters: Sequence[NativeCluster | None],
        format: Format,
        options: Mapping[str, str],
        ids: Sequence[str],
        tag_prefixes: tuple[str, ...],
    ) -> None:
        """Start the commands."""
        self._format, self._tag_prefixes = format, () if ids else tag_prefixes
        self._names = [column.field.names[0] for column in format.columns]
        filters = {name: options[name] for name in _FILTERS if options.get(name)}
        if ids:
            filters["jobs"] = ",".join(ids)
        own = str(os.getuid())
        user = own if "me" in options else options.get("user") or ("" if ids else own)
        if user:
            filters["user"] = user
        words = [f"--{name}={value}" for name, value in filters.items()]
        if "array" in options:
            words.append("--array")
        self._listings = [self._start(cluster, words) for cluster in clusters]

    def _start(self, cluster: NativeCluster | None, words: Sequence[str]) -> Listing:
        names = [*self._names, cluster.tag_field if cluster else "comment"]

        def arguments(delimiter: str) -> list[str]:
            fields = ",".join(f"{name}:{delimiter}" for name in names)
            return ["--noheader", *words, f"--Format={fields}"]

        return Listing("squeue", cluster, arguments, len(names))

    def lines(self, seconds: float, is_required: bool) -> tuple[dict[str, list[str]], int]:
        """Return the lines of each cluster, "" for the default cluster, and an exit code."""
        answers, code = collect("squeue", self._listings, seconds, is_required)
        return {
            cluster.name if cluster else "": self._lines(cluster, records)
            for cluster, records in answers
        }, code

    def _lines(self, cluster: NativeCluster | None, records: Sequence[list[str]]) -> list[str]:
        lines = []
        for *cells, tag in records:
            if tag.startswith(self._tag_prefixes):
                continue
            if cluster is not None:
                cells = [
                    cluster.name if name == "cluster" else cell
                    for name, cell in zip(self._names, cells)
                ]
            lines.append(self._format.join(cells))
        return lines
