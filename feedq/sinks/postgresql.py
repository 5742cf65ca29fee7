"""The PostgreSQL sink: data and checkpoint in one transaction, gated by the epoch.

`PostgresSink` holds one session, opened when it is first needed and again after it broke, and decides what an
error means for the caller. How a group is committed is in `feedq.sinks.groupcommit`, how feeds are fenced in
`feedq.sinks.fencing`; all SQL is in `feedq.sinks.statements`.

What it relies on: whoever commits a feed's records holds the feed's checkpoint row locked from before the
first record to the commit, under an epoch that the row still has. So a stale owner can commit nothing, and
a successor that has fenced sees all that its predecessor ever committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Final, TypeVar
from uuid import UUID, uuid4

import psycopg2

from feedq.errors import SinkUnavailable
from feedq.model import FeedKey
from feedq.sinks.base import (
    Checkpoint,
    CommitUnknown,
    DeadLetter,
    FeedWrite,
    FenceOutcome,
    FenceRequest,
    Landing,
    Preview,
    Replayed,
    Taking,
    Unusable,
    Written,
)
from feedq.sinks.catalog import Catalog
from feedq.sinks.cursors import cursor_text
from feedq.sinks.fencing import Fencing
from feedq.sinks.groupcommit import Care, Course, GroupCommit, GroupFailed, Next, Part, by_landing
from feedq.sinks.identity import not_its_own, taken_meanwhile
from feedq.sinks.landing import misdeclared
from feedq.sinks.replay import preview, replay
from feedq.sinks.session import AnswerLost, Backend, SinkSession, application_name
from feedq.sinks.settlement import LastCommit, decide
from feedq.sinks.sqlstate import ErrorScope, classify, explain
from feedq.sinks.statements import (
    CHECKPOINTS,
    DEAD_LETTERS,
    DELETE_CHECKPOINT,
    DELETE_DEAD_LETTERS,
    END_BACKEND,
    END_SESSIONS,
    LAST_COMMITS,
    TAKE,
)
from feedq.telemetry import mask_url

T = TypeVar("T")

ATTEMPTS_MAX: Final = 12
"""At one group commit, and one more for each landing that is found locked. `Course` ends them sooner."""
READ_ATTEMPTS_MAX: Final = 5
"""Statements that end in a deadlock or a serialization failure are tried this often."""
SETTLE_LOCK_TIMEOUT_S: Final = 5.0
SPOILED_S: Final = 60.0
"""A feed with a bad record is looked through for others this long. That costs about a tenth of its throughput; a
group commit that fails because of one costs half of a group's."""
ROLES: Final = ("writer", "fencer")
UPGRADE_BY_OWNER: Final = (
    "feedq's own tables could not be made or brought up to this release: grant CREATE on the schema, and have the "
    "tables belong to this role, at least until it has connected once"
)


class PostgresSink:
    """One session with a PostgreSQL database, on behalf of one worker. Belongs to one thread."""

    def __init__(self, url: str, *, environment: str, worker_id: UUID, role: str) -> None:
        self._url = url
        self._environment = environment
        self._worker_id = worker_id
        self._name = application_name(role, worker_id)
        self._session: SinkSession | None = None
        self._catalog: Catalog | None = None
        self._lost: dict[UUID, Backend] = {}
        self._locked: set[Landing] = set()
        """Landings that could not be written when last tried, because of somebody's lock."""
        self._spoiled: dict[FeedKey, float] = {}
        """Feeds that had bad records, and until when others are expected of them."""

    def fence(self, requests: Sequence[FenceRequest], *, lock_timeout_s: float) -> list[FenceOutcome]:
        """Fence many feeds in few statements. Raises `SinkUnavailable`."""

        def fence(session: SinkSession, catalog: Catalog) -> list[FenceOutcome]:
            landings = {request.landing for request in requests}
            # A table that was taken away since is made anew, or complained about, before a feed starts.
            catalog.look_again(landings)
            wrong = catalog.problems(landings, create=True)
            unusable: list[FenceOutcome] = [
                Unusable(request.feed_id, request.epoch, wrong[request.landing])
                for request in requests
                if request.landing in wrong
            ]
            usable = [request for request in requests if request.landing not in wrong]
            fencing = Fencing(session, self._environment, self._worker_id)
            return unusable + fencing.fence(usable, lock_timeout_s=lock_timeout_s)

        return self._read(fence)

    def write(self, writes: Sequence[FeedWrite], *, briefly: bool = False) -> Written:
        """Land and checkpoint in one transaction. Raises `SinkUnavailable` (nothing was written) or
        `CommitUnknown`."""
        assert len({write.key for write in writes}) == len(writes), "a feed is twice in one group"
        landings = by_landing(writes).keys()
        course = Course(landings, briefly, doubted=self._locked & landings)
        for _ in range(ATTEMPTS_MAX + len(landings)):
            session, catalog = self._connect()
            try:
                written = self._write(session, catalog, writes, course)
                self._learn(writes, written, course)
                return written
            except GroupFailed as failed:
                last = failed
                session.rollback()
                if session.is_broken or failed.trouble is ErrorScope.UNAVAILABLE:
                    if not _died_idle(session):
                        break
                    continue
                match course.after(failed):
                    case Next.POSTPONE:
                        return self._postpone(writes, failed)
                    case Next.GIVE_UP:
                        break
            except psycopg2.Error as error:
                session.rollback()
                if not _died_idle(session):
                    raise self._unavailable(error, "nothing was written") from error
                last = GroupFailed(Part.CHECKPOINTS, ErrorScope.UNAVAILABLE, error, str(error))
            except CommitUnknown as unknown:
                self._lost[unknown.commit_id] = session.backend
                self.close()
                raise
            except BaseException:
                # Whatever it was, the transaction must not stay open behind it.
                self.close()
                raise
        raise self._unavailable(last.error, "nothing was written") from last.error

    def settle(self, unknown: CommitUnknown) -> Written | None:
        """Whether the lost commit happened; None: nothing of it did. Raises `SinkUnavailable`."""
        backend = self._lost.get(unknown.commit_id)

        def last_commits(session: SinkSession, _: Catalog) -> dict[int, LastCommit]:
            if backend is not None:
                # It may still hold a COMMIT that it has not read: without this, we would wait for it.
                session.execute(END_BACKEND, {"pid": backend.pid, "started_at": backend.started_at})
            session.set_lock_timeout(SETTLE_LOCK_TIMEOUT_S)
            # Locking waits for a commit in flight; a plain read would miss it.
            rows = session.execute(
                LAST_COMMITS,
                {
                    "environment": self._environment,
                    "feed_ids": [feed_id for feed_id, _ in unknown.written.landed],
                },
            )
            return {feed_id: LastCommit(epoch, commit_id) for feed_id, epoch, commit_id in rows}

        written = decide(unknown, self._read(last_commits))
        self._lost.pop(unknown.commit_id, None)
        return written

    def unblock(self, worker_ids: Collection[UUID]) -> int:
        """End the sessions of these workers, which the caller knows to be gone. Returns how many."""
        names = [
            application_name(role, worker_id)
            for worker_id in worker_ids
            if worker_id != self._worker_id
            for role in ROLES
        ]
        if not names:
            return 0
        ended = self._read(lambda session, _: session.execute(END_SESSIONS, {"names": names}))
        return sum(1 for (done,) in ended if done)

    def check(self, landing: Landing) -> str | None:
        """Why the landing cannot work; None when it can. Writes nothing. Raises `SinkUnavailable`."""

        def check(_: SinkSession, catalog: Catalog) -> str | None:
            catalog.look_again([landing])
            if not landing.is_mapped and not misdeclared(landing) and not catalog.exists(landing):
                return (
                    None
                    if catalog.may_create(landing)
                    else (
                        f"table {landing.table!r} does not exist and this role may not create it: create it, "
                        "or grant CREATE on its schema"
                    )
                )
            return catalog.problems([landing], create=False).get(landing)

        return self._read(check)

    def preview(self, write: FeedWrite) -> list[Preview]:
        """How the records would land. Writes nothing. Raises `SinkUnavailable`, `InvalidInput`."""
        try:
            return self._read(lambda session, catalog: preview(session, catalog, write))
        finally:
            # What the catalog has learnt was true inside a transaction that never happened.
            self.close()

    def dead_letters(
        self,
        feed: str | None = None,
        *,
        feed_id: int | None = None,
        ids: Collection[int] = (),
        after: int | None = None,
        limit: int = 50,
    ) -> list[DeadLetter]:
        """Refused records, newest first, or oldest first with ``after``. Raises `SinkUnavailable`."""
        wanted = {
            "environment": self._environment,
            "feed": feed,
            "feed_id": feed_id,
            "ids": list(ids) or None,
            "after": after,
            "limit": limit,
        }
        rows = self._read(lambda session, _: session.execute(DEAD_LETTERS, wanted))
        return [
            DeadLetter(id_, feed_id_, feed_, epoch, bytes(record), error, cursor, at)
            for id_, feed_id_, feed_, epoch, record, error, cursor, at in rows
        ]

    def replay(self, ids: Collection[int], landing: Landing) -> Replayed:
        """Land refused records after all. Raises `SinkUnavailable`, `InvalidInput`."""
        return self._read(
            lambda session, catalog: replay(session, catalog, self._environment, ids=ids, landing=landing)
        )

    def drop(self, ids: Collection[int]) -> int:
        """Delete refused records for good. Raises `SinkUnavailable`."""
        wanted = {"environment": self._environment, "ids": list(ids)}
        return len(self._read(lambda session, _: session.execute(DELETE_DEAD_LETTERS, wanted)))

    def checkpoints(self, feeds: Collection[str] | None = None) -> list[Checkpoint]:
        """What the sink knows of feeds of these names, or of all. Raises `SinkUnavailable`."""
        wanted = {"environment": self._environment, "feeds": None if feeds is None else list(feeds)}
        return [
            Checkpoint(*row) for row in self._read(lambda session, _: session.execute(CHECKPOINTS, wanted))
        ]

    def take(self, taking: Taking) -> None:
        """Give a feed its checkpoint. Raises `Conflict`, `SinkUnavailable`."""

        def take(session: SinkSession, _: Catalog) -> None:
            session.set_lock_timeout(SETTLE_LOCK_TIMEOUT_S)
            session.begin()
            old = taking.instead_of
            if old is not None and not session.execute(
                DELETE_CHECKPOINT,
                {
                    "environment": self._environment,
                    "feed_id": old.feed_id,
                    "commit_id": old.commit_id,
                    "feed_uuid": old.feed_uuid,
                },
            ):
                raise taken_meanwhile(old)
            taken = session.execute(
                TAKE,
                {
                    "environment": self._environment,
                    "feed_id": taking.feed_id,
                    "feed": taking.feed,
                    "owner": self._worker_id,
                    "cursor": cursor_text(taking.cursor),
                    "records": taking.records,
                    "commit_id": uuid4(),
                    "feed_uuid": taking.identity.feed,
                    "installation": taking.identity.installation,
                },
            )
            if not taken:
                raise not_its_own(taking)
            session.commit()

        try:
            self._read(take)
        except AnswerLost as lost:
            raise SinkUnavailable(
                f"nobody knows whether {taking.feed!r} has it now: {lost}; look again"
            ) from lost

    def close(self) -> None:
        """End the session. The sink can be used again, and opens another one then."""
        if self._session is not None:
            self._session.close()
        self._session = self._catalog = None

    # -- private -------------------------------------------------------------------------------------

    def _write(
        self, session: SinkSession, catalog: Catalog, writes: Sequence[FeedWrite], course: Course
    ) -> Written:
        """One attempt, without the feeds that cannot be written in any case."""
        grouped = by_landing(writes)
        landings = grouped.keys()
        if course.care is not Care.OPTIMISTIC:
            catalog.look_again(landings)
        wrong = catalog.problems(landings, create=False)
        wrong |= catalog.open_stages(landings - wrong.keys())
        unusable: dict[FeedKey, str] = {}
        for write in writes:
            if why := _unkeepable(write):
                unusable[write.key] = why
        for landing, why in wrong.items():
            unusable |= {write.key: why for write in grouped[landing]}
        usable = [write for write in writes if write.key not in unusable] if unusable else writes
        group = GroupCommit(
            session, catalog, self._environment, course=course, unusable=unusable, spoiled=self._spoiled
        )
        return group.run(usable)

    def _learn(self, writes: Sequence[FeedWrite], written: Written, course: Course) -> None:
        """Remember what makes the next group commit quicker, and forget what does not any more."""
        if written.postponed:
            self._locked |= {w.landing for w in writes if w.key in written.postponed} & course.held.keys()
        if self._locked:
            self._locked -= {write.landing for write in writes if write.key in written.landed}
        if written.dead or self._spoiled:
            now = monotonic()
            self._spoiled |= dict.fromkeys(written.dead, now + SPOILED_S)
            self._spoiled = {key: until for key, until in self._spoiled.items() if until > now}

    def _postpone(self, writes: Sequence[FeedWrite], failed: GroupFailed) -> Written:
        """The sink is well, and these cannot be committed: each of them is to be tried by itself."""
        # What the catalog knows may be what is wrong: it is read anew.
        self.close()
        return Written({}, {}, (), {}, {write.key: f"the commit failed: {failed}" for write in writes})

    def _read(self, work: Callable[[SinkSession, Catalog], T]) -> T:
        """Do what may be repeated: again after a conflict, or when the session turns out to be dead."""
        for _ in range(READ_ATTEMPTS_MAX):
            session, catalog = self._connect()
            try:
                return work(session, catalog)
            except psycopg2.Error as error:
                session.rollback()
                last = error
                if classify(error) is not ErrorScope.CONFLICT and not session.is_broken:
                    break
            except BaseException:
                self.close()
                raise
        raise self._unavailable(last) from last

    def _connect(self) -> tuple[SinkSession, Catalog]:
        """The session, opened anew if there is none or it is known to be broken. Raises `SinkUnavailable`."""
        if self._session is not None and self._session.is_broken:
            self.close()
        if self._session is None or self._catalog is None:
            try:
                session = SinkSession(self._url, application_name=self._name)
                self._session, self._catalog = session, Catalog(session)
                self._catalog.ensure_bookkeeping()
            except psycopg2.ProgrammingError as error:
                if error.pgcode is not None:
                    raise self._unavailable(error, UPGRADE_BY_OWNER) from error
                # From None: what libpq says of a URL that it cannot read may quote the password.
                raise SinkUnavailable(
                    f"sink {mask_url(self._url)}: libpq cannot read this URL; special characters in "
                    "user name and password must be percent-encoded"
                ) from None
            except psycopg2.Error as error:
                raise self._unavailable(error) from error
        return self._session, self._catalog

    def _unavailable(self, error: Exception, consequence: str = "") -> SinkUnavailable:
        """The error for the caller; the session starts afresh, whatever state it was in."""
        self.close()
        text = explain(error) if isinstance(error, psycopg2.Error) else str(error)
        if isinstance(error, psycopg2.Error) and classify(error) is ErrorScope.LOCKED:
            text = f"{text}: another session holds the lock ({error.diag.context or 'no more is known'})"
        parts = [f"sink {mask_url(self._url)}: {mask_url(text)}", *filter(None, [consequence])]
        return SinkUnavailable("; ".join(parts))


def _died_idle(session: SinkSession) -> bool:
    """Whether the connection was dead before the transaction began: then a new one is worth a try at once."""
    return session.is_broken and not session.has_begun


def _unkeepable(write: FeedWrite) -> str | None:
    try:
        cursor_text(write.cursor)
    except ValueError as error:
        return str(error)
    return None
