"""The commands `story` and `explain`."""

import json as json_format
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.completion import complete_jobs
from metasched.cli.connect import connect
from metasched.cli.job_commands import ENDED
from metasched.cli.job_end import print_end
from metasched.cli.job_ids import check_job_ids, format_task_id
from metasched.cli.show import format_memory, format_time, print_table, printable
from metasched.drop_in.job import format_duration

_LOADS = {  # what decided between clusters, by the load of the answer
    "forecast": " The forecast decided between the clusters.",
    "observed": " Observed work decided between the clusters: no forecast had them all.",
}
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", show_default=False, autocompletion=complete_jobs)
]


def story(job: JobArgument, json: JsonOption = False, config: ConfigOption = None) -> None:
    """Print every event of a job with its cause.

    \b
    Examples:
      metasched story 17
      metasched story 17_3 --json
    """
    events = connect(config).story(check_job_ids([job])[0])
    if json:
        print(json_format.dumps(events, indent=2))
        return
    policy = None
    for event in events:
        task = f" task {event['task']}" if event.get("task") is not None else ""
        attempt = f" attempt {event['attempt']}" if event.get("attempt") else ""
        before, after = event.get("from"), event.get("to")
        change = f"{before} -> {after}" if before and before != after else after or ""
        location = f" on {event['cluster']}" if event.get("cluster") else ""
        explanation = ": ".join(
            printable(event[key]) for key in ("reason", "cause") if event.get(key)
        )
        suffix = f"  ({explanation})" if explanation else ""
        if event.get("policy") not in (None, policy):  # another than before
            policy = event["policy"]
            suffix += f"  [policy version {policy}]"
        print(
            f"{format_time(event['time'])}{task}{attempt}  {printable(event['event'])}"
            f"  {printable(change)}{printable(location)}{suffix}"
        )


def explain(job: JobArgument, json: JsonOption = False, config: ConfigOption = None) -> None:
    """Explain the state of a job: its reason, eligible clusters, expected start.

    Of a job that ran and failed, print its exit code and the last lines of its output.

    \b
    Examples:
      metasched explain 17
      metasched explain 17 --json
    """
    client = connect(config)
    answer = client.explain(check_job_ids([job])[0])
    if json:
        print(json_format.dumps(answer, indent=2))
        return
    reason = f", {printable(answer['reason'])}" if answer.get("reason") else ""
    print(
        f"Job {format_task_id(answer)} is {answer['state']}{reason}, priority {answer['priority']}."
    )
    if answer.get("text"):
        print(printable(answer["text"]))
    print_explanation(answer)
    if decided := describe_policies(answer.get("policy") or {}):
        print(f"\n{decided}")
    if usage := answer.get("usage"):
        _print_usage(usage)
    if answer["state"] in ENDED:
        print_end(client, format_task_id(answer))


def _print_usage(usage: Mapping[str, Any]) -> None:
    """Print what an ended job used, as far as its manager reported it."""
    parts = [
        f"{format_duration(usage[key])} of {label}"
        for key, label in (("elapsed", "time"), ("cpu_seconds", "processor time"))
        if usage[key] is not None
    ]
    if usage["max_memory"] is not None:
        parts.append(f"at most {format_memory(usage['max_memory'])} of memory")
    nodes = f" on {printable(usage['nodes'])}" if usage["nodes"] else ""
    if parts:
        print(f"It used {', '.join(parts)}{nodes}.")


def print_explanation(answer: Mapping[str, Any]) -> None:
    """Print the parts of the priority, and the verdict of each cluster."""
    if answer.get("parts"):
        print()
        print_table(
            ("HEURISTIC", "CONTRIBUTION", "WEIGHT"),
            (
                (
                    part["heuristic"],
                    format_number(part["contribution"]),
                    format_number(part["weight"]),
                )
                for part in answer["parts"]
            ),
        )
    for line in describe_ratings(answer.get("ratings") or {}):
        print(line)
    if answer.get("licence_choice"):
        print(f"Of its alternative licences it would get {printable(answer['licence_choice'])}.")
    for change in answer.get("tuning", []):
        print(describe_tuning(change))
    if answer.get("clusters"):
        print()
        print_table(
            ("CLUSTER", "ELIGIBLE", "CHOSEN", "ACCOUNT", "LOAD", "JOBS", "REASON"),
            (
                (
                    cluster["cluster"],
                    "yes" if cluster["eligible"] else "no",
                    "yes" if cluster["chosen"] else "",
                    cluster.get("account") or "",
                    format_number(cluster["load"]),
                    format_number(cluster["count"]),
                    ": ".join(str(cluster[key]) for key in ("reason", "text") if cluster.get(key)),
                )
                for cluster in answer["clusters"]
            ),
        )
        _print_excluded_nodes(answer["clusters"])


def describe_ratings(ratings: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each heuristic of the site that has rated clusters, or was excluded."""
    for heuristic, by_cluster in ratings.get("placements", {}).items():
        rated = ", ".join(f"{name} {value:.4g}" for name, value in by_cluster.items())
        yield printable(f"{heuristic} rates the clusters: {rated}.")
    for heuristic, seconds in ratings.get("run_times", {}).items():
        yield printable(f"{heuristic} expects a run time of {format_duration(seconds)}.")
    for heuristic, reason in ratings.get("excluded", {}).items():
        yield printable(f"{heuristic} is excluded: {reason}.")


def describe_policies(versions: Mapping[str, Any]) -> str:
    """Return a line on the policy and the load that decided; "": none is recorded."""
    priority, placement = versions.get("priority"), versions.get("placement")
    load = _LOADS.get(versions.get("load") or "", "")
    if priority is not None and priority == placement:
        return f"Policy version {priority} decided priority and placement.{load}"
    parts = [
        f"version {number} decided the {decision}"
        for number, decision in ((priority, "priority"), (placement, "placement"))
        if number is not None
    ]
    return f"Policy {', '.join(parts)}.{load}" if parts else load.strip()


def describe_tuning(change: Mapping[str, Any]) -> str:
    """Return a line on a change by self-optimisation before the submission."""
    before, after = (
        ", ".join(format_number(value) for value in change[key]) for key in ("before", "after")
    )
    cause = "the policy was changed"
    if change["distance"] is not None:
        cause = (
            f"the priorities were {change['distance']:.2f} from the target, "
            f"{change['expected']:.2f} expected"
        )
    return (
        f"{printable(change['parameter'])}: {before} -> {after or 'as configured'} "
        f"at {format_time(change['time'])} ({cause})"
    )


def _print_excluded_nodes(clusters: Sequence[Mapping[str, Any]]) -> None:
    """Print which requirement excludes which nodes, a line for each cluster."""
    lines = [
        printable(f"{cluster['cluster']}, {cluster['nodes']['text']}")
        for cluster in clusters
        if (cluster.get("nodes") or {}).get("text")
    ]
    if lines:
        print("\nNODES", *lines, sep="\n")


def format_number(value: object) -> str:
    """Format a number for a table, with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else printable(value)
