"""`feedq alert`: whether alerts arrive where they should."""

from __future__ import annotations

from typing import Any

import click

from feedq import alerts
from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import answer, styled_step
from feedq.errors import FeedqError, InvalidInput


@click.group(short_help="Alerts about feeds that are not as expected: test.")
def alert() -> None:
    """Alerts about feeds that are not as expected (FEEDQ_ALERT_URLS).

    \b
    Example:
      feedq alert test
    """


@alert.command()
@pass_invocation
def test(invocation: Invocation) -> None:
    """Send a message to each target, and say which of them took it.

    \b
    Example:
      FEEDQ_ALERT_URLS='mailto://…  slack://…' feedq alert test
    """
    targets = alerts.targets_of(invocation.settings)
    if not targets:
        raise InvalidInput("no alert targets: set FEEDQ_ALERT_URLS to addresses of apprise, spaces between")
    results: list[dict[str, Any]] = []
    for target in targets:
        error = None
        try:
            target.send("feedq: a test", "Alerts arrive here.", good=True)
        except FeedqError as failed:
            error = str(failed)
        results.append({"target": target.shown, "tenant": target.tenant, "error": error})
        if not invocation.json:
            click.echo(styled_step(target.shown, "failed" if error else "ok", error or ""))
    if invocation.json:
        answer(invocation, results, "")
    if any(one["error"] for one in results):
        raise FeedqError("not every target took the message")
