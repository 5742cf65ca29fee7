"""JSON Schemas of declarations, for bodies of requests: those of manifests, with their parts as components."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from feedq.manifest.feed_entry import FeedEntry
from feedq.manifest.json_schema import WithoutTitles
from feedq.schedule.entries import CalendarEntry, QueueEntry, ScheduleEntry

COMPONENTS: dict[str, Any] = {}
"""The parts of these schemas, by name; filled as the module is loaded."""
PLACE = "#/components/schemas/{model}"


def _component(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=PLACE, schema_generator=WithoutTitles)
    COMPONENTS.update(schema.pop("$defs", {}))
    # The name stands in the address.
    schema["required"] = [key for key in schema.get("required", []) if key != "name"]
    COMPONENTS[model.__name__] = schema
    return {"$ref": PLACE.format(model=model.__name__)}


FEED_ENTRY = _component(FeedEntry)
SCHEDULE_ENTRY = _component(ScheduleEntry)
QUEUE_ENTRY = _component(QueueEntry)
CALENDAR_ENTRY = _component(CalendarEntry)
