"""Route that lists the partitions of all clusters, with their nodes by kind and load."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.whole_answers import live_answer
from metasched.client.site_answers import NodesRow, PartitionRow
from metasched.daemon.service import SchedulerService
from metasched.model.cluster import Cluster, NodeCapacity, Partition

router = APIRouter()


@router.get("/partitions", response_model=list[PartitionRow])
async def partitions(
    request: Request, _: CurrentCaller, service: CurrentService, readers: CurrentReaders
) -> Response:
    """List partitions by the names that jobs request, each cluster on its own."""
    rows = (row for cluster in service.core.clusters for row in _rows(service, cluster))
    return await live_answer(request, readers, rows)


def _rows(service: SchedulerService, cluster: Cluster) -> Iterator[PartitionRow]:
    info, unreachable_reason = service.core.cluster_status(cluster.name)
    if info is None:
        return
    drained = service.core.find_drain(cluster.name) is not None
    for name, partition in named_partitions(cluster, info.partitions):
        up = partition.up and not unreachable_reason
        yield {
            "partition": name,
            "cluster": cluster.name,
            "state": "drain" if drained and up else "up" if up else "down",
            "default": partition is info.partition(None),
            "time_limit": partition.max_time,
            "default_time": partition.default_time,
            "max_nodes": partition.max_nodes,
            "nodes": [_node_row(nodes) for nodes in partition.nodes],
        }


def named_partitions(
    cluster: Cluster, partitions: tuple[Partition, ...]
) -> list[tuple[str, Partition]]:
    """Return the partitions that a job can name, by metasched's names."""
    by_name = {partition.name: partition for partition in partitions}
    by_name.update(
        {
            name: by_name[manager_name]
            for name, manager_name in cluster.maps.get("partition", {}).items()
            if manager_name in by_name
        }
    )
    return list(by_name.items())


def _node_row(nodes: NodeCapacity) -> NodesRow:
    return {
        "count": nodes.count,
        "up": nodes.up,
        "cpus": nodes.cpus,
        "free_cpus": nodes.free_cpus,
        "memory": nodes.memory,
        "gres": dict(nodes.gres),
        "features": list(nodes.features),
    }
