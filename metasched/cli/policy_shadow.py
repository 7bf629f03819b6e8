"""`policy shadow`: how a candidate decides beside the policy in force, as text."""

from collections.abc import Mapping
from typing import Any

from metasched.cli.show import format_time, print_table, printable

COLUMNS = ("JOBS", "TASKS", "SAME PRIORITY", "HIGHER", "LOWER", "CHOICES", "SAME CLUSTER")


def print_shadow(row: Mapping[str, Any]) -> None:
    """Print an answer of `/policy/shadow`."""
    reason = f" ({row['reason']})" if row["reason"] else ""
    line = f"Candidate {row['file']}, since {format_time(row['since'])}, by {row['by']}{reason}."
    if row["ended"]:
        line += f" It ended at {format_time(row['ended'])}: {row['end']}."
    print(printable(line))
    for begin, key in (
        ("Nothing is compared: ", "obstacle"),
        ("Clusters are not compared: ", "place_obstacle"),
        ("Problem: ", "problem"),
    ):
        if row[key]:
            print(printable(f"{begin}{row[key]}."))
    if row["dropped"]:
        print(f"{row['dropped']} dispatched tasks were not compared: the candidate lagged behind.")
    if row["waiting"]:
        print(f"{row['waiting']} submissions and dispatches wait for the candidate.")
    if not row["all"]["tasks"]:
        print("No dispatched task has been compared yet.")
        return
    counts = [("all", row["all"])]
    if row["with_deadline"]["tasks"]:
        counts.append(("with a deadline", row["with_deadline"]))
    counts += [(f"class {each['user_class']}", each) for each in row["by_class"]]
    print()
    print_table(COLUMNS, (_cells(name, each) for name, each in counts))
    if row["moves"]:
        print()
        print_table(
            ("IN FORCE", "CANDIDATE", "TASKS"),
            ((move["live"], move["candidate"], move["tasks"]) for move in row["moves"]),
        )


def _cells(name: str, counts: Mapping[str, int]) -> tuple[object, ...]:
    return (
        name,
        counts["tasks"],
        _share(counts["same_priority"], counts["tasks"]),
        counts["higher_priority"],
        counts["lower_priority"],
        counts["choices"],
        _share(counts["same_cluster"], counts["choices"]),
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"
