"""The consumer of a feed at a JetStream server: where it begins, and what it may remember.

A consumer that outlives a worker remembers what was *delivered*; what landed is in the checkpoint. Together
they would lose data. Say 1 to 100 were delivered, 50 was committed, and the worker died: to its successor the
consumer delivers 101 at once, and 51 to 100 only when their time to be acknowledged is over. Once 101 is committed
the cursor is beyond them, and they count as landed. So each connection makes the consumer anew, right after the
cursor, and within a connection deliveries are in order; a second delivery is recognised by its sequence and
dropped.

How it is made depends on what keeps a message in the stream:

* *limits*: nothing there depends on a consumer, so it is kept in memory and vanishes when it is not used.
* *interest*: a message is kept until every consumer has acknowledged it, and only while there is a consumer.
  The new one is made before the old one is deleted, under the other one of two names, and it is durable: while no
  worker runs the feed it is what keeps the messages. It stays when the feed is removed: delete it then.
* *work queue*: a message is kept until it is acknowledged, and there can be only one consumer, which begins with
  what is left. So the old one is deleted first, and what the cursor has passed is acknowledged and dropped.

An acknowledgement stands for all messages before it, but in a work queue, where each has its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StreamInfo
from nats.js.errors import NotFoundError

from feedq.model import JSON

ACK_WAIT_S: Final = 86_400.0
"""After this the server delivers again what was not acknowledged. That is of no use here, see above, and a sink
may be away for long."""
INACTIVE_S: Final = 300.0
"""A consumer that is not durable vanishes when nobody has pulled for this long. A feed held back longer makes it
anew."""

Deliver = Literal["all", "new", "last"]


@dataclass(frozen=True, slots=True)
class NatsCursor:
    """The cursor: a sequence of a stream, and which stream of that name it was."""

    seq: int
    created: str

    @classmethod
    def of(cls, cursor: JSON) -> NatsCursor | None:
        match cursor:
            case {"seq": int(seq), "created": str(created)}:
                return cls(seq, created)
        return None

    def cursor(self) -> JSON:
        return {"seq": self.seq, "created": self.created}


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin in a stream as it is now."""

    policy: DeliverPolicy
    seq: int | None = None
    """With `DeliverPolicy.BY_START_SEQUENCE`."""
    landed: int = 0
    """Messages up to this sequence have landed, whatever the server delivers."""
    gap: str | None = None
    """What is missing, for the log."""
    missed: int = 0
    """How many messages that is, if it is known."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a feed asks of its consumer."""

    subjects: tuple[str, ...]
    deliver: Deliver
    max_unacknowledged: int
    trial: bool


def choose_start(position: NatsCursor | None, stream: StreamInfo, deliver: Deliver) -> Start:
    """Where a consumer must begin so that everything after the cursor comes."""
    state, retention = stream.state, retention_of(stream)
    start = Start(DeliverPolicy(deliver))
    if position is None:
        if deliver == "new" and retention is not RetentionPolicy.WORK_QUEUE:
            # By number, so that it says where it began: see `make_consumer`.
            start = Start(DeliverPolicy.BY_START_SEQUENCE, seq=state.last_seq + 1)
    elif position.created != created(stream) or position.seq > state.last_seq:
        gap = f"the stream was made anew or restored since {position.seq} was read; it is read from its beginning"
        start = Start(DeliverPolicy.ALL, gap=gap)
    else:
        start = Start(DeliverPolicy.BY_START_SEQUENCE, seq=position.seq + 1, landed=position.seq)
        if retention is RetentionPolicy.LIMITS and state.first_seq > position.seq + 1:
            gap = f"the oldest message left is {state.first_seq}, the last one read was {position.seq}"
            start = replace(start, gap=gap, missed=state.first_seq - position.seq - 1)
    if retention is RetentionPolicy.WORK_QUEUE:
        # Begins with what is left, and allows nothing else.
        return replace(start, policy=DeliverPolicy.ALL, seq=None)
    return start


async def make_consumer(
    js: JetStreamContext, stream: StreamInfo, name: str, start: Start, terms: Terms
) -> str:
    """The name of a new consumer, with that of a predecessor deleted."""
    stream_name = stream.config.name
    assert stream_name is not None
    first, second = f"{name}-a", f"{name}-b"
    if terms.trial:
        first = second = f"{name}-trial"
    if retention_of(stream) is RetentionPolicy.WORK_QUEUE:
        # That of a trial would be in the way too; that of the feed is not a trial's to delete.
        for old in {first, second, f"{name}-trial"}:
            await _delete(js, stream_name, old)
        new, old = first, first
    else:
        second_exists = await _acknowledged(js, stream_name, second) is not None
        new, old = (first, second) if second_exists else (second, first)
        start = await _go_on(js, stream_name, old, start, terms)
        # A worker may have died between making one and deleting the other.
        await _delete(js, stream_name, new)
    await js.add_consumer(stream_name, _config(new, stream, start, terms))
    if old != new:
        await _delete(js, stream_name, old)
    return new


async def _go_on(js: JetStreamContext, stream: str, old: str, start: Start, terms: Terms) -> Start:
    """With ``deliver: new`` and nothing landed yet, begin where the predecessor did, not at what is new by now."""
    if start.landed or terms.deliver != "new" or terms.trial or start.seq is None:
        return start
    acknowledged = await _acknowledged(js, stream, old)
    return start if acknowledged is None else replace(start, seq=min(start.seq, acknowledged + 1))


def _config(name: str, stream: StreamInfo, start: Start, terms: Terms) -> ConsumerConfig:
    retention = retention_of(stream)
    config = ConsumerConfig(
        name=name,
        description="A feed of feedq",
        deliver_policy=start.policy,
        opt_start_seq=start.seq,
        ack_policy=AckPolicy.EXPLICIT if retention is RetentionPolicy.WORK_QUEUE else AckPolicy.ALL,
        ack_wait=ACK_WAIT_S,
        max_ack_pending=terms.max_unacknowledged,
        filter_subject=terms.subjects[0] if len(terms.subjects) == 1 else None,
        filter_subjects=list(terms.subjects) if len(terms.subjects) > 1 else None,
    )
    if retention is RetentionPolicy.INTEREST and not terms.trial:
        config.durable_name = name
    else:
        config.inactive_threshold = INACTIVE_S
    if retention is RetentionPolicy.LIMITS:
        # Of no worth to anybody else. By the other policies a consumer must be kept as safely as its stream.
        config.mem_storage, config.num_replicas = True, 1
    if terms.trial and retention is not RetentionPolicy.WORK_QUEUE:
        config.ack_policy, config.max_ack_pending = AckPolicy.NONE, None
    return config


async def _acknowledged(js: JetStreamContext, stream: str, consumer: str) -> int | None:
    """Up to which sequence a consumer has everything acknowledged; None: there is no such consumer."""
    try:
        info = await js.consumer_info(stream, consumer)
    except NotFoundError:
        return None
    began = (info.config.opt_start_seq or 1) - 1
    # Before the first acknowledgement older servers say 0 here, wherever the consumer began.
    return max(began, 0 if info.ack_floor is None else info.ack_floor.stream_seq)


async def _delete(js: JetStreamContext, stream: str, consumer: str) -> None:
    try:
        await js.delete_consumer(stream, consumer)
    except NotFoundError:
        return


def retention_of(stream: StreamInfo) -> RetentionPolicy:
    """What keeps its messages. The library leaves it the string that it came as."""
    return RetentionPolicy(stream.config.retention or RetentionPolicy.LIMITS)


def created(stream: StreamInfo) -> str:
    """When a stream was made: it tells it from another one of its name."""
    return (stream.created or datetime.fromtimestamp(0, UTC)).isoformat()
