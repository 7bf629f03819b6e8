"""Which jobs a command means: lists of users, states and ids."""

from __future__ import annotations

from metasched.drop_in.command import CommandError
from metasched.drop_in.job import SLURM_STATES, Job, slurm_state

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

OPEN_CODES = frozenset(SLURM_STATES[name][0] for name in ("PENDING", "RUNNING", "SUSPENDED"))


def words_of(text: str) -> list[str]:
    """Return the words of a list that is separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def user_name(word: str) -> str:
    """Return the name of a user who is given by name or number."""
    if not word.isdecimal():
        return word
    import pwd

    try:
        return pwd.getpwuid(int(word)).pw_name
    except (KeyError, OverflowError):
        return word


def parse_codes(text: str, error: str) -> frozenset[str]:
    """Return the codes of states; empty: all.

    CommandError for an unknown state: `error`, in which `{}` stands for it.
    """
    codes = set()
    for word in words_of(text):
        if word.lower() == "all":
            return frozenset()
        name = slurm_state(word)
        if name is None:
            raise CommandError(error.format(word))
        codes.add(SLURM_STATES[name][0])
    return frozenset(codes)


def named_nodes(command: str, nodes: str) -> frozenset[str]:
    """Return the nodes of `--nodelist`. CommandError if it is no list of them."""
    from metasched.model.host_lists import cluster_hosts  # few calls name nodes

    try:
        return cluster_hosts(nodes)
    except ValueError:
        raise CommandError(f"{command}: error: '{nodes}' invalid entry for --nodelist") from None


def fold_waiting(jobs: Sequence[Job], ids: Sequence[str] = ()) -> list[Job]:
    """Fold the waiting tasks of an array, with one reason, into a line as `17_[4-9%2]`.

    As in squeue, `ids` that are tasks make it `17_[4,6]`, and a single one `17_4`.
    """
    of_tasks = {word.partition("_")[0] for word in ids if "_" in word} - set(ids)
    lines: list[Job] = []
    groups: dict[tuple[int, str], list[Job]] = {}
    for job in jobs:
        if not job.waits or job.row["task"] is None:
            lines.append(job)
            continue
        group = groups.setdefault((job.row["job"], job.reason), [])
        if not group:
            lines.append(job)
        group.append(job)
    for (job_id, _), group in groups.items():
        is_named = str(job_id) in of_tasks
        if not is_named or len(group) > 1 or len(group[0].indices) > 1:
            group[0].fold(group, has_limit=not is_named)
    return lines


def is_job_id(word: str) -> bool:
    """Return whether a word is `17`, `17_3` or `17_[3-9]`."""
    job, _, tasks = word.partition("_")
    if tasks[:1] == "[" and tasks[-1:] == "]":
        tasks = tasks[1:-1].partition("%")[0]
    if "_" not in word:
        return _is_number(job)
    bounds = tasks.replace("-", ",").replace(":", ",").split(",")
    return _is_number(job) and all(map(_is_number, bounds))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19
