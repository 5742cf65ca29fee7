"""Whether alerts arrive where they should."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from feedq.errors import FeedqError
from feedq.settings import Settings
from feedq.verbs.alerts import AlertTarget, targets_of
from feedq.verbs.diagnosis.checks import Check, fail, not_checked, ok
from feedq.verbs.wording import counted

ALERTS: Final = "alerts"
"""The name of these checks."""
TRIED_AT_ONCE: Final = 10
"""Each message has a process of its own for as long as it is on its way."""
ADVICE: Final = "mend its address in FEEDQ_ALERT_URLS or FEEDQ_TENANT_ALERT_URLS, or the server behind it"


def check_alerts(settings: Settings) -> Iterator[Check]:
    """How many targets there are, none of which is tried."""
    if targets := targets_of(settings):
        yield not_checked(
            ALERTS, counted(len(targets), "target"), "feedq doctor --alerts sends each a message"
        )


def send_tests(settings: Settings) -> Iterator[Check]:
    """Whether each target takes a message."""
    if targets := targets_of(settings):
        with ThreadPoolExecutor(TRIED_AT_ONCE) as threads:
            yield from threads.map(_tried, targets)
    else:
        yield fail(
            ALERTS, "there is no target", "set FEEDQ_ALERT_URLS to addresses of apprise, spaces between"
        )


def _tried(target: AlertTarget) -> Check:
    try:
        target.send("feedq: a test", "Alerts arrive here.", good=True)
    except FeedqError as error:
        return fail(ALERTS, str(error), ADVICE)
    return ok(ALERTS, f"{target.shown} took a message")
