"""`sbatch`: submits a job."""

from __future__ import annotations

import os
import sys
import time

from metasched.client.client import Client
from metasched.client.connection import ClientError, DaemonUnreachable, ResponseLost
from metasched.client.environment import current_umask, exported_environment, is_utf8
from metasched.drop_in.command import VERSION_LINE, CommandError, connect
from metasched.drop_in.sbatch_options import options_of_environment, parse_arguments, usage
from metasched.drop_in.sbatch_script import (
    find_script,
    options_of_dialects,
    read_script,
    script_options,
    wrap,
)
from metasched.drop_in.sbatch_values import Conversion, export_entries, merge
from metasched.errors import ParseError

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from metasched.client.job_answers import JobRow

_OPEN = ("queued", "held", "dispatching", "pending", "running", "suspended", "unknown")
_RETRY_INTERVAL = 5.0  # seconds between two questions to a daemon that does not answer


def main(arguments: Sequence[str]) -> int:
    """Submit the script that the arguments name. Return the exit code."""
    command_line, words = parse_arguments(arguments)
    given = dict(command_line)
    if "help" in given or "usage" in given:
        print(usage())
        return 0
    if "version" in given:
        print(VERSION_LINE)
        return 0
    if ":" in words[:1]:
        raise CommandError(
            "sbatch: error: heterogeneous jobs are not supported; submit the parts one by one"
        )
    if "wrap" in given and words:
        raise CommandError("sbatch: error: Script arguments not permitted with --wrap option")
    if "quiet" in given and "verbose" in given:
        raise CommandError("sbatch: error: don't specify both --verbose (-v) and --quiet (-Q)")
    path = find_script(words[0]) if words else None
    file = os.path.basename(path) if path else "stdin"
    script = wrap(given["wrap"] or "") if "wrap" in given else read_script(path)
    directives = script_options(script, file)
    environment = options_of_environment(os.environ)
    if "ignore-pbs" not in {**dict(directives), **dict(environment), **given}:
        directives = [*options_of_dialects(script, file), *directives]
    values = merge((directives, environment, command_line))
    connection = connect()
    if (names := values.get("clusters")) and "all" not in names.split(","):
        from metasched.drop_in.native_clusters import read_clusters  # few calls need it

        chosen = read_clusters(connection).choose("sbatch", names) or []
        values["clusters"] = ",".join(cluster.name for cluster in chosen)
    conversion = Conversion(values, time.time())
    default_name = "wrap" if "wrap" in given else file if path else "sbatch"
    submission = _submission(conversion, values, script, words[1:], default_name)
    client = Client(connection.path)
    try:
        [answer] = client.submit(submission)
    except (DaemonUnreachable, ResponseLost):
        raise
    except ClientError as error:
        failed = "sbatch: error: Batch job submission failed"
        if "test-only" in values:
            failed = "allocation failure"
        raise CommandError(f"{failed}: {error}") from None
    if warnings := [*conversion.warnings, *(answer.get("warnings") or ())]:
        print(f"sbatch: Warning: {'; '.join(warnings)}", file=sys.stderr)
    if "test-only" in values:
        cluster = answer["cluster"]
        place = f"start on cluster {cluster}" if cluster else "wait in metasched"
        print(f"sbatch: Job would {place}", file=sys.stderr)
        return 0
    if "quiet" not in given:
        print(answer["job"] if "parsable" in values else f"Submitted batch job {answer['job']}")
    if "wait" not in values:
        return 0
    sys.stdout.flush()
    return _wait(client, str(answer["job"]))


def _submission(
    conversion: Conversion,
    values: dict[str, str | None],
    script: str,
    script_arguments: Sequence[str],
    default_name: str,
) -> dict[str, Any]:
    """Return the body of `POST /jobs`."""
    try:
        environment = exported_environment(
            export_entries(values.get("export")), os.environ, conversion.warnings
        )
    except ParseError as error:
        raise CommandError(f"sbatch: error: --export {error.problem}; {error.fix}") from None
    for text in (script, default_name, *script_arguments):
        if not is_utf8(text):
            raise CommandError("sbatch: error: a command or argument that is not UTF-8 text")
    job = {
        "script": "script",
        "environment": "environment",
        "umask": current_umask(),
        "arguments": list(script_arguments),
        "name": default_name,
        **conversion.fields,
    }
    return {
        "jobs": [job],
        "scripts": {"script": script},
        "environments": {"environment": environment},
        "dry_run": "test-only" in values,
    }


def _wait(client: Client, job: str) -> int:
    """Wait until all tasks of a job have ended. Return the largest of their exit codes."""
    while True:
        try:
            rows = client.wait([job])
        except (DaemonUnreachable, ResponseLost) as error:
            print(f"sbatch: error: {error}; retrying", file=sys.stderr)
            time.sleep(_RETRY_INTERVAL)
            continue
        if not any(row["state"] in _OPEN for row in rows):
            return max((_exit_code(row) for row in rows), default=0)


def _exit_code(row: JobRow) -> int:
    """Return the exit code of a task; 1 if it has not ended by itself."""
    code: int | None = row["exit_code"]
    if row["state"] == "completed":
        return 0
    return code if row["state"] == "failed" and code is not None and 0 < code < 128 else 1
