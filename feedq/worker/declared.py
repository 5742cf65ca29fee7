"""Parses what feeds declare, once for all feeds of a worker that declare the same.

Thousands of feeds of one provider differ in their name only, which stands in for itself in their templates. To
keep and to check the same options for each of them would be a good part of what a feed costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import orjson

from feedq.connectors.base import ConnectorOptions, parse_options
from feedq.core.model import Feed
from feedq.sinks.base import Target, parse_sink, target_of

DECLARATIONS_MAX = 1_024
"""Different ones kept; beyond it they are parsed anew, which only costs time and memory."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A feed's options, and where it lands."""

    options: ConnectorOptions
    sink: str
    target: Target


def declared(feed: Feed) -> Declared:
    """Raises `InvalidInput`."""
    spec = feed.spec
    return _parse(spec.connector, orjson.dumps(spec.source), orjson.dumps(spec.sink))


def lean(feed: Feed) -> Feed:
    """Return the same feed with its options shared with those of equal ones."""
    return replace(
        feed, spec=replace(feed.spec, source=_shared(feed.spec.source), sink=_shared(feed.spec.sink))
    )


def _shared(options: Mapping[str, Any]) -> Mapping[str, Any]:
    return _decode(orjson.dumps(options))


@lru_cache(DECLARATIONS_MAX)
def _decode(options: bytes) -> Mapping[str, Any]:
    decoded: dict[str, Any] = orjson.loads(options)
    return decoded


@lru_cache(DECLARATIONS_MAX)
def _parse(connector: str, source: bytes, sink: bytes) -> Declared:
    options, sink_options = parse_options(connector, orjson.loads(source)), parse_sink(orjson.loads(sink))
    return Declared(options, sink_options.name, target_of(sink_options, options))
