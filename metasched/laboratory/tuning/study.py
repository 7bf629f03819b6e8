"""The trials of a study in order, kept in an SQL database by Optuna.

Trial 0 is the present policy. A trial is drawn from the results of all trials but those up to
`window` before it, and results are taken in order. So the outcome depends on the seed, not on which
process is faster. The database has finished trials only: an interrupted study draws the same trials
again, and simulates those that are missing.
"""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from metasched.errors import UserError
from metasched.laboratory.tuning.inputs import InputSources
from metasched.laboratory.tuning.search_space import SearchSpace
from metasched.laboratory.tuning.trials import TrialRun, run_trial

if TYPE_CHECKING:
    import optuna

# keys of attributes of a study, and of its trials
_INPUTS, _WINDOW = "inputs", "window"
_NUMBER, _EARLY, _ERROR, _JOBS, _VALUES = "number", "early", "error", "jobs", "policy"
MIN_WINDOW = 8  # trials that run at a time, at most, for up to half as many processes


class Trial(NamedTuple):
    """A finished trial."""

    number: int  # in the study; 0 is the present policy
    indexes: dict[str, int]  # its point in the search space
    values: tuple[float, ...] | None  # of the objectives; None: pruned or failed
    early: tuple[float, ...] | None  # after its first jobs
    job_count: int  # that ran; fewer than under the present policy where limits refuse jobs
    error: str = ""  # why it was not simulated


def check_library() -> None:
    """Raise UserError if Optuna is not installed."""
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise UserError(
            "optuna is not installed, metasched tune; install it with pip install 'metasched[tune]'"
        )


def window_of(processes: int) -> int:
    """Return how many trials run at a time at most, so that no process waits for a slow trial."""
    return max(MIN_WINDOW, 2 * processes)


def file_storage(path: Path) -> str:
    """Return the URL of a database in a file, whatever characters its name has."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def hidden_password(storage: str) -> str:
    """Return a URL without its password. UserError if it is none."""
    try:
        return make_url(storage).render_as_string(hide_password=True)
    except (SQLAlchemyError, ValueError):  # as a port that is no number
        raise UserError(
            "no URL of a database, --storage; write sqlite:///FILE or postgresql://HOST/DATABASE"
        ) from None


class Study:
    """A study that is open in this process; see `open_study`."""

    def __init__(
        self,
        stored: optuna.Study,
        sources: InputSources,
        space: SearchSpace,
        objectives: Sequence[str],
    ) -> None:
        import optuna

        self.trials: list[Trial] = []  # finished, in order
        self.simulated_jobs = 0  # by this process
        self.cpu_seconds = 0.0  # in simulations, of this process
        self._stored, self._sources, self._space = stored, sources, space
        self._objectives = tuple(objectives)
        self._window = int(stored.user_attrs[_WINDOW])
        self._past_trials = self._read_stored()
        self._drawn = optuna.create_study(directions=["minimize"] * len(objectives))  # in memory
        self._drawn.enqueue_trial(space.present_indexes())

    def run(
        self, count: int, executor: Executor, progress: Callable[[int], None] | None = None
    ) -> None:
        """Run trials until there are `count`. UserError if the present policy cannot be run."""
        runs: deque[tuple[optuna.trial.Trial, Future[TrialRun]]] = deque()  # in order
        while len(self.trials) < count:
            finished = len(self.trials)
            while finished + len(runs) < min(count, finished + self._window):
                trial = self._draw(finished + len(runs))
                runs.append((trial, self._submit(trial, executor)))
            trial, future = runs.popleft()
            self._finish(trial, future.result())
            if progress is not None:
                progress(1)

    def _read_stored(self) -> dict[int, Trial]:
        """Return the trials of earlier runs of the command."""
        trials: dict[int, Trial] = {}
        for stored in self._stored.get_trials(deepcopy=False):
            attributes = stored.user_attrs
            trial = Trial(
                attributes.get(_NUMBER, -1),
                dict(stored.params),
                None if stored.values is None else tuple(stored.values),
                tuple(attributes[_EARLY]) if _EARLY in attributes else None,
                attributes.get(_JOBS, 0),
                attributes.get(_ERROR, ""),
            )
            trials.setdefault(trial.number, trial)
        return trials

    def _draw(self, number: int) -> optuna.trial.Trial:
        from optuna.samplers import TPESampler

        # a sampler for each draw: no state of it would have to be stored
        self._drawn.sampler = TPESampler(
            seed=(self._sources.seed * 1_000_003 + number) % 2**32,
            multivariate=True,
            constant_liar=True,
        )
        trial = self._drawn.ask(self._distributions())
        if number in self._past_trials and self._past_trials[number].indexes != trial.params:
            raise UserError(
                "its trials were drawn by another program or release, --storage; "
                "name another --study"
            )
        return trial

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        from optuna.distributions import IntDistribution

        return {
            key: IntDistribution(0, len(options) - 1) for key, options in self._space.grid.items()
        }

    def _submit(self, trial: optuna.trial.Trial, executor: Executor) -> Future[TrialRun]:
        """Simulate a trial, unless its result or that of an equal policy is known."""
        policy = self._space.policy(trial.params)
        equal = self._past_trials.get(trial.number) or next(
            (each for each in self.trials if self._space.policy(each.indexes) == policy), None
        )
        if equal is not None:
            done: Future[TrialRun] = Future()
            done.set_result(TrialRun(equal.values, equal.early, equal.job_count, error=equal.error))
            return done
        earlier = [each.early for each in self.trials if each.early is not None]
        return executor.submit(run_trial, self._sources, policy, self._objectives, earlier)

    def _finish(self, drawn: optuna.trial.Trial, run: TrialRun) -> None:
        from optuna.trial import TrialState

        error = run.error
        if not self.trials and run.values is None:
            raise UserError(f"the present policy cannot be simulated: {run.error}")
        if self.trials and run.values is not None:
            # else a policy could gain by letting limits refuse jobs
            missing = self.trials[0].job_count - run.job_count
            error = f"limits refuse {missing} more jobs" if missing > 0 else ""
        trial = Trial(
            drawn.number,
            dict(drawn.params),
            None if error else run.values,
            run.early,
            run.job_count,
            error,
        )
        if trial.number not in self._past_trials:
            self._store(trial)
        if trial.values is None:
            self._drawn.tell(drawn, state=TrialState.PRUNED)
        else:
            self._drawn.tell(drawn, trial.values)
        self.trials.append(trial)
        self.simulated_jobs += run.simulated_jobs
        self.cpu_seconds += run.cpu_seconds

    def _store(self, trial: Trial) -> None:
        """Add a trial in a single transaction."""
        from optuna.trial import TrialState, create_trial

        attributes: dict[str, Any] = {
            _NUMBER: trial.number,
            _JOBS: trial.job_count,
            _VALUES: self._space.values(trial.indexes),  # for those who look into the database
        }
        if trial.early is not None:
            attributes[_EARLY] = list(trial.early)
        if trial.error:
            attributes[_ERROR] = trial.error
        self._stored.add_trial(
            create_trial(
                state=TrialState.PRUNED if trial.values is None else TrialState.COMPLETE,
                values=trial.values,
                params=trial.indexes,
                distributions=self._distributions(),
                user_attrs=attributes,
            )
        )


@contextmanager
def open_study(
    storage: str,
    name: str,
    description: dict[str, Any],
    objectives: Sequence[str],
    processes: int,
) -> Iterator[optuna.Study]:
    """Open a study in an SQL database, or create it. UserError if that is impossible.

    `description`: all that the results depend on; a stored study must have the same. Errors of the
    database in the block become a UserError, too.
    """
    import optuna

    shown = hidden_password(storage)
    url = make_url(storage)
    if url.drivername == "postgresql":  # the driver of metasched's own database
        url = url.set(drivername="postgresql+psycopg")
    storage = url.render_as_string(hide_password=False)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            _check_database(storage, shown)
            stored = optuna.create_study(
                storage=storage,
                study_name=name,
                directions=["minimize"] * len(objectives),
                load_if_exists=True,
            )
            _check_inputs(stored, description, name)
            if _WINDOW not in stored.user_attrs:  # that of the first process stays
                stored.set_user_attr(_WINDOW, window_of(processes))
            yield stored
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError) as error:
        cause = error.__cause__ or error
        problem = str(getattr(cause, "orig", None) or cause).splitlines()[0]
        raise UserError(
            f"{problem}, --storage {shown}; finished trials are kept, repeat the command then"
        ) from None


def _check_database(storage: str, shown: str) -> None:
    """Refuse the database of another program, above all metasched's own: it would get tables."""
    engine = create_engine(storage)
    try:
        tables = set(inspect(engine).get_table_names())
    finally:
        engine.dispose()
    if tables and "studies" not in tables:
        raise UserError(
            f"a database of another program, --storage {shown}; name one of its own for studies"
        )


def _check_inputs(stored: optuna.Study, description: dict[str, Any], name: str) -> None:
    """Store the description with a new study; compare it with that of a stored study."""
    stored_inputs = stored.user_attrs.get(_INPUTS)
    if stored_inputs is None and stored.get_trials(deepcopy=False):
        raise UserError(f"a study of another program, --study {name}; name another")
    if stored_inputs is None:
        stored.set_user_attr(_INPUTS, description)
        return
    for key, value in json.loads(json.dumps(description)).items():
        if stored_inputs.get(key) != value:
            raise UserError(
                f"its trials have another {key}, --study {name}; name another --study, "
                f"or repeat it with the same {key}"
            )
