"""The real control database under a clock that is moved by hand, and the faults of its server.

Store, statements and sessions are those of production, on a PostgreSQL that reads the time from a setting. Faults
are put between the client and the server, where the driver is: each session that it opens states the time before
every statement. The server can be away (every statement raises), lose an answer (the statement took effect, and
its caller is told that the connection broke), fail a commit, restart (every session ends), and lose or delay
notifications.

Everything happens on one thread, and the session that sends a notification is the one that hears it. So the same
seed is the same story every time.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import psycopg2
import pytest
from psycopg2.extensions import connection, cursor

from feedq.control.store import database, protocol, worker_session
from feedq.control.store.database import connect
from feedq.control.store.migrate import upgrade
from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.worker_session import WAKE, Listener, WorkerSession, worker_channel
from feedq.core.model import LeaseState, Reason, WorkerState
from feedq.errors import Unavailable
from feedq.telemetry.logs import EventKind
from tests.fakes.clock import ManualClock
from tests.fakes.invariants import LeaseRow, RunRow, WorkerRow
from tests.fakes.jobs import on_fleet_clocks

TIME = "feedq.time"
"""The setting in which a session of the server has the time."""
CLOCK = f"""
    CREATE OR REPLACE FUNCTION feedq.now() RETURNS timestamptz LANGUAGE sql STABLE
        RETURN current_setting('{TIME}')::timestamptz;
    CREATE OR REPLACE FUNCTION feedq.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
        RETURN current_setting('{TIME}')::timestamptz;
"""
QUICK = """
    DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database());
        EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_generic_plan', current_database());
        EXECUTE format('ALTER DATABASE %I SET jit = off', current_database());
    END $$;
"""
"""To plan a statement takes longer here than to run it, and tables are small whatever a plan says."""
TOLD_KINDS = (
    EventKind.WORKER_GONE,
    EventKind.LEASE_FREED,
    EventKind.LEASE_ASSIGNED,
    EventKind.LEASE_OVERDUE,
    EventKind.LEASE_REAPED,
    EventKind.STOP_REQUESTED,
)
"""The history that transcripts tell."""
_KINDS = ", ".join(f"'{kind}'" for kind in TOLD_KINDS)
READS = f"""
    PREPARE leases AS
        SELECT feed_id, state, worker_id, epoch, reason, promised_to, due_at,
            NOT dirty AND removed_at IS NULL AND target_state = 'running'
        FROM feedq.lease JOIN feedq.feed ON id = feed_id ORDER BY feed_id;
    PREPARE workers AS
        SELECT id, name, state, CASE queue WHEN '' THEN 1 ELSE capacity END FROM feedq.worker ORDER BY lock_key;
    PREPARE events (bigint) AS
        SELECT e.id, e.at, e.kind, e.feed_id, w.name, e.epoch, e.detail
        FROM feedq.event e LEFT JOIN feedq.worker w ON w.id = e.worker_id
        WHERE e.id > $1 AND e.kind IN ({_KINDS}) ORDER BY e.id;
    PREPARE alive AS SELECT id FROM feedq.feed WHERE removed_at IS NULL ORDER BY name, id;
    PREPARE wanted AS SELECT id FROM feedq_1.feed_status WHERE status NOT IN ('paused', 'failed') ORDER BY id;
    PREPARE runs AS
        SELECT id, schedule_id, kind, state, fence, losses, ticks, reason FROM feedq.run ORDER BY id;
    PREPARE schedules AS SELECT id, next_tick_at FROM feedq.schedule ORDER BY id;
    PREPARE name_of (bigint) AS SELECT name FROM feedq.feed WHERE id = $1;
    PREPARE target_of (bigint) AS SELECT target_state FROM feedq.feed WHERE id = $1;
"""
"""What is read after each change."""
TOLD, CHANGED, WORKERS_CHANGED = "feedq_told", "feedq_changed", "feedq_workers_changed"
RUNS_CHANGED = "feedq_runs_changed"
_HEARD = (WAKE, TOLD, CHANGED, WORKERS_CHANGED, RUNS_CHANGED)
WATCHED = f"""
    CREATE FUNCTION feedq.tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_notify(TG_ARGV[0], '');
        RETURN NULL;
    END $$;
    CREATE TRIGGER simulation_told AFTER INSERT ON feedq.event
        FOR EACH ROW WHEN (NEW.kind IN ({_KINDS})) EXECUTE FUNCTION feedq.tell('{TOLD}');
    CREATE TRIGGER simulation_changed AFTER INSERT OR DELETE
        OR UPDATE OF state, worker_id, epoch, reason, promised_to, due_at ON feedq.lease
        FOR EACH STATEMENT EXECUTE FUNCTION feedq.tell('{CHANGED}');
    CREATE TRIGGER simulation_changed AFTER INSERT OR DELETE OR UPDATE OF state, capacity ON feedq.worker
        FOR EACH STATEMENT EXECUTE FUNCTION feedq.tell('{WORKERS_CHANGED}');
    CREATE TRIGGER simulation_changed AFTER INSERT OR DELETE OR UPDATE ON feedq.feed
        FOR EACH STATEMENT EXECUTE FUNCTION feedq.tell('{CHANGED}');
    CREATE TRIGGER simulation_changed AFTER INSERT OR DELETE OR UPDATE ON feedq.run
        FOR EACH STATEMENT EXECUTE FUNCTION feedq.tell('{RUNS_CHANGED}');
"""
"""Has whoever looks on hear of what there is to see, so that it need not look after each statement."""
USED = (
    "run",
    "schedule",
    "event",
    "held_change",
    "worker_held",
    "progress",
    "lease",
    "feed",
    "worker",
    "task_set",
    "leader",
)
"""The tables that a fleet leaves rows in, in the order in which they can be emptied."""
EMPTY = f"""
    SET session_replication_role = replica;
    {"; ".join(f"DELETE FROM feedq.{table}" for table in USED)};
    SET session_replication_role = origin;
    SELECT setval(s.oid::regclass, 1, false) FROM pg_class s
        JOIN pg_depend d ON d.objid = s.oid AND d.classid = 'pg_class'::regclass AND d.deptype = 'i'
        WHERE s.relkind = 'S' AND s.relnamespace = 'feedq'::regnamespace;
    SELECT setval('feedq.run_fence', 1, false);
    UPDATE feedq.fleet SET alive_at = feedq.clock(), alive_since = feedq.clock(),
        server_started_at = pg_postmaster_start_time(), pass_at = NULL, pass_seq = 0, sweep_at = NULL,
        active_workers = 1, evened_out = NULL, waiting_after = 0, swept_to = NULL
"""
"""Truncated, the tables would have every session plan all its statements again."""
ENDED = "SELECT pg_advisory_unlock_all(); UNLISTEN *"
VACUUM_EVERY = 10
"""Fleets after which dead rows are removed: nobody else does it, so that a seed takes the same plans each time."""
WORKERS_MAX = 200
"""Worker sessions of one fleet that are notified."""
POOLED = "feedq"
"""What sessions of a store are called."""
DRAWN = "::float8 / job_slots, random() LIMIT"
"""Which of two workers that are as busy is told of a run. Here it is always the same."""
_PART = re.compile(r"CREATE OR REPLACE (?:FUNCTION .*?\$body\$.*?\$body\$|VIEW [^;]*);", re.DOTALL)
"""A function or a view of the protocol."""
IS_THERE = "SELECT 1"
"""What a session is asked that has not been used for a while in real time, which must not be seen here."""


class Interrupted(BaseException):
    """A process has died or stands still, in the middle of what it did. Nothing in it catches that."""


class Cursor(cursor):
    """Runs a statement at the time that it is here, and has it fail when it is to."""

    session: Session

    def execute(self, query: Any, vars: Any = None) -> None:
        control = self.session.control
        if query == IS_THERE:
            super().execute(query)
            return
        control.begin()
        control.statements += 1
        super().execute(f"SET {TIME} = '{control.clock.now().isoformat()}'; {query}", vars)
        self.session.hear()
        control.answer()


class Session:
    """A session of whoever is in the simulation, on a connection that the next session like it has after it.

    To the others it has ended when it is closed: nothing is locked, nothing is open, nobody listens. Only the
    plans that the server keeps are not made again.
    """

    control: ClassVar[ControlDatabase]

    def __init__(self, kind: str, connection: connection) -> None:
        self._kind, self._connection = kind, connection
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        self._require_open()
        return getattr(self._connection, name)

    @property
    def autocommit(self) -> bool:
        return self._connection.autocommit

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        self._connection.autocommit = on

    def cursor(self) -> Cursor:
        self._require_open()
        made: Cursor = self._connection.cursor(cursor_factory=Cursor)
        made.session = self
        return made

    def commit(self) -> None:
        self._require_open()
        if self.control.commits_to_fail:
            self.control.commits_to_fail -= 1
            self._connection.rollback()
            raise psycopg2.OperationalError("the commit failed")
        self.control.begin()
        self._connection.commit()
        self._connection.poll()
        self.hear()
        self.control.begin()

    def hear(self) -> None:
        """One session listens for everybody: those of a store, which sends all that is notified."""
        if self._kind == POOLED:
            for told in self._connection.notifies:
                self.control.notified(told.channel)
        self._connection.notifies.clear()

    def close(self) -> None:
        """The server has ended it when this returns, whatever the backend takes for that."""
        if self.closed:
            return
        self.closed = True
        self.control.sessions.discard(self)
        self.control.has_ended = True
        self._connection.rollback()
        self._connection.autocommit = True
        with self._connection.cursor() as plain:
            plain.execute("SELECT pg_advisory_unlock_all()" if self._kind == POOLED else ENDED)
        self.control.connections[self._kind].append(self._connection)

    def _require_open(self) -> None:
        if self.closed:
            raise psycopg2.InterfaceError("connection already closed")


class ControlDatabase:
    """A control database, which one fleet after another has for itself."""

    def __init__(self, url: str) -> None:
        """``url`` is that of an empty database."""
        self.url = url
        upgrade(url)
        self._observer = connect(url, application_name="feedq-observer")
        (told,) = [part for part in _PART.findall(protocol.definition()) if DRAWN in part]
        self.observe(QUICK + CLOCK + WATCHED + told.replace("random()", "lock_key"))
        self.observe(f"SET plan_cache_mode = force_generic_plan; {READS}")
        self.sessions: set[Session] = set()
        """Those of workers and of the beat."""
        self.connections: dict[str, list[connection]] = {}
        """Those that are free, by the kind of session that they were for."""
        self._pool: deque[Any] = deque()
        self.statements = self._fleets = 0
        self.reset()

    def reset(self) -> None:
        """Empty it, at the beginning of time."""
        self.clock = ManualClock()
        self.is_away = False
        self.answers_to_lose = self.commits_to_fail = 0
        self.notifications_to_lose, self.notifications_take_s = 0, 0.0
        self.notifications: dict[str, list[float]] = {}
        """When workers hear, by channel, what they have not heard yet."""
        self.wakes = 0
        """Notifications that ask for a pass; whoever runs passes takes them back to 0."""
        self.has_news = True
        """Whether there is history that whoever looks on has not seen."""
        self.changes = 0
        """How often feeds, leases or workers have changed."""
        self._read_at, self._leases = -1, list[LeaseRow]()
        """How often they had when leases were read, and these."""
        self._workers: list[WorkerRow] | None = None
        """None when any has changed since they were read."""
        self.runs_changed = False
        """Whether runs have changed since whoever looks on has read them."""
        self.has_ended = False
        """Whether a session has ended since the beat looked."""
        self.registered: Counter[str] = Counter()
        """How often a worker of this name has tried to register."""
        self.step: Callable[[], None] | None = None
        """What comes before each statement, at which a process may die."""
        self.end_sessions()
        self.observe(f"SET {TIME} = '{self.clock.now().isoformat()}'; {EMPTY}")
        self._fleets += 1
        if self._fleets % VACUUM_EVERY == 0:
            self.observe(f"VACUUM {', '.join(f'feedq.{table}' for table in (*USED, 'fleet'))}")

    def store(self, *, restart_hold_s: float = 0.0) -> SteppedStore:
        store = SteppedStore(self.url, restart_hold_s=restart_hold_s)
        store._database._idle = self._pool
        store.control, store.clock = self, self.clock
        return store

    def fresh_store(self) -> SteppedStore:
        """A store with nothing in it."""
        self.reset()
        return self.store()

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Within the block, every session that the driver opens is one of this database."""
        Session.control = self
        with pytest.MonkeyPatch.context() as patch:
            for module in (database, worker_session):
                patch.setattr(module, "connect", self._open)
            with on_fleet_clocks():
                yield
        self.end_sessions()

    def close(self) -> None:
        """Leave the server, which need not run any more."""
        pooled = [session._connection for session, *_ in self._pool]
        for one in [self._observer, *pooled, *chain.from_iterable(self.connections.values())]:
            one.close()

    def _open(self, url: str, *, application_name: str, **options: Any) -> Any:
        if url != self.url:
            return connect(url, application_name=application_name, **options)
        with database.translate_driver_errors(url):
            self.require_driver()
        kind = application_name.partition("/")[0]
        free = self.connections.setdefault(kind, [])
        session = Session(kind, free.pop() if free else self._connected(kind, **options))
        if kind != POOLED:
            self.sessions.add(session)
        return session

    def _connected(self, kind: str, **options: object) -> connection:
        made = connect(self.url, application_name=kind, **options)
        if kind == POOLED:
            channels = [*_HEARD, *map(worker_channel, range(1, WORKERS_MAX + 1))]
            with made.cursor() as plain:
                plain.execute("; ".join(f"LISTEN {channel}" for channel in channels))
        return made

    def observe(self, sql: str) -> list[tuple[Any, ...]]:
        """What nobody in the simulation does, and nothing in it disturbs."""
        with self._observer.cursor() as plain:
            plain.execute(sql)
            return list(plain.fetchall()) if plain.description else []

    def leases(self) -> list[LeaseRow]:
        """All of them, by feed."""
        if self._read_at != self.changes:
            self._leases = [
                LeaseRow(feed_id, LeaseState(state), worker_id, epoch, reason and Reason(reason), *rest)
                for feed_id, state, worker_id, epoch, reason, *rest in self.observe("EXECUTE leases")
            ]
            self._read_at = self.changes
        return self._leases

    def runs(self) -> list[RunRow]:
        """All of them."""
        self.runs_changed = False
        return [RunRow(*row) for row in self.observe("EXECUTE runs")]

    def workers(self) -> list[WorkerRow]:
        """All sessions of workers."""
        if self._workers is None:
            self._workers = [
                WorkerRow(id_, name, WorkerState(state), capacity)
                for id_, name, state, capacity in self.observe("EXECUTE workers")
            ]
        return self._workers

    def events(self, *, after: int) -> list[EventRow]:
        """What is new in history, of the kinds that are told."""
        return [EventRow(*row) for row in self.observe(f"EXECUTE events ({after})")]

    # -- faults ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before a statement, and on either side of a commit."""
        if self.step is not None:
            self.step()
        self.require_driver()

    def answer(self) -> None:
        """After a statement."""
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise psycopg2.OperationalError("the answer was lost")

    @property
    def is_troubled(self) -> bool:
        return self.is_away or self.answers_to_lose > 0 or self.commits_to_fail > 0

    def require_driver(self) -> None:
        if self.is_away:
            raise psycopg2.OperationalError("the database is away")

    def require(self) -> None:
        """Raises `Unavailable`."""
        if self.is_away:
            raise Unavailable("control database: away")

    def restart(self) -> None:
        """The server starts anew: rows stay, every session ends."""
        self.end_sessions()
        self.notifications.clear()
        self.observe("UPDATE feedq.fleet SET server_started_at = 'epoch'")

    def end_sessions(self) -> None:
        for session in list(self.sessions):
            session.close()

    # -- mutants ---------------------------------------------------------------------------------------

    @contextmanager
    def broken(self, right: str, wrong: str) -> Iterator[None]:
        """Within the block, a place of the protocol says something else."""
        (part,) = [part for part in _PART.findall(protocol.definition()) if right in part]
        self.observe(part.replace(right, wrong))
        yield
        self.observe(part)

    # -- notifications ---------------------------------------------------------------------------------

    def notified(self, channel: str) -> None:
        if channel == WAKE:
            self.wakes += 1
        elif channel == TOLD:
            self.has_news = True
        elif channel == CHANGED:
            self.changes += 1
        elif channel == RUNS_CHANGED:
            self.runs_changed = True
        elif channel == WORKERS_CHANGED:
            self.changes += 1
            self._workers = None
        elif self.notifications_to_lose:
            self.notifications_to_lose -= 1
        else:
            due = self.clock.monotonic() + self.notifications_take_s
            self.notifications.setdefault(channel, []).append(due)

    def hears(self, channel: str) -> bool:
        """Whether a notification has come in since the last time."""
        coming, now = self.notifications.pop(channel, []), self.clock.monotonic()
        if late := [at for at in coming if at > now]:
            self.notifications[channel] = late
        return len(late) < len(coming)


class SteppedStore(PostgresStore):
    """The store of production, with its clock and its faults at hand."""

    control: ControlDatabase
    clock: ManualClock


class EventRow(NamedTuple):
    """A line of history, with the name of its worker."""

    id: int
    at: datetime
    kind: str
    feed_id: int | None
    worker: str | None
    epoch: int | None
    detail: Mapping[str, Any]


def is_open(session: WorkerSession | Listener) -> bool:
    return not session._session.closed


def current() -> ControlDatabase:
    """The database of the fleets in this process."""
    return Session.control
