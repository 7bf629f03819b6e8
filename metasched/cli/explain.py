"""The commands that explain: story, explain."""

import json as json_format
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from metasched.cli.connect import Config, Json, connect, id_of, ids
from metasched.cli.show import clean, moment, table

Job = Annotated[str, typer.Argument(metavar="JOB", show_default=False)]


def story(job: Job, json: Json = False, config: Config = None) -> None:
    """Tell every event of a job with its cause.

    \b
    Examples:
      metasched story 17
      metasched story 17_3 --json
    """
    events = connect(config).story(ids([job])[0])
    if json:
        print(json_format.dumps(events, indent=2))
        return
    for event in events:
        task = f" task {event['task']}" if event.get("task") is not None else ""
        attempt = f" attempt {event['attempt']}" if event.get("attempt") else ""
        before, after = event.get("from"), event.get("to")
        change = f"{before} -> {after}" if before and before != after else after or ""
        where = f" on {event['cluster']}" if event.get("cluster") else ""
        why = ": ".join(clean(event[k]) for k in ("reason", "cause") if event.get(k))
        print(
            f"{moment(event['time'])}{task}{attempt}  {clean(event['event'])}"
            f"  {clean(change)}{clean(where)}{'  (' + why + ')' if why else ''}"
        )


def explain(job: Job, json: Json = False, config: Config = None) -> None:
    """Tell why a job is where it is, why not yet, and when.

    \b
    Examples:
      metasched explain 17
      metasched explain 17 --json
    """
    answer = connect(config).explain(ids([job])[0])
    if json:
        print(json_format.dumps(answer, indent=2))
        return
    reason = f", {clean(answer['reason'])}" if answer.get("reason") else ""
    print(f"Job {id_of(answer)} is {answer['state']}{reason}, priority {answer['priority']}.")
    if answer.get("text"):
        print(clean(answer["text"]))
    print_why(answer)


def print_why(answer: Mapping[str, Any]) -> None:
    """Print what made the priority, and what every cluster has to say to the job."""
    if answer.get("parts"):
        print()
        table(
            ("HEURISTIC", "CONTRIBUTION", "WEIGHT"),
            (
                (p["heuristic"], number(p["contribution"]), number(p["weight"]))
                for p in answer["parts"]
            ),
        )
    if answer.get("clusters"):
        print()
        table(
            ("CLUSTER", "ELIGIBLE", "CHOSEN", "LOAD", "JOBS", "REASON"),
            (
                (
                    c["cluster"],
                    "yes" if c["eligible"] else "no",
                    "here" if c["chosen"] else "",
                    number(c["load"]),
                    number(c["count"]),
                    ": ".join(str(c[k]) for k in ("reason", "text") if c.get(k)),
                )
                for c in answer["clusters"]
            ),
        )


def number(value: object) -> str:
    """A figure of a table: four digits, no more."""
    return f"{value:.4g}" if isinstance(value, float) else clean(value)
