"""Federations of clusters made from real traces: seeded windows of them, at a chosen load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from msgspec import structs

from metasched.laboratory.experiments.harness import ExperimentError, load_trace
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.synthetic import Scenario
from metasched.laboratory.simulate.workload import Overlay, Workload, WorkloadEntry, merge_workloads

# 70% of the jobs get a deadline at submission + limit * (1 + u), u uniform in 0.5..8
TOO_LARGE = "larger than each cluster of its site"  # why a job is left out
OVERLAY = Overlay(deadlines=0.7, margin=(0.5, 8.0), gold=0.1, silver=0.3)


@dataclass(frozen=True)
class TraceSite:
    """The jobs of a trace and the clusters of its site.

    With several clusters each user's home is drawn in proportion to their processors: the trace
    does not record it. Some traces are thinned, so that a window of some thousand jobs is long
    compared with the jobs.
    """

    trace_name: str  # file name
    clusters: Mapping[str, int]  # processors, by name
    partition: str = ""  # of the trace; "": all jobs
    thinning: int = 1  # a job is kept of so many

    @property
    def cpus(self) -> int:
        return sum(self.clusters.values())


@dataclass(frozen=True)
class Federation:
    """The scenarios of a federation: a window of each site's trace, drawn by the seed.

    Each window begins at 0. Times between submissions are scaled to the load. Windows are cut
    where the shortest ends.
    """

    name: str
    sites: tuple[TraceSite, ...]
    jobs: int  # of all windows, before these are cut
    load: float  # work of a window / capacity of its clusters during the window
    direct_share: float = 0.0  # of the users: submit to their home cluster, bypassing metasched
    overlay: Overlay = OVERLAY

    def __call__(self, seed: int) -> Scenario:
        """Return the workload and the clusters of a seed."""
        windows = [self._window(site, seed) for site in self.sites]
        end = min(window.entries[-1].job.submitted for window, _ in windows)
        too_large = sum(time <= end for _, times in windows for time in times)
        truncated = [
            replace(
                window,
                entries=tuple(entry for entry in window.entries if entry.job.submitted <= end),
            )
            for window, _ in windows
        ]
        federation = merge_workloads(self.name, truncated)
        entries = [
            entry._replace(home=self._draw_home(entry, seed), direct=self._draw_direct(entry, seed))
            for entry in federation.entries
        ]
        clusters = [
            SimulatedCluster(name=name, cpus=cpus)
            for site in self.sites
            for name, cpus in site.clusters.items()
        ]
        clusters.sort(key=lambda cluster: -cluster.cpus)
        dropped = {TOO_LARGE: too_large} if too_large else {}
        workload = replace(federation, entries=tuple(entries), dropped=dropped)
        return Scenario(self.overlay.apply(workload, seed), tuple(clusters))

    def _window(self, site: TraceSite, seed: int) -> tuple[Workload, list[float]]:
        """Return a window of jobs of a site, from time 0, scaled to the load.

        Beside it, the submissions of the jobs in the window that no cluster of the site can run.
        ExperimentError if the trace has too few jobs.
        """
        largest = max(site.clusters.values())
        sampled = [
            entry
            for entry in load_trace(site.trace_name, bool(site.partition)).entries
            if entry.home == site.partition and entry.number % site.thinning == seed % site.thinning
        ]
        log = [entry for entry in sampled if entry.job.cpus <= largest]
        count = min(self.jobs // len(self.sites), len(log) // 2)  # leave room for several windows
        name = "+".join(site.clusters)
        first = int(Random(f"{seed}/window/{name}").random() * (len(log) - count))
        window = log[first : first + count]
        origin = window[0].job.submitted if window else 0.0
        span = window[-1].job.submitted - origin if window else 0.0
        work = sum(entry.job.cpus * entry.run_time for entry in window)
        if not (span > 0 and work > 0):
            raise ExperimentError(
                f"too few jobs for {name} in {site.trace_name}; take a trace with more, "
                "or larger clusters"
            )
        time_scale = work / (site.cpus * span * self.load)
        entries = [
            entry._replace(
                job=structs.replace(
                    entry.job, submitted=(entry.job.submitted - origin) * time_scale
                )
            )
            for entry in window
        ]
        too_large = [
            (entry.job.submitted - origin) * time_scale
            for entry in sampled
            if entry.job.cpus > largest and 0 <= entry.job.submitted - origin <= span
        ]
        return Workload(name, tuple(entries), site.cpus), too_large

    def _draw_home(self, entry: WorkloadEntry, seed: int) -> str:
        site = next(site for site in self.sites if "+".join(site.clusters) == entry.home)
        names, sizes = list(site.clusters), list(site.clusters.values())
        rng = Random(f"{seed}/home/{_owner_key(entry)}")
        fitting = [name for name, size in zip(names, sizes, strict=True) if size >= entry.job.cpus]
        drawn = rng.choices(names, sizes)[0]
        return drawn if drawn in fitting else fitting[0]

    def _draw_direct(self, entry: WorkloadEntry, seed: int) -> bool:
        return Random(f"{seed}/direct/{_owner_key(entry)}").random() < self.direct_share


def _owner_key(entry: WorkloadEntry) -> str:
    """Return the key of draws for a job: its user, or the job if the trace records no user."""
    return entry.job.user or f"job {entry.job.id}"


SITES: dict[str, Sequence[TraceSite]] = {
    "SP2": (TraceSite("SDSC-SP2.swf.gz", {"sdsc": 128}), TraceSite("KTH-SP2.swf.gz", {"kth": 100})),
    "CERIT": (TraceSite("CERIT-wagap-2013.swf.gz", {"zewura": 1600, "zegox": 576}),),
    # The log records no processors of sites. These are the three with the most work; with so many
    # processors, a fifth of their jobs is a mean load of .7.
    "LCG": (
        TraceSite("LCG-2005-1.swf.gz", {"site40": 104}, "40", 5),
        TraceSite("LCG-2005-1.swf.gz", {"site52": 71}, "52", 5),
        TraceSite("LCG-2005-1.swf.gz", {"site41": 52}, "41", 5),
    ),
}
