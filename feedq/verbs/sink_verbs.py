"""What people do with what a feed has in its sink: its cursor, its refused records, a namesake's checkpoint.

Commands and the API use this; commands that ask a server have `feedq.cli.api_sinks`, which does the same over the
API. Each method opens a session with the sink of the feed. Whose the feed is, is judged again within the sink's
transaction, once it has locked what it changes: the feed may have changed hands meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from feedq.control.store.postgresql import PostgresStore
from feedq.core.authorship import require_own
from feedq.core.model import ChangedCursor, Feed, StartCursor
from feedq.sinks.base import DeadLetter, Sink, parse_sink
from feedq.sinks.checkpoints import owner_of
from feedq.telemetry.event_names import EventKind
from feedq.verbs import adoption, feed_cursor
from feedq.verbs.actions import live_feed
from feedq.verbs.adoption import OpenSink
from feedq.verbs.backfill import FeedBackfills
from feedq.verbs.feed_cursor import Wish
from feedq.verbs.refused_records import ReplayOutcome, parts, replay_parts

WISHES: Mapping[str, Callable[..., Wish]] = {
    "set": feed_cursor.set_to,
    "reset": feed_cursor.reset,
    "rewind": feed_cursor.rewind,
}
CHECKPOINT_KEYS = ("cursor", "records", "updated_at", "epoch")


class SinkVerbs:
    """Does it in the sinks that ``open_sink`` opens."""

    def __init__(self, store: PostgresStore, open_sink: OpenSink) -> None:
        self._store, self._open = store, open_sink

    def cursor(self, name: str) -> dict[str, Any]:
        """Where a feed stands; null and 0 when it has not begun."""
        feed = live_feed(self._store, name)
        with self._sink(feed) as sink:
            found = feed_cursor.checkpoint_of(sink, feed)
        known = {key: getattr(found, key, None) for key in CHECKPOINT_KEYS}
        return {"name": name, **known, "records": known["records"] or 0}

    def change_cursor(self, name: str, verb: str, *, dry_run: bool = False, **given: Any) -> ChangedCursor:
        """``given`` is what the verb takes, as the functions of `WISHES` do."""
        feed = live_feed(self._store, name)
        wish = WISHES[verb](feed, **given)
        with self._sink(feed) as sink:
            return feed_cursor.change(self._store, sink, feed, wish, dry_run=dry_run)

    def letters(
        self, name: str, *, ids: Collection[int] = (), after: int | None = None, limit: int = 1
    ) -> list[DeadLetter]:
        """Refused records, newest first; oldest first ``after`` one. Also of a feed that is being removed."""
        with self._sink(self._store.feeds.get(name)) as sink:
            return sink.dead_letters(name, ids=ids, after=after, limit=limit)

    def replay(
        self,
        name: str,
        ids: Sequence[int],
        all_: bool,
        *,
        dry_run: bool = False,
        on_progress: Callable[[int], None] = lambda tried: None,
    ) -> ReplayOutcome:
        feed = live_feed(self._store, name)
        with self._sink(feed) as sink:
            chosen = parts(sink, name, ids, all_)
            if dry_run:
                return ReplayOutcome(landed=sum(map(len, chosen)))
            judge, found = partial(self._require_own, name), ReplayOutcome()
            try:
                replay_parts(feed.spec, sink, chosen, judge, found, on_progress=on_progress)
            finally:
                # A later part may fail: the earlier ones are done.
                if found.landed or found.refused:
                    told = {"landed": found.landed, "refused": len(found.refused)}
                    self._store.feeds.tell(name, EventKind.DEAD_LETTERS_REPLAYED, told)
        return found

    def drop(self, name: str, ids: Sequence[int], all_: bool, *, dry_run: bool = False) -> int:
        """Returns how many there were."""
        feed = live_feed(self._store, name)
        judge = partial(self._require_own, name)
        with self._sink(feed) as sink:
            chosen = parts(sink, name, ids, all_)
            if dry_run:
                return sum(map(len, chosen))
            dropped = 0
            try:
                for part in chosen:
                    dropped += sink.drop(part, judge=judge)
            finally:
                if dropped:
                    self._store.feeds.tell(name, EventKind.DEAD_LETTERS_DROPPED, {"dropped": dropped})
        return dropped

    def adopt(self, name: str, *, number: int | None, force: bool, dry_run: bool = False) -> str:
        """Have a feed go on from a namesake's checkpoint, and start anew. Returns whose that was."""
        feed = live_feed(self._store, name)
        with self._sink(feed) as sink:
            old = adoption.choose(sink, feed, number=number, force=force)
            if not dry_run:
                adoption.adopt(sink, feed, old, partial(self._require_own, name))
        if not dry_run:
            self._store.feeds.restart(name)
        return owner_of(old)

    @property
    def backfills(self) -> FeedBackfills:
        return FeedBackfills(self._store, self._open)

    def resumes(self, feeds: Sequence[Feed]) -> dict[str, StartCursor]:
        """Where feeds stand in their sinks, by name; those that have begun."""
        return adoption.resumes_of(feeds, self._open)

    def _require_own(self, name: str) -> None:
        require_own(self._store.feeds.get(name).spec.tenant, f"feed {name!r}")

    @contextmanager
    def _sink(self, feed: Feed) -> Iterator[Sink]:
        with self._open(parse_sink(feed.spec.sink).name) as sink:
            yield sink
