"""The `spec` file of a job folder: fields that a supervisor reads (see `supervisor.py`).

The fields that all tasks of a submission share are stored once. The fields of a single task are
added when it starts.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec

from metasched.adapters.base import Submission, task_variables
from metasched.adapters.local.queue_store import Requirements
from metasched.adapters.slurm_dialect import batch_variables
from metasched.model.arrays import parse_array, task_number
from metasched.model.manager_options import ManagerOptions
from metasched.model.output_paths import expand_task_fields, first_node


class TaskTemplate(msgspec.Struct, frozen=True):
    """The parts of a submission from which each task's own fields are made. Stored as JSON."""

    job: int  # id
    array: str | None  # the range as submitted
    output: str  # path, with patterns
    error: str | None  # path, with patterns; None: as `output`
    exports_job_id: bool = False  # as in `Submission`


def spec_field(key: str, value: str) -> bytes:
    """Return a field of a job's `spec`, encoded."""
    return f"{key}={value}".encode(errors="surrogateescape")


def shared_header(
    submission: Submission, cluster: str, requirements: Requirements, kill_wait: float
) -> bytes:
    """Return the fields that the tasks of a submission share.

    They are a `TaskTemplate` in JSON, then fields of `spec`.
    """
    job, payload = submission.job, submission.payload
    template = TaskTemplate(
        job.id, job.array, payload.output, payload.error, submission.exports_job_id
    )
    environment = submission.environment(submission.indices[0], cluster)
    environment["METASCHED_CPUS"] = str(requirements.cpus)
    if variables := batch_variables(submission, cluster, requirements.cpus):
        environment |= variables | {"SLURM_JOB_NODELIST": first_node(socket.gethostname())}
    fields = [msgspec.json.encode(template)]
    fields += [spec_field("argument", text) for text in payload.arguments]
    fields += [spec_field("environment", f"{name}={text}") for name, text in environment.items()]
    fields.append(spec_field("directory", payload.directory))
    fields.append(spec_field("umask", str(payload.umask)))
    if requirements.limit is not None:
        fields.append(spec_field("limit", repr(requirements.limit)))
    memory = job.memory or (job.memory_per_cpu or 0) * job.cpus
    if memory:
        fields.append(spec_field("memory", str(memory)))
    fields.append(spec_field("kill_wait", repr(kill_wait)))
    requested = job.manager_options or ManagerOptions()
    if requested.append_output:
        fields.append(b"append=1")
    if requested.signal is not None:
        target = "steps" if not requested.signal.batch_only else "script"
        if target == "script" and submission.runs_as_child:
            target = "child"
        number, seconds = requested.signal.number, requested.signal.seconds
        fields.append(spec_field("early_signal", f"{number} {seconds} {target}"))
    return b"\0".join(fields)


def gpu_indices(gres: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the GPU indices of each gres ("gpu", "gpu:a100"), numbered over all of them."""
    indices: dict[str, list[int]] = {}
    first = 0
    for name, count in gres.items():
        if name.partition(":")[0] == "gpu":
            indices[name] = list(range(first, first + count))
            first += count
    return indices


def task_spec(
    header: bytes,
    script: bytes,
    index: int,
    native_id: int,
    devices: Mapping[str, list[int]],
    limit: float | None = None,
) -> bytes:
    """Return the `spec` of a task: `header` of its submission, its id, the GPUs that it may use.

    `limit` in seconds replaces that of the submission; None: it does not.
    """
    template, _, shared_fields = header.partition(b"\0")
    fields = _fields_of(msgspec.json.decode(template, type=TaskTemplate), index)
    fields.append(spec_field("environment", f"METASCHED_NATIVE_ID={native_id}"))
    if gpus := sorted(i for indices in devices.values() for i in indices):
        visible = ",".join(map(str, gpus))
        fields.append(spec_field("environment", f"CUDA_VISIBLE_DEVICES={visible}"))
    if limit is not None:
        fields.append(spec_field("limit", repr(limit)))
    fields.append(b"devices=" + msgspec.json.encode(devices))
    return b"\0".join([shared_fields, *fields]) + b"\0\0" + script


def _fields_of(template: TaskTemplate, index: int) -> list[bytes]:
    """Return the task's own fields of `spec`; they come last and override shared fields."""
    array = None if template.array is None else parse_array(template.array)
    variables = task_variables(template.job, array, index, template.exports_job_id)
    fields = [spec_field("environment", f"{name}={value}") for name, value in variables.items()]
    node, number = first_node(socket.gethostname()), task_number(template.job, array, index)
    for stream, path in (("output", template.output), ("error", template.error)):
        if path is not None:
            fields.append(spec_field(stream, expand_task_fields(path, index, number, node)))
    return fields
