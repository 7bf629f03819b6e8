"""Federations of clusters made of real traces: seeded windows of them, at a chosen load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from metasched.experiments.harness import trace
from metasched.simulate.clusters import SimulatedCluster
from metasched.simulate.synthetic import Grid
from metasched.simulate.workload import Overlay, Request, Workload, merged

# 70% of the jobs get a deadline at submission + limit * (1 + u), u uniform in 0.5..8
LAID_OVER = Overlay(deadlines=0.7, margin=(0.5, 8.0), gold=0.1, silver=0.3)


@dataclass(frozen=True)
class Site:
    """The jobs of one trace (of one `partition` of it) and the clusters that they had.

    Where these are several, each user's home is drawn among them by their processors: the trace
    does not tell. One job in `thinned` is kept, so that a window of some thousand jobs is long
    beside the jobs themselves.
    """

    trace: str
    clusters: Mapping[str, int]  # processors, by name
    partition: str = ""
    thinned: int = 1

    @property
    def cpus(self) -> int:
        return sum(self.clusters.values())


@dataclass(frozen=True)
class Federation:
    """So many `jobs` of its sites: a window of each, drawn by the seed, that begins at 0.

    Times between submissions are scaled so that the work of each window is `load` times what its
    own clusters can do in it; the windows are cut where the shortest ends. `direct` is the share
    of the users who submit to their home cluster, past the meta-scheduler.
    """

    name: str
    sites: tuple[Site, ...]
    jobs: int
    load: float
    direct: float = 0.0

    def __call__(self, seed: int) -> Grid:
        """The workload and the clusters of one seed."""
        windows = [self._window(site, seed) for site in self.sites]
        end = min(window.requests[-1].job.submitted for window in windows)
        cut = [
            replace(w, requests=tuple(r for r in w.requests if r.job.submitted <= end))
            for w in windows
        ]
        federation = merged(self.name, cut)
        homes = [
            request._replace(home=self._home(request, seed), direct=self._direct(request, seed))
            for request in federation.requests
        ]
        clusters = [
            SimulatedCluster(name=name, cpus=cpus)
            for site in self.sites
            for name, cpus in site.clusters.items()
        ]
        clusters.sort(key=lambda cluster: -cluster.cpus)
        workload = replace(federation, requests=tuple(homes))
        return Grid(LAID_OVER.over(workload, seed), tuple(clusters))

    def _window(self, site: Site, seed: int) -> Workload:
        """Jobs of one site, from 0 on, at the load."""
        largest = max(site.clusters.values())
        log = [
            request
            for request in trace(site.trace, bool(site.partition)).requests
            if request.home == site.partition
            and request.job.cpus <= largest
            and request.number % site.thinned == seed % site.thinned
        ]
        number = min(self.jobs // len(self.sites), len(log) // 2)  # there must be several windows
        name = "+".join(site.clusters)
        first = int(Random(f"{seed}/window/{name}").random() * (len(log) - number))
        window = log[first : first + number]
        origin = window[0].job.submitted
        span = window[-1].job.submitted - origin
        work = sum(request.job.cpus * request.ran for request in window)
        pace = work / (site.cpus * span * self.load)
        requests = [
            r._replace(job=replace(r.job, submitted=(r.job.submitted - origin) * pace))
            for r in window
        ]
        return Workload(name, tuple(requests), site.cpus)

    def _home(self, request: Request, seed: int) -> str:
        site = next(site for site in self.sites if "+".join(site.clusters) == request.home)
        names, sizes = list(site.clusters), list(site.clusters.values())
        draw = Random(f"{seed}/home/{_owner(request)}")
        able = [n for n, size in zip(names, sizes, strict=True) if size >= request.job.cpus]
        chosen = draw.choices(names, sizes)[0]
        return chosen if chosen in able else able[0]

    def _direct(self, request: Request, seed: int) -> bool:
        return Random(f"{seed}/direct/{_owner(request)}").random() < self.direct


def _owner(request: Request) -> str:
    """Who decides for the job: its user, or where the trace tells none, nobody else."""
    return request.job.user or f"job {request.job.id}"


SITES: dict[str, Sequence[Site]] = {
    "SP2": (Site("SDSC-SP2.swf.gz", {"sdsc": 128}), Site("KTH-SP2.swf.gz", {"kth": 100})),
    "CERIT": (Site("CERIT-wagap-2013.swf.gz", {"zewura": 1600, "zegox": 576}),),
    # the log does not tell how many processors the sites had: here as many as make .7 of the mean
    # load of the three with the most work, a fifth of it
    "LCG": (
        Site("LCG-2005-1.swf.gz", {"site40": 104}, "40", 5),
        Site("LCG-2005-1.swf.gz", {"site52": 71}, "52", 5),
        Site("LCG-2005-1.swf.gz", {"site41": 52}, "41", 5),
    ),
}
