"""Records of a running feed as they land, as a stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from feedq.api.answers import ERRORS
from feedq.api.arguments import NamePath
from feedq.api.callers import Operator, Served, changed
from feedq.control.store.taps import TapListener
from feedq.core.tap import LIMIT_MAX, LOOK_S, SECONDS_MAX
from feedq.errors import FeedqError
from feedq.telemetry.logs import mask_url
from feedq.verbs import actions

router = APIRouter(prefix="/feeds", tags=["feeds"])


class EventStream(StreamingResponse):
    """An answer without end, until it says so or whoever asked has left."""

    media_type = "text/event-stream"


@router.get(
    "/{name:name}/tap",
    response_class=EventStream,
    responses=ERRORS,
    summary="Records of a running feed as they land",
)
def tap_feed(
    backend: Served,
    caller: Operator,
    name: NamePath,
    seconds: Annotated[int, Query(ge=1, le=SECONDS_MAX, description="It ends after this.")] = 600,
    limit: Annotated[
        int, Query(ge=1, le=LIMIT_MAX, description="It ends after so many records.")
    ] = LIMIT_MAX,
) -> EventStream:
    """A stream of events: `record`, `left_out` (records that are not shown, as there are too many) and `end`.

    It shows data of customers, so it needs the role of an operator, and history says who listened.
    """
    feed = actions.live_feed(backend.store, name)
    changed(caller, feed)
    listener = TapListener(backend.store.taps, feed.id, seconds=seconds, limit=limit)
    # A proxy in front must not keep it back until the end.
    return EventStream(_events(listener), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


async def _events(listener: TapListener) -> AsyncIterator[str]:
    try:
        while not listener.is_over:
            found = await to_thread.run_sync(_looked, listener)
            # The comment shows both sides that the other one is there.
            yield "".join(map(_event, found)) or ": nothing landed\n\n"
            await anyio.sleep(0 if listener.is_over else LOOK_S)
    except FeedqError as error:
        yield _event({"event": "end", "why": mask_url(str(error))})
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(listener.close)


def _looked(listener: TapListener) -> list[dict[str, Any]]:
    return list(listener.look())


def _event(row: Mapping[str, Any]) -> str:
    # JSON in ASCII has no line breaks of any kind, whatever is in the record.
    return f"event: {row['event']}\ndata: {json.dumps(row)}\n\n"
