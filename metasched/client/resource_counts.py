"""Tasks, processors, nodes and GPUs of a job, completed as by sbatch.

The drop-in commands import this module: it keeps to Python 3.9 and imports nothing slow.
"""

from __future__ import annotations

from metasched.errors import ParseError
from metasched.model.units import MAX_NUMBER

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MAX_ALTERNATIVES = 16  # of generic resources
GPU_OPTIONS = ("gpus", "gpus_per_node", "gpus_per_task")


class ResourceConflict(ParseError):
    """Options that contradict each other; `option` names the first of them."""

    def __init__(self, option: str, problem: str, fix: str) -> None:
        super().__init__(problem, fix)
        self.option = option


def gres_alternatives(texts: Mapping[str, str]) -> list[dict[str, str]]:
    """Return options of generic resources for each alternative, as in `a100:2|h100:1`.

    `texts` are their values by name. ResourceConflict if several have alternatives.
    """
    names = [name for name in texts if "|" in texts[name]]
    if not names:
        return [dict(texts)]
    if len(names) > 1:
        raise ResourceConflict(names[1], "alternatives in two options", "write them in one of them")
    parts = texts[names[0]].split("|")
    if len(parts) > MAX_ALTERNATIVES:
        raise ResourceConflict(
            names[0], f"{len(parts)} alternatives", f"write at most {MAX_ALTERNATIVES}"
        )
    return [{**texts, names[0]: part} for part in parts]


def with_alternatives(choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first of several results of `complete_counts`, with the `gres` of the others."""
    if len(choices) == 1:
        return choices[0]
    return {**choices[0], "gres_alternatives": [choice["gres"] for choice in choices[1:]]}


def with_licence_choices(choices: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Return the fields of a request for licences, from its alternatives."""
    if len(choices) == 1:
        return {"licences": choices[0]}
    return {"licences": choices[0], "licence_choices": choices}


def complete_counts(
    tasks: int | None,
    nodes: int | None,
    tasks_per_node: int | None,
    cpus_per_task: int | None,
    gres: Mapping[str, int],
    gpus: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """Return `tasks`, `cpus_per_task`, `nodes`, `tasks_per_node` and `gres`; None: not given.

    `nodes` alone gives a task per node. `tasks_per_node` gives the tasks for a number of nodes, or
    the nodes for a number of tasks. `gpus` are the counts of generic resources by the option of
    `GPU_OPTIONS`; those per job or task become counts per node. ResourceConflict if the counts
    contradict each other.
    """
    if nodes is None and tasks_per_node is not None:
        tasks = tasks or tasks_per_node
        nodes = -(-tasks // tasks_per_node)
    elif nodes is not None:
        tasks = tasks or nodes * (tasks_per_node or 1)
        if tasks < nodes:
            raise ResourceConflict(
                "nodes",
                f"{tasks} tasks cannot fill {nodes} nodes",
                "ask for more tasks or fewer nodes",
            )
        if tasks_per_node is not None and nodes * tasks_per_node < tasks:
            raise ResourceConflict(
                "ntasks_per_node",
                f"{tasks} tasks do not fit on {nodes} nodes with {tasks_per_node} each",
                "ask for more nodes",
            )
    tasks = tasks or 1
    cpus = cpus_per_task or 1
    if tasks * cpus > MAX_NUMBER:
        raise ResourceConflict(
            "ntasks", f"{tasks} tasks of {cpus} processors", f"ask for fewer than {MAX_NUMBER}"
        )
    counts = dict(gres)
    if len(gpus) > 1 or (gpus and any(name.partition(":")[0] == "gpu" for name in counts)):
        raise ResourceConflict(
            next(iter(gpus)),
            "GPUs requested twice",
            "give one of --gpus, --gpus-per-node, --gpus-per-task and --gres",
        )
    for option, requested in gpus.items():
        if option != "gpus_per_node":
            # counts are per node: the number of nodes must be fixed for the job's total to be right
            nodes = nodes or 1
        for name, count in requested.items():
            total = count * {"gpus": 1, "gpus_per_task": tasks}.get(option, nodes or 1)
            if total % (nodes or 1):
                raise ResourceConflict(
                    option,
                    f"{total} GPUs cannot be shared equally by {nodes} nodes",
                    f"ask for a multiple of {nodes}",
                )
            counts[name] = total // (nodes or 1)
    values = {"tasks": tasks, "cpus_per_task": cpus, "nodes": nodes, "gres": counts}
    if tasks_per_node is not None:
        values["tasks_per_node"] = tasks_per_node
    return values
