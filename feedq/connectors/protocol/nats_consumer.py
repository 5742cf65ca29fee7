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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Literal

from feedq.connectors.protocol.nats_client import JetStreamRefusal, NatsClient
from feedq.model import JSON

NANOSECONDS: Final = 1_000_000_000
NOT_FOUND: Final = 404

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


class Retention(StrEnum):
    """What keeps a message in a stream."""

    LIMITS = "limits"
    INTEREST = "interest"
    WORK_QUEUE = "workqueue"


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What a server says of a stream."""

    name: str
    created: str
    """When it was made: that tells it from another one of its name."""
    retention: Retention
    first_seq: int
    last_seq: int
    keeps_each: bool = True
    """Whether a newer message of a subject takes the place of none before it."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> StreamFacts:
        """Raises `ValueError`, `KeyError` or `TypeError` for what is no answer of JetStream."""
        config, state = answer["config"], answer["state"]
        made = answer.get("created")
        made_at = datetime.fromtimestamp(0, UTC) if made is None else datetime.fromisoformat(made)
        return cls(
            name=str(config["name"]),
            created=made_at.astimezone(UTC).isoformat(),
            retention=Retention(config.get("retention") or Retention.LIMITS),
            first_seq=int(state["first_seq"]),
            last_seq=int(state["last_seq"]),
            keeps_each=int(config.get("max_msgs_per_subject") or 0) <= 0,
        )


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin in a stream as it is now."""

    policy: Literal["all", "new", "last", "by_start_sequence"]
    seq: int | None = None
    """With ``by_start_sequence``."""
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


def choose_start(position: NatsCursor | None, stream: StreamFacts, deliver: Deliver) -> Start:
    """Where a consumer must begin so that everything after the cursor comes."""
    start = Start(deliver)
    if position is None:
        if deliver == "new" and stream.retention is not Retention.WORK_QUEUE:
            # By number, so that it says where it began: see `JetStream.make_consumer`.
            start = Start("by_start_sequence", seq=stream.last_seq + 1)
    elif position.created != stream.created or position.seq > stream.last_seq:
        gap = f"the stream was made anew or restored since {position.seq} was read; it is read from its beginning"
        start = Start("all", gap=gap)
    else:
        start = Start("by_start_sequence", seq=position.seq + 1, landed=position.seq)
        if stream.retention is Retention.LIMITS and stream.first_seq > position.seq + 1:
            gap = f"the oldest message left is {stream.first_seq}, the last one read was {position.seq}"
            start = replace(start, gap=gap, missed=stream.first_seq - position.seq - 1)
    if stream.retention is Retention.WORK_QUEUE:
        # Begins with what is left, and allows nothing else.
        return replace(start, policy="all", seq=None)
    return start


class JetStream:
    """What is asked of a server's API about one stream. Raises what `NatsClient.ask` does."""

    def __init__(self, client: NatsClient, *, stream: str, domain: str | None) -> None:
        self._client = client
        self._stream = stream
        self.prefix = "$JS.API" if domain is None else f"$JS.{domain}.API"

    async def stream_facts(self) -> StreamFacts:
        return StreamFacts.of(await self._client.ask(f"{self.prefix}.STREAM.INFO.{self._stream}"))

    async def make_consumer(self, stream: StreamFacts, name: str, start: Start, terms: Terms) -> str:
        """The name of a new consumer, with that of a predecessor deleted."""
        first, second = f"{name}-a", f"{name}-b"
        if terms.trial:
            first = second = f"{name}-trial"
        if stream.retention is Retention.WORK_QUEUE:
            # That of a trial would be in the way too; that of the feed is not a trial's to delete.
            for old in {first, second, f"{name}-trial"}:
                await self.delete_consumer(old)
            new, old = first, first
        else:
            second_exists = await self._acknowledged(second) is not None
            new, old = (first, second) if second_exists else (second, first)
            start = await self._go_on(old, start, terms)
            # A worker may have died between making one and deleting the other.
            await self.delete_consumer(new)
        config = consumer_config(new, stream, start, terms)
        subject = f"{self.prefix}.CONSUMER.CREATE.{self._stream}.{new}"
        if config.get("filter_subject", ">") != ">":
            subject = f"{subject}.{config['filter_subject']}"
        await self._client.ask(subject, {"stream_name": self._stream, "config": config})
        if old != new:
            await self.delete_consumer(old)
        return new

    async def delete_consumer(self, name: str) -> None:
        """If there is one."""
        await self._ask_of(name, "DELETE")

    async def _go_on(self, old: str, start: Start, terms: Terms) -> Start:
        """With ``deliver: new`` and nothing landed yet, begin where the predecessor did."""
        if start.landed or terms.deliver != "new" or terms.trial or start.seq is None:
            return start
        acknowledged = await self._acknowledged(old)
        return start if acknowledged is None else replace(start, seq=min(start.seq, acknowledged + 1))

    async def _acknowledged(self, consumer: str) -> int | None:
        """Up to which sequence a consumer has everything acknowledged; None: there is no such consumer."""
        info = await self._ask_of(consumer, "INFO")
        if info is None:
            return None
        began = int(info["config"].get("opt_start_seq") or 1) - 1
        # Before the first acknowledgement older servers say 0 here, wherever the consumer began.
        return max(began, int((info.get("ack_floor") or {}).get("stream_seq", 0)))

    async def _ask_of(self, consumer: str, what: str) -> dict[str, Any] | None:
        try:
            return await self._client.ask(f"{self.prefix}.CONSUMER.{what}.{self._stream}.{consumer}")
        except JetStreamRefusal as refusal:
            if refusal.code != NOT_FOUND:
                raise
            return None


def consumer_config(name: str, stream: StreamFacts, start: Start, terms: Terms) -> dict[str, JSON]:
    """A consumer as the API wants it described."""
    config: dict[str, JSON] = {
        "name": name,
        "description": "A feed of feedq",
        "deliver_policy": start.policy,
        "ack_policy": "explicit" if stream.retention is Retention.WORK_QUEUE else "all",
        "ack_wait": int(ACK_WAIT_S * NANOSECONDS),
        "max_ack_pending": terms.max_unacknowledged,
    }
    if start.seq is not None:
        config["opt_start_seq"] = start.seq
    if len(terms.subjects) == 1:
        config["filter_subject"] = terms.subjects[0]
    elif terms.subjects:
        config["filter_subjects"] = list(terms.subjects)
    if stream.retention is Retention.INTEREST and not terms.trial:
        config["durable_name"] = name
    else:
        config["inactive_threshold"] = int(INACTIVE_S * NANOSECONDS)
    if stream.retention is Retention.LIMITS:
        # Of no worth to anybody else. By the other policies a consumer must be kept as safely as its stream.
        config |= {"mem_storage": True, "num_replicas": 1}
    if terms.trial and stream.retention is not Retention.WORK_QUEUE:
        config["ack_policy"] = "none"
        del config["max_ack_pending"]
    return config
