"""Finished runs of an experiment in a file, so that an interrupted experiment can be continued."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path

import msgspec

from metasched.errors import UserError
from metasched.laboratory.experiments.harness import Experiment
from metasched.laboratory.experiments.tables import measured_code


class _Header(msgspec.Struct, frozen=True):
    """The first line."""

    experiment: str
    code: str  # that ran: a revision or a release


class _FinishedRun(msgspec.Struct, frozen=True):
    """Any other line."""

    setting: str
    policy: str
    seed: int
    figures: dict[str, float]


class FinishedRuns:
    """The figures of finished runs, by the index of the case and the seed.

    Each run is a line, written when it has ended. A line that was cut off is written again.
    """

    def __init__(self, file: BufferedRandom, experiment: Experiment) -> None:
        self.figures: dict[tuple[int, int], dict[str, float]] = {}
        self._file, self._cases = file, experiment.cases()
        self._names = experiment.figures.keys()
        self._header = _Header(experiment.name, measured_code())

    def add(self, index: int, seed: int, figures: dict[str, float]) -> None:
        """Store a run."""
        case = self._cases[index]
        self.figures[index, seed] = figures
        self._append(_FinishedRun(case.row, case.column, seed, figures))

    def read(self) -> None:
        """Read the file; write the first line of a new file. ValueError if it is another file."""
        self._file.seek(0)
        content = self._file.read()
        complete = content[: content.rfind(b"\n") + 1]
        first, *run_lines = complete.splitlines() or (b"",)
        if first:
            self._check_header(msgspec.convert(json.loads(first), _Header))
        elif not _encode(self._header).startswith(content):
            raise ValueError("no runs")
        indexes = {(case.row, case.column): index for index, case in enumerate(self._cases)}
        for line in run_lines:
            run = msgspec.convert(json.loads(line), _FinishedRun)
            index = indexes.get((run.setting, run.policy))
            if index is None or run.figures.keys() != self._names:
                raise ValueError(f"a run of no case, {run.setting}, {run.policy}")
            self.figures[index, run.seed] = run.figures
        self._file.truncate(len(complete))
        if not first:
            self._append(self._header)

    def _check_header(self, header: _Header) -> None:
        if header.experiment != self._header.experiment:
            raise ValueError(f'runs of the experiment "{header.experiment}"')
        if header.code != self._header.code:
            raise ValueError(f"runs of {header.code}, not of {self._header.code},")

    def _append(self, line: msgspec.Struct) -> None:
        self._file.write(_encode(line))
        self._file.flush()


def _encode(line: msgspec.Struct) -> bytes:
    """Return the line; unlike msgspec's, this JSON has infinity."""
    return json.dumps(msgspec.structs.asdict(line)).encode() + b"\n"


@contextmanager
def open_finished_runs(path: Path, experiment: Experiment) -> Iterator[FinishedRuns]:
    """Read the finished runs of an experiment; a new file has none.

    UserError if the file cannot be used, has runs of another experiment or of other code, or if
    another process has it open.
    """
    try:
        file = path.open("a+b")
    except OSError as error:
        raise UserError(f"{error.strerror}, --resume {path}; name another file") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another process writes {path}, --resume; wait for it or name another file"
            ) from None
        runs = FinishedRuns(file, experiment)
        try:
            runs.read()
        except ValueError as error:  # those of JSON and msgspec, too
            raise UserError(f"{error} in {path}, --resume; name a new file") from None
        yield runs
