"""Tells people by `apprise` what is not as expected: mail, Slack, Teams, webhooks and what else it knows.

The elected beat has one thread for it, and one more per target while a message is on its way: a server that is
dead or hangs delays neither the election nor other targets, and is given up after
`feedq.verbs.alert_sending.SEND_S`. What is found together is one message, and a target gets at most one every
`FEEDQ_ALERT_INTERVAL_S`. A message that was not taken is sent again, ever more rarely, until it is
(`feedq.control.store.expectations`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from threading import Thread
from typing import Final

from feedq.control.leader_threads import LeaderThread
from feedq.control.store.expectations import Alert, AlertOutbox
from feedq.core.moments import instant
from feedq.errors import FeedqError
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent, log
from feedq.verbs import alert_sending
from feedq.verbs.wording import counted, first_few, printable

LOOK_S: Final = 1.0
"""How late an alert leaves, besides the pause between messages."""
RETRY_S: Final = 5.0
"""After the first failure; it doubles with each that follows (`feedq/control/sql/expectations.sql`)."""

logger = log(__name__)


@dataclass(frozen=True)
class AlertTarget:
    """Where alerts go: of one tenant, or of all."""

    url: str
    tenant: str | None = None

    @cached_property
    def key(self) -> str:
        """What it is remembered by: the address is a secret."""
        return sha256(f"{self.tenant or ''}\0{self.url}".encode()).hexdigest()[:32]

    @property
    def shown(self) -> str:
        """The address without its secrets."""
        scheme = self.url.partition("://")[0]
        whose = "" if self.tenant is None else f" of {self.tenant}"
        return f"{scheme}://… {self.key[:8]}{whose}"

    def send(self, title: str, body: str, *, good: bool) -> None:
        """Blocks for `alert_sending.SEND_S` at most. Raises `FeedqError` when the message was not accepted."""
        alert_sending.send(self.url, title, body, good=good, shown=self.shown)


def targets_of(s: Settings) -> list[AlertTarget]:
    """All targets that the settings name."""
    everything = [AlertTarget(url) for url in s.alert_urls.get_secret_value().split()]
    of_tenants = (
        AlertTarget(url, tenant)
        for tenant, urls in s.tenant_alert_urls.items()
        for url in urls.get_secret_value().split()
    )
    return [*everything, *of_tenants]


def message_of(alerts: Sequence[Alert]) -> tuple[str, str]:
    """Title and body of one message about all of these."""
    worse = [alert for alert in alerts if alert.begins]
    better = [alert for alert in alerts if not alert.begins]
    parts = [
        f"{counted(len(worse), 'feed')} not as expected" if worse else "",
        f"{counted(len(better), 'feed')} as expected again" if better else "",
    ]
    lines = first_few(list(_lines(worse, better)), "and {:,} more: feedq doctor")
    return f"feedq: {', '.join(filter(None, parts))}", "\n".join(lines)


def _lines(worse: Sequence[Alert], better: Sequence[Alert]) -> Iterator[str]:
    for alert in worse:
        yield printable(f"{alert.feed}: {alert.said}, since {instant(alert.since.replace(microsecond=0))}")
    for alert in better:
        at = instant(alert.at.replace(microsecond=0))
        yield printable(f"{alert.feed}: as expected again ({alert.kind}), at {at}")


class AlertSender(LeaderThread):
    """Has alerts sent."""

    def __init__(self, s: Settings, outbox: Callable[[], AlertOutbox], leads: Callable[[], bool]) -> None:
        super().__init__("alerts", leads, every_s=LOOK_S)
        self._settings, self._outbox = s, outbox
        self._targets = targets_of(s)
        self._under_way: dict[str, Thread] = {}

    def run(self) -> None:
        if self._targets:
            super().run()

    def work(self) -> None:
        for target in self._targets:
            self.attempt(partial(self._tell, target))

    def _tell(self, target: AlertTarget) -> None:
        before = self._under_way.get(target.key)
        if before is not None and before.is_alive():
            return  # its message is on its way still
        alerts = self._outbox().due(
            target.key, tenant=target.tenant, pause_s=self._settings.alert_interval_s, retry_s=RETRY_S
        )
        if not alerts:
            return
        sending = Thread(target=self._send, args=(target, alerts), name="feedq-alert", daemon=True)
        self._under_way[target.key] = sending
        sending.start()

    def _send(self, target: AlertTarget, alerts: Sequence[Alert]) -> None:
        title, body = message_of(alerts)
        try:
            target.send(title, body, good=not any(alert.begins for alert in alerts))
        except FeedqError as error:
            logger.warning(LogEvent.ALERT_FAILED, target=target.shown, error=str(error))
            with suppress(FeedqError):
                self._outbox().failed(target.key, str(error))
            return
        # Should this fail, the same is told again: rather twice than never.
        with suppress(FeedqError):
            self._outbox().told(target.key, alerts[-1].id)
