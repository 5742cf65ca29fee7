"""The sink databases: do they answer, can feeds write their tables, and whose checkpoints do they have?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

from feedq.control.store.database import SETTING as CONTROL_DATABASE
from feedq.control.store.feed_listing import SinkUse
from feedq.core.model import Feed
from feedq.core.passwords import mask_url
from feedq.core.remedies import driver_text, remedy
from feedq.errors import FeedqError, InvalidInput
from feedq.settings import Settings
from feedq.sinks.base import Checkpoint, Target, opened_sink, target_of_feed
from feedq.sinks.checkpoints import owner_of
from feedq.verbs.diagnosis.checks import Check, fail, ok, unreachable, warn
from feedq.verbs.wording import NAMED_MAX, counted, some

LATELY = timedelta(minutes=10)
"""Checkpoints of feeds that run are written with each commit; some have none for a while."""
TARGETS_MAX = 200
"""Tables that are looked at in a sink: each takes a question or two."""


def check_sinks(
    settings: Settings,
    uses: Sequence[SinkUse] = (),
    identities: tuple[UUID, Collection[str]] = (UUID(int=0), ()),
) -> Iterator[Check]:
    """Each sink that is set up here, and the sinks that feeds name and that are not. ``identities`` are those of
    the installation and of its feeds."""
    installation, feeds = identities
    used = {one.name: one for one in uses}
    for name in settings.sink_names:
        use = used.pop(name, SinkUse(name, 0, ()))
        title, url = f"sink {name}", settings.sink_url(name)
        try:
            with opened_sink(settings, name, role="doctor") as sink:
                known = sink.checkpoints()
                wrong = [why for target in _targets(use.examples) if (why := sink.check(target)) is not None]
        except FeedqError as error:
            yield _unusable(title, url, error, settings)
            continue
        yield ok(title, f"{counted(use.feeds, 'feed')}, {mask_url(url)}")
        if wrong:
            detail = f"feeds cannot write {counted(len(wrong), 'table')}: " + "; ".join(wrong[:NAMED_MAX])
            yield warn(f"tables on {name}", detail, "`feedq feed test NAME` checks a single feed")
        unknown = [one for one in known if str(one.feed_uuid) not in feeds] if feeds else []
        yield from _owners(name, unknown, installation, settings.environment)
    for name, use in sorted(used.items()):
        named = some(use.examples, lambda one: one.name, of=use.feeds)
        yield warn(
            f"sink {name}",
            f"not set up here, but named by {counted(use.feeds, 'feed')}: {named}",
            f"set FEEDQ_SINKS__{name.upper()} here and on every worker",
        )


def _unusable(title: str, url: str, error: FeedqError, settings: Settings) -> Check:
    name = title.removeprefix("sink ")
    setting = f"FEEDQ_SINKS__{name.upper()}" if name in map(str.lower, settings.sinks) else CONTROL_DATABASE
    if remedy(driver_text(error), setting=setting) is not None:
        return unreachable(title, url, error, setting=setting)
    # The sink says itself which right is missing.
    return fail(title, mask_url(str(error)), f"fix that, or correct {setting}")


def _owners(
    name: str, unknown: Sequence[Checkpoint], installation: UUID, environment: str
) -> Iterator[Check]:
    """Tells of checkpoints that other installations have, and of those that nobody has any more."""
    strangers = [one for one in unknown if one.installation != installation]
    orphans = [one for one in unknown if one.installation == installation]
    now = datetime.now(UTC)
    lively = [one for one in strangers if now - one.updated_at < LATELY]
    if lively:
        yield warn(
            f"others on {name}",
            f"{_counted_owners(lively)} writes here too, under the environment {environment!r}: "
            f"{counted(len(lively), 'feed')}, such as {owner_of(lively[-1])}",
            "set FEEDQ_ENVIRONMENT to another name for each installation, before two of their feeds share a name",
        )
    if left := [one for one in strangers if one not in lively]:
        yield warn(
            f"strangers on {name}",
            f"{counted(len(left), 'checkpoint')} of {_counted_owners(left)}: {some(left, lambda one: one.feed)}",
            "adopt them with `feedq feed adopt` if the control database was lost; otherwise delete the rows",
        )
    if orphans:
        named = some(orphans, lambda one: one.feed)
        yield ok(
            f"orphans on {name}",
            f"{counted(len(orphans), 'checkpoint')} of feeds that are no longer declared: {named}",
        )


def _counted_owners(checkpoints: Sequence[Checkpoint]) -> str:
    owners = sorted({str(one.installation) for one in checkpoints})
    return f"installation {owners[0]}" if len(owners) == 1 else f"{len(owners)} installations"


def _targets(feeds: Sequence[Feed]) -> list[Target]:
    """What cannot be parsed shows as a failed feed elsewhere."""
    found: dict[Target, None] = {}
    for feed in feeds:
        with suppress(InvalidInput):
            found[target_of_feed(feed.spec)] = None
    return list(found)
