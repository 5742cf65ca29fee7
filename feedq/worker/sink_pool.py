"""The sink pool of a worker: for each named sink a writer and a fencer, made when a feed first needs one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from feedq.settings import Settings
from feedq.sinks.base import Fenced, FenceOutcome, FenceRequest, Sink, Target, load_sink
from feedq.sinks.mapping import Drift
from feedq.worker.batch_queue import BatchQueue, InflightBudget
from feedq.worker.fencer import Fencer, GoneWorkers
from feedq.worker.sink_thread import Down, Outage
from feedq.worker.writer import Writer

if TYPE_CHECKING:
    from feedq.worker.progress_reporter import FeedProgress

FLUSH_BYTES = 4 * 2**20
"""A group commit starts early when this many bytes wait: more in one COPY lands no faster (`make bench`)."""
FEEDS_TO_FILL_IT = 4
"""One feed stops reading at this part of what the worker may hold, so that no feed can fill it alone. Half of its
part is written while the other half comes in."""
FENCE_LOCK_TIMEOUT_S = 0.25
"""How long a new owner waits for its predecessor's commit before it looks who is in the way: most commits take
less, and a frozen predecessor is found quickly."""
DOWN_AFTER_S = 2.0
"""A sink that was away for less was restarted, or the network stumbled: nobody need hear of it."""
WRITTEN_S = 30.0
"""A sink counts as within reach for so long after it was written to: longer than most feeds are silent."""


class SinkEnds(NamedTuple):
    """The writer and fencer of one sink, and whether that sink can be reached."""

    outage: Outage
    writer: Writer
    fencer: Fencer


class SinkPool:
    """Writers and fencers by sink name. Thread-safe; `fence` and `open_batch_queue` on a runner's loop."""

    def __init__(
        self, settings: Settings, *, worker_id: Callable[[], UUID], gone_workers: GoneWorkers
    ) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._gone_workers = gone_workers
        self._ends: dict[str, SinkEnds] = {}
        self._lock = Lock()
        self.budget = InflightBudget(settings.inflight_bytes_total)

    def load(self) -> None:
        """Import what the sinks need: half a second, for which the first feeds would have to wait."""
        for name in self._settings.sink_names:
            with suppress(Exception):  # its feeds are told
                load_sink(self._settings.sink_url(name))

    async def fence(self, sink: str, request: FenceRequest) -> FenceOutcome:
        """Raises `SinkUnavailable`, or `InvalidInput` when no such sink is set up here."""
        return await self._ends_of(sink).fencer.fence(request)

    def open_batch_queue(
        self,
        sink: str,
        feed: str,
        target: Target,
        fenced: Fenced,
        progress: FeedProgress,
        on_change: Callable[[], None],
    ) -> BatchQueue:
        if target.drift is Drift.ADD and self._settings.drift_add:
            target = replace(target, adds_columns=True)
        return BatchQueue(
            progress.key,
            feed,
            target,
            cursor=fenced.cursor,
            continues=fenced.commit_id,
            budget=self.budget,
            inflight_max=self._settings.inflight_bytes_total // FEEDS_TO_FILL_IT,
            writer=self._ends_of(sink).writer,
            progress=progress,
            on_change=on_change,
        )

    def down(self, *, for_s: float = DOWN_AFTER_S) -> dict[str, str]:
        """The sinks that this worker has not reached for so long, and why."""
        long_ago = monotonic() - for_s
        found: dict[str, str] = {}
        for name, ends in list(self._ends.items()):
            match ends.outage.down:
                case Down(since, error) if since <= long_ago:
                    found[name] = error
        return found

    def up(self) -> tuple[str, ...]:
        """The sinks that it has written to lately."""
        long_ago, down = monotonic() - WRITTEN_S, self.down()
        written = {name for name, ends in list(self._ends.items()) if ends.outage.written_at > long_ago}
        return tuple(sorted(written - down.keys()))

    def trouble(self, sink: str) -> str | None:
        """Return why the sink has not been reached for a while; None when it has."""
        return self.down().get(sink)

    def flush_now(self, sink: str) -> None:
        """Ask the writer to commit now."""
        if sink in self._ends:
            self._ends[sink].writer.flush_now()

    def expect_feeds(self) -> None:
        """Get ready to fence, in the sinks that are in use here: many feeds are being claimed."""
        for ends in list(self._ends.values()):
            ends.fencer.expect_feeds()

    def renew(self) -> None:
        """Sessions opened from now on carry the new worker's id; those under the old one are closed."""
        for ends in list(self._ends.values()):
            ends.writer.renew()
            ends.fencer.renew()

    def stop(self, *, timeout_s: Callable[[], float]) -> None:
        """End the threads, waiting for each as long as ``timeout_s`` then says."""
        for ends in self._ends.values():
            ends.writer.stop(timeout_s=timeout_s())
            ends.fencer.stop(timeout_s=timeout_s())

    def _ends_of(self, sink: str) -> SinkEnds:
        with self._lock:
            if sink not in self._ends:
                outage = Outage(sink)
                writer = Writer(
                    sink,
                    self._maker(sink, "writer"),
                    outage,
                    flush_interval_s=self._settings.flush_interval_s,
                    flush_bytes=FLUSH_BYTES,
                )
                fencer = Fencer(
                    sink,
                    self._maker(sink, "fencer"),
                    outage,
                    gone_workers=self._gone_workers,
                    lock_timeout_s=FENCE_LOCK_TIMEOUT_S,
                )
                writer.start()
                self._ends[sink] = SinkEnds(outage, writer, fencer)
            return self._ends[sink]

    def _maker(self, name: str, role: str) -> Callable[[], Sink]:
        url = self._settings.sink_url(name)
        kind = load_sink(url)
        return lambda: kind(
            url, environment=self._settings.environment, worker_id=self._worker_id(), role=role
        )
