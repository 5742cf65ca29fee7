"""Tries a feed out: connects, reads the first records, and says how they would land. Imports nothing.

A trial does what a worker does with the feed, up to the point where it would write: the same options, secrets,
permissions and connector. Nothing is fenced, committed or acknowledged, so a worker that runs the feed at the same
time is not disturbed (a source that allows one connection only may disagree).

It runs where it is called, with that machine's environment and network, which need not be a worker's. The
connector gets a thread of its own: one that never ends, whatever it is told, must not keep the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Thread

import uvloop

from feedq.connectors.base import (
    ConnectorOptions,
    Context,
    Sockets,
    load_connector,
    parse_options,
    tell_if_unanswered,
)
from feedq.connectors.blocking import open_stream
from feedq.core.clock import Clock
from feedq.core.model import JSON, FeedSpec
from feedq.core.notices import NOTICES_MAX
from feedq.core.passwords import mask_url, masked
from feedq.errors import FeedqError, InvalidInput, SinkUnavailable
from feedq.records.batch import Batch, Records
from feedq.records.cursor import cursor_text
from feedq.secrets import Masker, resolve_secrets
from feedq.settings import Settings
from feedq.sinks.base import FeedWrite, Preview, Sink, Target, opened_sink, parse_sink, target_of
from feedq.verbs.manifests import option_problems
from feedq.verbs.wording import counted
from feedq.worker.first_records import hints

END_S = 2.0
"""What a connector gets to close its connection; it should take a second at most."""
GRACE_S = 1.0
"""How much longer than it was given it may take before it is left behind."""
QUIET_S = 2.0
"""A source that has given records, and then none for so long, is not waited for where few records will do."""
BYTES_MAX = 64 * 2**20
"""Records are few, but may be large: what is received of them ends a trial too."""


class StepOutcome(StrEnum):
    """The outcome of one step of a trial."""

    OK = "ok"
    FAILED = "failed"
    WARN = "warn"
    """It works, but is probably not what was meant."""


@dataclass(frozen=True, slots=True)
class TrialStep:
    """A step of a trial. ``detail`` says what was found, or why it failed."""

    step: str
    outcome: StepOutcome
    detail: str


@dataclass(slots=True)
class Trial:
    """The trial of a feed: its steps, and what came of them."""

    masker: Masker = field(default_factory=lambda: Masker(()))
    steps: list[TrialStep] = field(default_factory=list)
    records: list[Preview] = field(default_factory=list)
    """The first records, and how they would land; without columns when the sink could not be asked."""
    cursor: JSON = None
    """Where the source would be resumed after these."""

    @property
    def ok(self) -> bool:
        refused = any(record.error is not None for record in self.records)
        return not refused and all(step.outcome is not StepOutcome.FAILED for step in self.steps)

    def tell(self, step: str, outcome: StepOutcome, detail: str) -> None:
        self.steps.append(TrialStep(step, outcome, self.masker.mask(mask_url(detail))))


def try_feed(
    spec: FeedSpec,
    settings: Settings,
    clock: Clock,
    *,
    records: int = 5,
    timeout_s: float = 10.0,
    quiet_s: float | None = None,
    cursor: JSON = None,
    on_waiting: Callable[[str], object] = lambda why: None,
) -> Trial:
    """Try a feed. Blocks. Never raises for what a feed can do.

    ``timeout_s`` is for connecting and for all of the ``records`` together; with ``quiet_s`` fewer will do once
    the source has given none for so long. ``cursor`` None is where the source begins. ``on_waiting`` is told
    meanwhile, on another thread, what the feed waits for.
    """
    trial = Trial()
    if found := option_problems(spec):
        trial.tell("declaration", StepOutcome.FAILED, "; ".join(found))
        return trial
    trial.tell("declaration", StepOutcome.OK, f"connector {spec.connector}")
    options, sink_options = parse_options(spec.connector, spec.source), parse_sink(spec.sink)
    target = target_of(sink_options, options)
    with _sink(settings, sink_options.name, target, trial) as sink:
        try:
            secrets = resolve_secrets(options.secrets, tenant=spec.tenant, permissions=settings.permissions)
        except FeedqError as error:
            trial.tell("secrets", StepOutcome.FAILED, f"{error} (here, which may not be a worker)")
            return trial
        if secrets:
            trial.tell("secrets", StepOutcome.OK, f"{', '.join(secrets)}: resolved here")
        trial.masker = masker = Masker(secrets.values())
        reading = _Reading(
            records, timeout_s, quiet_s or timeout_s, lambda why: on_waiting(masker.mask(mask_url(why)))
        )
        context = Context(
            feed=spec.name,
            clock=clock,
            guard=Sockets(),
            on_connected=reading.connects,
            on_waiting=reading.waits,
            on_notice=reading.notes,
            secrets=secrets,
            permissions=settings.permissions,
            environment=settings.environment,
            trial=True,
        )
        reading.run(reading.read(spec.connector, options, context, cursor))
        trial.tell("source", *reading.judged())
        if reading.batches:
            _show_cursor(reading.batches[-1].cursor, trial)
            write = FeedWrite(0, spec.name, 0, target, _first(reading.batches, records))
            trial.records = [_masked(preview, masker) for preview in _previews(sink, write, trial)]
            # What the connector notices by itself it says better.
            hinted = hints(options, target, [preview.record for preview in trial.records])
            unnoticed = (odd for odd in hinted if odd[0] not in reading.notices)
            for about, what in (*reading.notices.items(), *unnoticed):
                trial.tell(about, StepOutcome.WARN, what)
    return trial


@contextlib.contextmanager
def _sink(settings: Settings, name: str, target: Target, trial: Trial) -> Iterator[Sink | None]:
    """The sink, if it answers and the landing can work."""
    with contextlib.ExitStack() as opened:
        sink: Sink | None = None
        try:
            sink = opened.enter_context(opened_sink(settings, name, role="trial"))
            wrong = sink.check(target)
        except (SinkUnavailable, InvalidInput) as error:
            wrong = str(error)
        if wrong is None:
            trial.tell("sink", StepOutcome.OK, f"{name}: records would land in {target.table}")
        else:
            trial.tell("sink", StepOutcome.FAILED, wrong)
        yield sink if wrong is None else None


class _Reading:
    """Reads what a connector gives, on a thread of its own, and keeps how that went."""

    def __init__(
        self, records: int, timeout_s: float, quiet_s: float, on_waiting: Callable[[str], object]
    ) -> None:
        self._records, self._timeout_s, self._quiet_s = records, timeout_s, quiet_s
        self._on_waiting = on_waiting
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline: asyncio.Timeout | None = None
        self._unanswered: asyncio.TimerHandle | None = None
        self._is_connected = False
        self._waits_for: str | None = None
        self._error: str | None = None
        self.batches: list[Batch] = []
        self.notices: dict[str, str] = {}

    def connects(self) -> None:
        self._is_connected = True
        self._stop_telling()

    def waits(self, why: str) -> None:
        self._stop_telling()
        self._waits_for = why
        self._on_waiting(why)

    def notes(self, key: str, said: str | None) -> None:
        if said is None:
            self.notices.pop(key, None)
        elif len(self.notices) < NOTICES_MAX:
            self.notices[key] = said

    def _stop_telling(self) -> None:
        if self._unanswered is not None:
            self._unanswered.cancel()

    def run(self, reading: Coroutine[None, None, None]) -> None:
        """Blocks for as long as was wanted, and a little longer at most."""
        thread = Thread(target=self._run, args=(reading,), name="feedq-trial", daemon=True)
        thread.start()
        try:
            thread.join(self._timeout_s + END_S + GRACE_S)
        except KeyboardInterrupt:
            # The source is left as politely as a person who waits allows: as if the time were up.
            if self._loop is not None and self._deadline is not None:
                self._loop.call_soon_threadsafe(self._deadline.reschedule, 0.0)
                thread.join(END_S)
            raise
        if thread.is_alive():
            self._error = f"the connector did not end within {END_S + GRACE_S:g} s of being told to"

    def _run(self, reading: Coroutine[None, None, None]) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self._loop = runner.get_loop()
                runner.run(reading)
        except FeedqError as trouble:
            self._error = str(trouble)
        except BaseException as trouble:  # noqa: BLE001 -- anybody's connector, which may even say SystemExit
            self._error = f"unexpected error in connector: {trouble!r}"

    async def read(self, connector: str, options: ConnectorOptions, context: Context, cursor: JSON) -> None:
        """Connects, and keeps batches until there are enough. Raises what the connector raises."""
        stream = open_stream(load_connector(connector), options, context=context, cursor=cursor)
        self._unanswered = tell_if_unanswered(options, self.waits)
        now = asyncio.get_running_loop().time
        end = now() + self._timeout_s
        self._deadline = asyncio.timeout_at(end)
        try:
            async with self._deadline:
                async for batch in stream:
                    if self._is_enough_with(batch):
                        return
                    if batch.count and not self._deadline.expired():
                        self._deadline.reschedule(min(end, now() + self._quiet_s))
                    # A stream that is never waited for would not let the time run out.
                    await asyncio.sleep(0)
                self._error = "the source ended the stream"
        except TimeoutError:
            # What there is by then is the result; unless it is the connector's own.
            if not self._deadline.expired():
                raise
        finally:
            self._stop_telling()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await stream.aclose()

    def _is_enough_with(self, batch: Batch) -> bool:
        if not isinstance(batch, Batch):
            raise TypeError(f"it gave a {type(batch).__name__} instead of a Batch")
        if batch.count:
            self.batches.append(batch)
        count, size = sum(b.count for b in self.batches), sum(b.size for b in self.batches)
        return count >= self._records or size >= BYTES_MAX

    def judged(self) -> tuple[StepOutcome, str]:
        """How the source did, in words."""
        within = f"within {self._timeout_s:g} s (--timeout)"
        if count := sum(batch.count for batch in self.batches):
            then = f", then: {self._error}" if self._error else ""
            return StepOutcome.OK, f"connected; {counted(count, 'record')}{then}"
        if self._error:
            return StepOutcome.FAILED, self._error
        if self._is_connected:
            return StepOutcome.OK, f"connected; no record {within}"
        waits = self._waits_for
        return StepOutcome.FAILED, f"{waits}; no record {within}" if waits else f"no connection {within}"


def _show_cursor(cursor: JSON, trial: Trial) -> None:
    try:
        cursor_text(cursor)
    except ValueError as error:
        trial.tell("cursor", StepOutcome.FAILED, str(error))
    else:
        trial.cursor = masked(cursor, trial.masker.mask)


def _first(batches: list[Batch], records: int) -> tuple[Batch, ...]:
    """The first records only, in batches of one: each lands with its own cursor and time."""
    each = ((batch, record) for batch in batches for record in batch.split())
    return tuple(
        Records(records=(record,)).batch(cursor=batch.cursor, received_at=batch.received_at)
        for batch, record in itertools.islice(each, records)
    )


def _previews(sink: Sink | None, write: FeedWrite, trial: Trial) -> list[Preview]:
    if sink is not None:
        try:
            return sink.preview(write)
        except Exception as error:  # noqa: BLE001 -- also of a batch that is not as it has to be
            trial.tell("landing", StepOutcome.FAILED, str(error) or repr(error))
    return [Preview(record, {}) for batch in write.batches for record in batch.split()]


def _masked(preview: Preview, masker: Masker) -> Preview:
    """A source may send back what it was told."""
    return Preview(
        masker.mask(preview.record.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"),
        {name: None if text is None else masker.mask(text) for name, text in preview.columns.items()},
        None if preview.error is None else masker.mask(preview.error),
    )
