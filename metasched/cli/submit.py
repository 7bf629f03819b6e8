"""The command `submit`."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence

from metasched.cli.connect import connect
from metasched.cli.messages import warn
from metasched.client.job_request import prepare_submission
from metasched.client.options import InvalidSubmission


def submit(options: Mapping[str, object], command: Sequence[str]) -> int:
    """Submit a job and print its id; with --wait, wait and return the exit code of the job."""
    submission, warnings = prepare_submission(options, command, environ=os.environ, now=time.time())
    if submission["strict"] and warnings:
        raise InvalidSubmission(f"{warnings[0]}; fix it, or leave out --strict")
    for message in warnings:
        warn(message)
    config = options.get("config")
    client = connect(None if config is None else str(config))
    [answer] = client.submit(submission)
    for message in answer.get("warnings") or ():
        warn(str(message))
    if "json" in options:
        keys = ["job", "priority", "cluster", "expected_start", "expected_early", "expected_late"]
        keys += ["why"] if "why" in answer else []
        print(json.dumps({key: answer.get(key) for key in keys}))
    elif "parsable" in options and not submission["dry_run"]:
        print(answer["job"])
    else:
        location = f"cluster {answer['cluster']}" if answer["cluster"] else "queued in metasched"
        tasks = f" of {answer['tasks']} tasks" if answer.get("tasks") else ""
        message = f"Job {answer['job']}{tasks}:"
        if submission["dry_run"]:
            message = "Dry run, nothing submitted. Outcome:"
        print(f"{message} priority {answer['priority']}, {location}")
        if (start := answer["expected_start"]) is not None:
            between = f"{answer['expected_early']} and {answer['expected_late']}"
            print(f"Expected to start at {start}, with 80% probability between {between}.")
        if answer.get("why"):
            from metasched.cli.explain import print_explanation

            print_explanation(answer["why"])
    if "wait" not in options or submission["dry_run"]:
        return 0
    sys.stdout.flush()
    from metasched.cli.job_commands import exit_code, wait_until_ended

    return exit_code(wait_until_ended(client, [str(answer["job"])]))
