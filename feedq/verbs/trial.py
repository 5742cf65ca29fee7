"""Tries a feed out: connects, reads the first records, and says how they would land. Imports nothing.

What is done here is what a worker does with the feed, up to the point where it would write: the same options,
secrets, permissions and connector. Nothing is fenced, committed or acknowledged, so a worker that runs
the feed at the same time is not disturbed (a source that allows one connection only may disagree).

It runs where it is called, with that machine's environment and network, which need not be a worker's. The
connector gets a thread of its own: one that never ends, whatever it is told, must not keep the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Event, Thread

import uvloop

from feedq.connectors.base import (
    ConnectorOptions,
    Context,
    load_connector,
    open_stream,
    parse_options,
    tell_if_unanswered,
)
from feedq.core.clock import Clock
from feedq.core.model import JSON, Batch, FeedSpec
from feedq.core.notices import NOTICES_MAX
from feedq.core.passwords import mask_url
from feedq.core.permission import Permissions
from feedq.errors import FeedqError, InvalidInput, SinkUnavailable
from feedq.secrets import Masker, resolve_secrets
from feedq.settings import Settings
from feedq.sinks.base import FeedWrite, Preview, Sink, Target, opened_sink, parse_sink, target_of
from feedq.sinks.checkpoints import cursor_text
from feedq.verbs.manifest.options import problems
from feedq.worker.first_records import hints
from feedq.worker.sockets import Sockets

END_S = 2.0
"""What a connector gets to close its connection; it should take a second at most."""
GRACE_S = 1.0
"""How much longer than it was given it may take before it is left behind."""
BYTES_MAX = 64 * 2**20
"""Records are few, but may be large: what is received of them ends a trial too."""


class StepOutcome(StrEnum):
    """The outcome of one step of a trial."""

    OK = "ok"
    FAILED = "failed"
    WARN = "warn"
    """It works, and is hardly what was meant."""
    SKIPPED = "skipped"
    """Could not be tried because of an earlier one."""


@dataclass(frozen=True, slots=True)
class TrialStep:
    """A step of a trial. ``detail`` says what was found, or why it failed."""

    name: str
    outcome: StepOutcome
    detail: str = ""


@dataclass(slots=True)
class Trial:
    """The trial of a feed: its steps, and what came of them."""

    steps: list[TrialStep] = field(default_factory=list)
    records: list[Preview] = field(default_factory=list)
    """The first records, and how they would land; without columns when the sink could not be asked."""
    cursor: JSON = None
    """Where the source would be resumed after these."""

    @property
    def ok(self) -> bool:
        refused = any(record.error is not None for record in self.records)
        return not refused and all(step.outcome is not StepOutcome.FAILED for step in self.steps)

    def passed(self, step: str, detail: str) -> None:
        self.steps.append(TrialStep(step, StepOutcome.OK, detail))

    def failed(self, step: str, detail: str) -> None:
        self.steps.append(TrialStep(step, StepOutcome.FAILED, detail))

    def warned(self, step: str, detail: str) -> None:
        self.steps.append(TrialStep(step, StepOutcome.WARN, detail))

    def skipped(self, step: str, detail: str) -> None:
        self.steps.append(TrialStep(step, StepOutcome.SKIPPED, detail))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The extent of a trial."""

    records: int = 5
    timeout_s: float = 10.0
    """For connecting and for all of the records together."""
    cursor: JSON = None
    """Where to begin; None is where the source begins."""


def try_feed(
    spec: FeedSpec,
    settings: Settings,
    clock: Clock,
    *,
    wanted: Wanted,
    on_waiting: Callable[[str], None] = lambda why: None,
) -> Trial:
    """Try a feed. Blocks. Never raises for what a feed can do. ``on_waiting`` is told meanwhile, on another
    thread, what the feed waits for."""
    trial = Trial()
    if found := problems(spec):
        trial.failed("declaration", "; ".join(found))
        return trial
    trial.passed("declaration", f"connector {spec.connector}")
    options = parse_options(spec.connector, spec.source)
    secrets = _secrets(options, trial, tenant=spec.tenant, permissions=settings.permissions)
    sink_options = parse_sink(spec.sink)
    target = target_of(sink_options, options)
    with _sink(spec, settings, target, trial) as sink:
        if secrets is None:
            trial.skipped("source", "for want of the secrets")
            return trial
        masker = Masker(secrets.values())
        context = Context(
            feed=spec.name,
            clock=clock,
            guard=Sockets(),
            on_connected=lambda: None,
            on_waiting=lambda why: on_waiting(masker.mask(mask_url(why))),
            secrets=secrets,
            permissions=settings.permissions,
            environment=settings.environment,
            trial=True,
        )
        received = _Reception(spec.connector, options, context, wanted)
        received.run()
        _judge_source(received, trial, masker)
        if received.batches:
            _show_cursor(received.batches[-1].cursor, trial, masker)
            write = FeedWrite(0, spec.name, 0, target, _first(received.batches, wanted.records))
            trial.records = [_masked(preview, masker) for preview in _previews(sink, write, trial)]
            # What the connector notices by itself it says better.
            noticed = {about for about, _ in received.notices}
            hinted = hints(options, sink_options, [preview.record for preview in trial.records])
            for about, what in [*received.notices, *(odd for odd in hinted if odd[0] not in noticed)]:
                trial.warned(about, masker.mask(what))
    return trial


def _secrets(
    options: ConnectorOptions, trial: Trial, *, tenant: str, permissions: Permissions
) -> dict[str, str] | None:
    try:
        secrets = resolve_secrets(options.secrets, tenant=tenant, permissions=permissions)
    except FeedqError as error:
        trial.failed("secrets", f"{error} (here, which may not be a worker)")
        return None
    if secrets:
        trial.passed("secrets", f"{', '.join(secrets)}: resolved here")
    return secrets


@contextlib.contextmanager
def _sink(spec: FeedSpec, settings: Settings, target: Target, trial: Trial) -> Iterator[Sink | None]:
    """The sink, if it answers and the landing can work."""
    name = parse_sink(spec.sink).name
    with contextlib.ExitStack() as opened:
        sink: Sink | None = None
        try:
            sink = opened.enter_context(opened_sink(settings, name, role="trial"))
            wrong = sink.check(target)
        except (SinkUnavailable, InvalidInput) as error:
            wrong = mask_url(str(error))
        if wrong is None:
            trial.passed("sink", f"{name}: records would land in {target.table}")
        else:
            trial.failed("sink", wrong)
        yield sink if wrong is None else None


class _Reception:
    """What a connector gave, on a thread of its own."""

    def __init__(self, connector: str, options: ConnectorOptions, context: Context, wanted: Wanted) -> None:
        self._connector = connector
        self._options = options
        self._connected = Event()
        self._context = replace(
            context, on_connected=self._connects, on_waiting=self._waits, on_notice=self._notices
        )
        self._on_waiting = context.on_waiting
        self._unanswered: asyncio.TimerHandle | None = None
        self.waits_for: str | None = None
        self.notices: list[tuple[str, str]] = []
        self.wanted = wanted
        self._received: list[Batch] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = Event()
        self.batches: tuple[Batch, ...] = ()
        self.error: str | None = None

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def _connects(self) -> None:
        self._connected.set()
        self._stop_telling()

    def _waits(self, why: str) -> None:
        self._stop_telling()
        self.waits_for = why
        self._on_waiting(why)

    def _notices(self, key: str, said: str) -> None:
        if len(self.notices) < NOTICES_MAX and (key, said) not in self.notices:
            self.notices.append((key, said))

    def _stop_telling(self) -> None:
        if self._unanswered is not None:
            self._unanswered.cancel()

    def run(self) -> None:
        """Blocks for as long as was wanted, and a little longer at most."""
        thread = Thread(target=self._run, name="feedq-trial", daemon=True)
        thread.start()
        try:
            is_over = self._over.wait(self.wanted.timeout_s + END_S + GRACE_S)
        except BaseException:
            # Interrupted, by a person who waits: the source is left as politely as that allows.
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
                self._over.wait(END_S)
            raise
        self.batches = tuple(self._received)
        if is_over:
            # Its loop is closed in peace; if that takes longer, nothing depends on it.
            thread.join(GRACE_S)
        else:
            self.error = f"the connector did not end within {END_S + GRACE_S:g} s of being told to"

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
                loop.run(self._receive())
        except BaseException as trouble:  # noqa: BLE001 -- anybody's connector, which may even say SystemExit
            self.error = f"unexpected error in connector: {trouble!r}"
        finally:
            self._over.set()

    async def _receive(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await self._stream()
        except FeedqError as trouble:
            self.error = str(trouble)
        except Exception as trouble:  # noqa: BLE001 -- anybody's connector; what it says is the result
            self.error = f"unexpected error in connector: {trouble!r}"
        # Before the loop is closed, for which nobody need wait.
        self._over.set()

    async def _stream(self) -> None:
        connector = load_connector(self._connector)
        stream = open_stream(connector, self._options, context=self._context, cursor=self.wanted.cursor)
        self._unanswered = tell_if_unanswered(self._options, self._waits)
        try:
            async with asyncio.timeout(self.wanted.timeout_s) as deadline:
                async for batch in stream:
                    if self._has_enough(batch):
                        return
                    # A stream that is never waited for would not let the time run out.
                    await asyncio.sleep(0)
                self.error = "the source ended the stream"
        except TimeoutError:
            # What there is by then is the result; unless it is the connector's own.
            if not deadline.expired():
                raise
        finally:
            self._stop_telling()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await stream.aclose()

    def _has_enough(self, batch: Batch) -> bool:
        if not isinstance(batch, Batch):
            raise TypeError(f"it gave a {type(batch).__name__} instead of a Batch")
        if batch.count:
            self._received.append(batch)
        return (
            sum(b.count for b in self._received) >= self.wanted.records
            or sum(b.size for b in self._received) >= BYTES_MAX
        )


def _judge_source(received: _Reception, trial: Trial, masker: Masker) -> None:
    count = sum(batch.count for batch in received.batches)
    error = received.error and masker.mask(mask_url(received.error))
    within = f"within {received.wanted.timeout_s:g} s (--timeout)"
    if count:
        trial.passed("source", f"connected; {count} records{f', then: {error}' if error else ''}")
    elif error:
        trial.failed("source", error)
    elif received.is_connected:
        trial.passed("source", f"connected; no record {within}")
    else:
        waits_for = received.waits_for and masker.mask(mask_url(received.waits_for))
        trial.failed("source", f"{waits_for}; no record {within}" if waits_for else f"no connection {within}")


def _show_cursor(cursor: JSON, trial: Trial, masker: Masker) -> None:
    try:
        cursor_text(cursor)
    except ValueError as error:
        trial.failed("cursor", masker.mask(str(error)))
    else:
        trial.cursor = _masked_cursor(cursor, masker)


def _first(batches: tuple[Batch, ...], records: int) -> tuple[Batch, ...]:
    """The first records only, in batches of one: each lands with its own cursor and time."""
    each = ((batch, record) for batch in batches for record in batch.split())
    return tuple(
        Batch.of_records([record], cursor=batch.cursor, received_at=batch.received_at)
        for batch, record in itertools.islice(each, records)
    )


def _previews(sink: Sink | None, write: FeedWrite, trial: Trial) -> list[Preview]:
    plain = [Preview(record, {}) for batch in write.batches for record in batch.split()]
    if sink is None:
        return plain
    try:
        return sink.preview(write)
    except (SinkUnavailable, InvalidInput) as error:
        trial.failed("landing", mask_url(str(error)))
    except Exception as error:  # noqa: BLE001 -- of a batch that is not as it has to be
        trial.failed("landing", mask_url(f"unexpected error: {error!r}"))
    return plain


def _masked(preview: Preview, masker: Masker) -> Preview:
    """A source may send back what it was told."""
    return Preview(
        masker.mask(preview.record.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"),
        {name: None if text is None else masker.mask(text) for name, text in preview.columns.items()},
        None if preview.error is None else masker.mask(preview.error),
    )


def _masked_cursor(cursor: JSON, masker: Masker) -> JSON:
    match cursor:
        case str():
            return masker.mask(cursor)
        case list():
            return [_masked_cursor(inner, masker) for inner in cursor]
        case dict():
            return {masker.mask(key): _masked_cursor(inner, masker) for key, inner in cursor.items()}
    return cursor
