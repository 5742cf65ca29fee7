"""Options of ``mqtt`` feeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.messages import MessageOptions
from feedq.connectors.wire.remote import Scheme
from feedq.core.model import JSON

KEEPALIVE_S_MAX: Final = 60
TOPIC_BYTES_MAX: Final = 65_535
SHARED: Final = "$share/"


class MqttOptions(MessageOptions):
    """Options of a feed with ``connector: mqtt``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {
        "mqtt": Scheme(tls=False, port=1883),
        "mqtts": Scheme(tls=True, port=8883),
    }
    TAKES_PATH: ClassVar[bool] = False

    url: str
    """`mqtt://host` (port 1883) or `mqtts://host` (TLS, port 8883)."""
    topics: Annotated[tuple[str, ...], Field(min_length=1, max_length=256)]
    """Topic filters, such as `plant/+/temperature` or `plant/#`. `$share/group/filter` shares the messages
    within the group."""
    version: Literal["5", "3.1.1"] = "5"
    """Version of the protocol. Use 5 if the broker supports it."""
    client_id: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    """Name of the session at the broker; no other client may use it. Default: made from the environment and
    the feed's name."""
    session_expiry_s: Annotated[int, Field(ge=0, le=2**32 - 1)] = 7 * 86_400
    """How long the broker keeps the session and its messages without a connection; 4294967295 is forever.
    With 3.1.1 the broker decides."""
    max_unacknowledged: Annotated[int, Field(ge=1, le=65_535)] = 10_000
    """Most messages that may wait for their commit. The broker may allow fewer; with 3.1.1 it alone
    decides."""

    @field_validator("version", mode="before")
    @classmethod
    def _read_version(cls, version: object) -> object:
        # YAML reads 5 as a number.
        return str(version) if type(version) is int else version

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        for topic in topics:
            check_topic_filter(topic)
        if len(set(topics)) < len(topics):
            raise ValueError("names a topic filter twice")
        return topics

    @field_validator("password")
    @classmethod
    def _check_password(cls, password: str | None, info: ValidationInfo) -> str | None:
        if password is not None and info.data.get("username") is None:
            raise ValueError("needs source.username")
        return password

    def check_cursor(self, cursor: JSON) -> None:
        raise ValueError("cannot be set: the broker keeps the place of an mqtt feed, and sends nothing again")

    @property
    def keepalive_s(self) -> int:
        """A ping after half of the idle timeout without a word leaves the other half for the answer."""
        if not self.idle_timeout_s:
            return KEEPALIVE_S_MAX
        return max(1, min(KEEPALIVE_S_MAX, int(self.idle_timeout_s / 2)))


def check_topic_filter(topic: str) -> None:
    """Raises `ValueError` for what no broker accepts."""
    if topic.startswith(SHARED):
        group, _, inner = topic[len(SHARED) :].partition("/")
        if not group or not inner or any(character in group for character in "+#"):
            raise ValueError(f"{topic!r} must be $share/group/filter")
        topic = inner
    if not topic or "\0" in topic or len(topic.encode()) > TOPIC_BYTES_MAX:
        raise ValueError(f"{topic[:80]!r} is not a topic filter: empty, too long, or with a NUL in it")
    *before, last = topic.split("/")
    if any("#" in level for level in before) or ("#" in last and last != "#"):
        raise ValueError(f"{topic!r}: '#' must be the whole last level")
    if any("+" in level and level != "+" for level in (*before, last)):
        raise ValueError(f"{topic!r}: '+' must be a whole level")


def unshared(topic: str) -> str:
    """The topic filter within a shared one."""
    return topic.split("/", 2)[2] if topic.startswith(SHARED) else topic
