"""The meta-scheduler itself: events in, changes and actions out. Pure; clock and seeds are given.

One `Core.step(event)` runs in this order:
1. apply the event to the clusters and tasks it speaks of: what managers tell (here), what their
   listings lack (`absences`) or bring back (`comebacks`), what users wish (`wishes`); whatever
   happens to a task happens in `attempts`, through the one table (`transitions`);
2. classify a job that is new (`policies.classify`);
3. let go on what waits with us and may (`gates`), and keep the clusters that may run it
   (`placing`, `policies.eligible`);
4. lease all the licences that it wants (`leasing`, `licences`) and choose a cluster (`placing`,
   `policies.dispatch`), or pull a pending task to where it starts now (`moving`,
   `policies.pulling`);
5. pursue what is wished of tasks that are with a manager: cancel, hold, pull (`attempts`);
6. return what changed and what is to be done in the world.

All of these share the `books`; each knows only those named before it in `__init__`. Daemon and
simulator drive the same core. Stepping a fresh core through the recorded events of a daemon gives
its decisions again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from metasched.core.cluster_view import ClusterView, shape
from metasched.core.events import (
    Accepted,
    Asked,
    Booted,
    ClockSet,
    CoreEvent,
    Declined,
    Drained,
    Due,
    LicencesCounted,
    LicenceSet,
    LicencesReleased,
    Modified,
    Outcome,
    Requeued,
    Resumed,
    Returned,
    Revoked,
    Seen,
    Send,
    Silent,
    Submitted,
    Traced,
    Tried,
    Unsure,
)
from metasched.core.gates import MET, Gates
from metasched.core.leasing import Leasing
from metasched.core.placement import Placing
from metasched.core.reconciler import Absences
from metasched.core.reservations.book import ReservationBook
from metasched.core.reservations.events import ReservationAsked
from metasched.core.stale_attempts import Comebacks
from metasched.core.state import Books
from metasched.core.task_state_machine import PURSUE_AGAIN, Attempts
from metasched.core.tasks import Ended, Place, Task
from metasched.core.transitions import Event
from metasched.core.user_requests import Wishes
from metasched.core.withdrawals import Moving
from metasched.model.cluster import Cluster, Facts
from metasched.model.dependencies import Fate
from metasched.model.job import Job, Reason, State
from metasched.model.licence import Lease, LicenceCount, Lingering
from metasched.model.reservation import Reservation
from metasched.model.tags import parse_tag
from metasched.policies.classify import Classifier, Deadline, Licence, User
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.policy import Policy

_NONE: Mapping[int, Task] = {}
MARGINS = 1000  # jobs whose margins are kept: the largest window


class Core:
    """The state of the whole system, and `step`, the only way to change it."""

    def __init__(self) -> None:
        self.books = Books()
        self._gates = Gates()
        self._leasing = Leasing(self.books)
        self.reservations = ReservationBook(self._leasing.licences)
        self._attempts = Attempts(self.books, self._leasing, self._gates)
        self._comebacks = Comebacks(self.books, self._attempts)
        self._absences = Absences(self.books, self._attempts, self._comebacks)
        self._placing = Placing(
            *(self.books, self._attempts, self._leasing, self._gates, self.reservations)
        )
        self._moving = Moving(self.books, self._attempts, self._leasing, self._placing)
        self._wishes = Wishes(
            *(self.books, self._attempts, self._leasing, self._gates),
            *(self._comebacks, self._placing),
        )
        self._margins: list[Job] = []
        self._facts: dict[str, Facts] = {}  # also of clusters that are not configured now
        # What may be asked besides the methods below
        self.tasks, self.licences = self.books.tasks, self._leasing.licences
        self.tasks_of, self.is_open = self.books.tasks_of, self.books.is_open
        self.sending = self.books.sending
        self.lacks, self.lacking = self._leasing.lacks, self._leasing.lacking
        self.verdicts, self.refusal = self._placing.verdicts, self._placing.refusal

    # The one entry point

    def step(self, event: CoreEvent) -> Outcome:
        """Apply one event; return what changed and what to do. Never raises on a valid event."""
        out = self.books.begin(event.time, event.by if isinstance(event, ClockSet) else 0.0)
        self._gates.begin()
        if isinstance(event, ClockSet):
            self.licences.clock_set(event.by)
        self.licences.pass_time(event.time)
        if self.reservations.known and not isinstance(event, Booted):
            self.reservations.pass_time(event.time, out)
            self._leasing.promise(out.reservations.values())
        match event:
            case Submitted():
                self._submitted(event)
            case Seen():
                self._seen(event)
            case Traced():
                self._absences.traced(event)
            case Revoked():
                self._absences.revoked(event)
            case Accepted():
                self._accepted(event)
            case Declined():
                self._declined(event)
            case Tried():
                for task in self.sending(event.job, event.sending):
                    task.live.tried = event.time
                    self.books.store(task)
            case Unsure():
                for task in self.sending(event.job, event.sending):
                    task.live.tried = event.time
                    self.books.note(task, f"no answer: {event.reason}")
            case Returned():
                returned = [task for pair in event.sendings for task in self.sending(*pair)]
                for task in returned:
                    self._attempts.advance(task, Event.ABSENT, "never tried")
            case Silent():
                self._silent(event)
            case Asked():
                self._wishes.asked(event)
            case Requeued():
                self._wishes.requeued(event)
            case Modified():
                self._wishes.modified(event)
            case Drained():
                self._moving.drained(event)
                self._gates.refresh()
            case Resumed():
                self._moving.resumed(event)
                self._moving.reservations_changed(self.reservations.known.values())
                self._gates.refresh()
            case LicencesCounted():
                for count in event.counts:
                    if self.licences.counted(count, event.time):
                        out.standings[count.name] = self.licences.standing(count.name, event.time)
            case LicenceSet():
                self.licences.choose(event.name, event.total)
                out.standings[event.name] = self.licences.standing(event.name, event.time)
            case LicencesReleased():
                for task in self.tasks_of(event.job, event.indices):
                    if task.state is State.UNKNOWN:
                        self._leasing.give_back(task, f"released by {event.by}")
            case ClockSet():
                self._clock_set(event)
            case Booted():
                self._booted(event)
                self._gates.refresh()
            case Due():
                self._gates.pass_time(event.time)
            case ReservationAsked():
                self._leasing.look_ahead(event.licences)
                self.reservations.step(event, out)
            case _:
                self.reservations.step(event, out)
        if out.reservations:
            self._leasing.promise(out.reservations.values())
            self._moving.reservations_changed(out.reservations.values())
            self._gates.refresh()
        if self.reservations.known:
            self._moving.end_overruns(self.reservations.run_out(event.time))
        self._placing.place()
        if isinstance(event, Seen) and self.policy.pulls:
            self._moving.pull(self.books.views[event.cluster])
        for task in self._gates.moved:
            self.books.store(task)
        return out

    # Restoring what a database knows

    def restore(
        self,
        tasks: Iterable[Task],
        last_sendings: dict[int, int],
        facts: dict[str, Facts],
        margins: Iterable[Job],
        drains: Iterable[Drained] = (),
        ended: Mapping[Place, Ended] | None = None,
        fates: Mapping[int, Iterable[Fate]] | None = None,
        leases: Iterable[Lease] = (),
        lingering: Iterable[Lingering] = (),
        totals: Mapping[str, int] | None = None,
        past_us: Mapping[str, Mapping[str, LicenceCount]] | None = None,
        reservations: Iterable[Reservation] = (),
    ) -> None:
        """Take over stored tasks before the first event, which must be `Booted`.

        `last_sendings` maps each open job to its highest sending, `margins` are the last jobs
        with a deadline that could be met, oldest first, `drains` what operators keep closed,
        `ended` the last tasks that ended, oldest first, `fates` maps an open job to what has
        become of those that it depends on; `leases` are the live ones, `totals` what operators have
        set of licences, `past_us` what managers have given of them to others, by licence and
        cluster, `reservations` those that are open or that a manager may still know.
        """
        self.reservations.restore(reservations)
        self.licences.restore(leases, lingering, totals or {}, past_us or {})
        self.books.drains = {drain.cluster: drain for drain in drains}
        self._margins = list(margins)
        self._facts = dict(facts)
        self.books.last_sending = dict(last_sendings)
        self.books.ended = OrderedDict(ended or {})
        for task in tasks:
            self._attempts.open(task)
        for id, found in (fates or {}).items():
            self._attempts.depend(self.tasks_of(id)[0].job, found)

    def _configure(self, event: Booted) -> None:
        policy, pools = event.policy, event.pools
        self.books.policy, self.books.instance = policy, event.instance
        self._leasing.configure(pools, policy.patience, [c.name for c in event.clusters])
        self._leasing.promise(self.reservations.known.values())
        self.books.classifier = Classifier(
            max_priority=policy.max_priority,
            heuristics=[
                Deadline(window=policy.window),
                Licence(total=max(event.licences if pools is None else len(pools), 1)),
                User(classes=policy.classes),
            ],
            weights=policy.weights,
        )
        for job in self._margins[-policy.window :]:
            self.classifier.remember(job)
        self.books.views = {c.name: ClusterView(c) for c in event.clusters}
        self.books.queues, self.books.line, self.books.watch = {}, [], 0.0
        # what passes has passed
        self._facts = {name: facts.lasting for name, facts in self._facts.items()}
        for name, view in self.books.views.items():
            if name in self._facts:
                view.learn(self._facts[name])
        self.books.dispatch = LoadOrdering(
            [c.name for c in event.clusters],
            max_priority=policy.max_priority,
            seed=policy.seed,
            tolerance=policy.tolerance,
            load=policy.load,
            ordering=policy.ordering,
        )

    def _booted(self, event: Booted) -> None:
        """Forget all that no database keeps: a core that goes on is one that is restored."""
        copied = self.books.instance not in ("", event.instance)  # a backup has a name of its own
        self._configure(event)
        everything = [self.tasks[place] for place in sorted(self.tasks)]
        self.books.forget_open()  # from now on in the order in which a database gives them
        self._gates.restart(everything)
        untried: dict[tuple[int, int, str], list[int]] = {}
        for task in everything:
            self._attempts.open(task)
        for task in everything:
            task.priority = min(task.classified, event.policy.max_priority)
            task.key = self.books.key(task.job, task.priority)
            attempt = task.attempt
            if attempt is None:
                if task.state is State.QUEUED:
                    self._attempts.wait(task)
                continue
            attempt.watched = 0.0
            attempt.seen, attempt.given_up = False, False
            attempt.asked = None if attempt.intent is None else 0.0  # it may have been told
            attempt.listed, attempt.looks, attempt.look_at = None, 0, 0.0
            if copied or attempt.sent > event.time:
                attempt.sent = 0.0  # or the clock was set back: no listing proves so much
                self.books.store(task)
            never_tried = attempt.untried
            if (view := self.books.view_of(task)) is not None:
                view.add(task)
                self.books.count(task, attempt, attempt.state, +1)
                if attempt.tried is not None:
                    attempt.tried = event.time  # a try may have gone on until now
                    self.books.store(task)
                elif never_tried:
                    untried.setdefault((task.job.id, attempt.sending, attempt.cluster), []).append(
                        task.index
                    )
            elif attempt.state is not State.UNKNOWN:
                cause = f"cluster {attempt.cluster} is no longer configured"
                self._attempts.advance(task, Event.ABSENT if never_tried else Event.SILENCE, cause)
        for (job, sending, cluster), indices in untried.items():
            self.books.out.actions.append(Send(job, sending, cluster, tuple(indices)))
        for view in self.books.views.values():
            self._attempts.revoke(view, [t for t in view.live.values() if t.live.revoking])
        self._leasing.reconcile()
        self.reservations.booted(*(event.instance, event.policy, event.clusters, self.books.out))
        # also those that were over while their cluster was not configured
        self._moving.reservations_changed(self.reservations.known.values())

    def _clock_set(self, event: ClockSet) -> None:
        """Move what durations are counted from: a step of the clock is no time that has passed.

        What bounds a proof from below is moved back, never forward: perhaps the time did pass,
        and this host slept.
        """
        for task in self.tasks.values():
            if task.attempt is not None:
                task.attempt.clock_set(event.by)
                self.books.store(task)
        for view in self.books.views.values():
            view.clock_set(event.by)
        self._gates.pass_time(event.time)
        self._gates.refresh()

    # 1 and 2. Apply

    def _submitted(self, event: Submitted) -> None:
        job = event.job
        classifier = self.books.classifier
        priority, self.books.out.parts = classifier.judge(job)
        classifier.remember(job)
        if job.deadline is not None and (margin := job.margin) is not None and margin >= 0:
            self._margins = [*self._margins[1 - MARGINS :], job]
        if job.dependency is not None:
            self._attempts.depend(job, event.fates)
        key = self.books.key(job, priority)
        tasks = [Task(job, index, priority, key, held=job.held) for index in job.indices]
        for task in tasks:  # all, before one of them may end
            self._attempts.open(task)
        for task in tasks:
            if job.held:
                task.state, task.reason = State.HELD, Reason.HELD
                self.books.record(task, None, None, "submitted")
                continue
            prospect = self._gates.queued(task, event.time)
            if prospect is MET:
                self.books.record(task, None, None, "submitted")
            else:
                waits = self._gates.told(task, event.time)
                self.books.record(task, None, None, f"submitted; {waits}")
                self._attempts.despair(task, prospect)

    def _accepted(self, event: Accepted) -> None:
        for task in self.sending(event.job, event.sending):
            attempt, view = task.live, self.books.view_of(task)
            attempt.native_id = event.natives.get(task.index)
            attempt.accepted = event.time
            attempt.tried = None
            cause = "the manager took it" + (f", by {event.access}" if event.access else "")
            self._attempts.advance(task, Event.ACCEPT, cause)
            self._attempts.pursue(task)
            if view is not None and view.full:
                view.full, view.pause = "", 0.0
                self._gates.refresh()

    def _declined(self, event: Declined) -> None:
        tasks = self.sending(event.job, event.sending)
        view = self.books.view_of(tasks[0]) if tasks and event.again else None
        if view is not None:
            view.takes_no_more(event.reason, event.time)
            self._placing.look_anew()
        for task in tasks:
            if view is None:
                if task.live.number > task.forgiven:
                    task.refused.add(task.live.cluster)
                task.live.refused = True
            self._attempts.advance(task, Event.REFUSE, event.reason)

    def _silent(self, event: Silent) -> None:
        view = self.books.views[event.cluster]
        view.falls_silent(event.reason, self.books.watch)
        for task in list(view.live.values()):
            if task.live.state is not State.UNKNOWN and not task.live.untried:
                self._attempts.advance(task, Event.SILENCE, event.reason)
        self._gates.refresh()

    def _seen(self, event: Seen) -> None:
        view = self.books.views[event.cluster]
        was_up, before, facts = view.up, view.shape, view.facts
        missed = view.answers(self.books.watch)
        if event.facts is not None and event.facts is not facts:
            view.learn(event.facts)
            self._facts[event.cluster] = event.facts
        view.up_since = event.up_since
        self._not_listed(view, event, self._listed(view, event))
        self._leasing.count_past_us(view)
        reshaped = view.shape != before
        lasting = reshaped and shape(facts, passing=False) != shape(view.facts, passing=False)
        if event.facts is not None and (lasting or not was_up):
            self._moving.recall(view)
        self._moving.lose_patience(view)
        self._moving.keep_promises(view)
        self._moving.keep_windows(view)
        self._moving.end_overruns(self.reservations.over_on(view.name))
        if view.cluster.move_after is not None and missed >= view.cluster.move_after:
            self._moving.leave(view, f"it was silent for {missed:.0f} s")
        self._absences.look(view)
        self._comebacks.chase(view)
        self._gates.pass_time(event.time)
        if reshaped or not was_up or view.may_probe(event.time):
            self._gates.refresh()

    def _listed(self, view: ClusterView, event: Seen) -> list[tuple[tuple[int, int], int]]:
        """Apply the rows of a listing: (job, sending) and index of each that is ours."""
        ours, instance, sendings = [], self.instance, self.books.sendings
        if event.full:
            view.strays.clear()
            view.withheld.clear()
        for row in event.rows:
            sending = parse_tag(row.tag, instance)
            if sending is None:
                continue
            ours.append((sending, row.task))
            task = sendings.get(sending, _NONE).get(row.task)
            if task is None:
                self._comebacks.listed(view, *sending, row)
            elif task.live.cluster == event.cluster:
                self._attempts.row(task, row)
        return ours

    def _not_listed(
        self, view: ClusterView, event: Seen, rows: list[tuple[tuple[int, int], int]]
    ) -> None:
        """Look at what the rows of a listing do not name, as far as that may mean something."""
        if not (event.full or event.vanished or view.uneasy):
            return
        sendings = self.books.sendings
        listed = {  # now, as some of them may just have been adopted
            task.place
            for sending, index in rows
            if (task := sendings.get(sending, _NONE).get(index)) is not None
            and task.live.cluster == event.cluster
        }
        gone = set()
        for tag, index in event.vanished:
            if (sending := parse_tag(tag, self.instance)) is not None:
                view.strays.pop((sending[0], index, sending[1]), None)
            if (task := self.books.of(tag, index)) is not None:
                gone.add(task.place)
                view.withheld.pop(task.place, None)
        back = {place: view.live[place] for place in sorted(gone) if place in view.live}
        for place, task in list((view.live if event.full else view.uneasy | back).items()):
            attempt = task.live
            if attempt.calm:
                view.uneasy.pop(place, None)
            if place in listed:
                continue
            if attempt.seen and not attempt.given_up and (event.full or place in gone):
                attempt.listed = event.before
            if event.full or place in gone or attempt.given_up or not attempt.seen:
                self._absences.missing(task, event)
            self._attempts.pursue(task)

    # What may be asked

    @property
    def policy(self) -> Policy:
        return self.books.policy

    @property
    def instance(self) -> str:
        return self.books.instance

    @property
    def classifier(self) -> Classifier:
        return self.books.classifier

    @property
    def dispatch(self) -> LoadOrdering:
        self.books.weigh_all()
        return self.books.dispatch

    @property
    def clusters(self) -> list[Cluster]:
        return [view.cluster for view in self.books.views.values()]

    def view(self, cluster: str) -> tuple[Facts | None, str]:
        """What is known of a cluster, and "" if it answers, else why it does not."""
        view = self.books.views[cluster]
        return view.facts, "" if view.up else view.word

    def tasks_on(self, cluster: str) -> list[Task]:
        """The tasks that are live on a cluster."""
        return list(self.books.views[cluster].live.values())

    def full_since(self, cluster: str) -> float | None:
        """When the cluster's manager said that it takes no more for now, or None."""
        view = self.books.views[cluster]
        return view.full_since if view.full else None

    def drain(self, cluster: str) -> Drained | None:
        """Who keeps new work from a cluster, since when and why; None: nobody."""
        return self.books.drains.get(cluster)

    def waits_for(self, task: Task) -> str:
        """What a task's dependencies wait for, in words; empty if for nothing."""
        waits = task.state is State.QUEUED and task.reason == Reason.DEPENDENCY
        return self._gates.told(task, self.books.now) if waits else ""

    @property
    def next_due(self) -> float | None:
        """When time alone may let a waiting task go on (epoch seconds), or None."""
        dues = (self._gates.next_due, self.licences.next_due, self.reservations.next_due)
        return min((due for due in dues if due is not None), default=None)

    @property
    def restless(self) -> bool:
        """Whether some task of ours has yet to begin with a manager, or waits with us for room."""
        if self.policy.send == "late" and self._gates.ready:
            return True
        return bool(self.books.queues)

    @property
    def may_pull(self) -> bool:
        """Whether a listing without news may let a task be pulled, at the time of the last step."""
        return self.policy.pulls and self._moving.may_pull

    def expects(self, cluster: str, now: float) -> bool:
        """Whether a listing without news may still change something.

        A task that it does not show, a wish to repeat, a full cluster to try again, a pull, or a
        recall for licences that others wait for, or a reservation needs.
        """
        view = self.books.views[cluster]
        if self._gates.ready and view.may_probe(now):
            return True
        if any(s.wish is not None and now - s.asked >= PURSUE_AGAIN for s in view.strays.values()):
            return True
        if any(self._leasing.impatient(view)):
            return True
        if self._placing.late_starters(view) or any(self._leasing.in_the_way(view)):
            return True
        for task in view.uneasy.values():
            attempt = task.live
            if attempt.given_up:
                if attempt.look_due(now):
                    return True
                continue
            doubtful = attempt.tried is not None or attempt.accepted is not None
            if doubtful and not attempt.seen:
                return True
            if attempt.asked is not None and now - attempt.asked >= PURSUE_AGAIN:
                return True
        return self.policy.pulls and any(
            task.state is State.PENDING
            for name, other in self.books.queues.items()
            if name != cluster
            for task in other.unstarted.values()
        )


def replay(events: Iterable[CoreEvent]) -> Iterator[Outcome]:
    """Step a fresh core through recorded events: the same decisions, one outcome per event."""
    core = Core()
    for event in events:
        yield core.step(event)
