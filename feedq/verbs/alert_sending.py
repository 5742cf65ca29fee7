"""Sends one alert by apprise, in a process of its own that is ended if it takes too long.

apprise knows over a hundred services, and some of its plugins wait for a server without a time-out. A thread that
waits for ever cannot be ended, a process can: whatever the library does, `send` returns within `SEND_S`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from enum import IntEnum
from importlib.util import find_spec
from typing import Any, Final

from feedq.errors import FeedqError, InvalidInput

SEND_S: Final = 20
"""How long sending may take, the start of the process (about half a second) included."""
ORPHAN_S: Final = 5
"""How much longer the process may live if whoever started it is gone."""
INSTALL: Final = "pip install 'feedq[alerts]'"


class ExitStatus(IntEnum):
    """Exit statuses of the process."""

    TAKEN = 0
    NOT_TAKEN = 10
    UNREADABLE_ADDRESS = 11


def send(url: str, title: str, body: str, *, good: bool, shown: str) -> None:
    """Send a message. ``shown`` is the address without its secrets. Raises `FeedqError` when it was not taken."""
    if find_spec("apprise") is None:
        raise FeedqError(f"alerts need apprise: {INSTALL}")
    # By standard input: arguments of processes can be read by others.
    message = json.dumps({"url": url, "title": title, "body": body, "good": good})
    try:
        ran = subprocess.run(  # noqa: S603 -- our own interpreter and module
            [sys.executable, "-m", __name__], input=message.encode(), capture_output=True, timeout=SEND_S
        )
    except subprocess.TimeoutExpired:
        raise FeedqError(f"alert target {shown} did not answer within {SEND_S:g} s") from None
    except OSError as error:
        raise FeedqError(
            f"alert target {shown}: no process can be started to send to it ({error})"
        ) from error
    if ran.returncode == ExitStatus.UNREADABLE_ADDRESS:
        raise InvalidInput(f"alert target {shown}: apprise cannot read this address")
    if ran.returncode != ExitStatus.TAKEN:
        raise FeedqError(f"alert target {shown} did not accept the message")


def main() -> int:
    """The process: reads one message from standard input."""
    message = json.load(sys.stdin)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SEND_S + ORPHAN_S)
    from apprise import Apprise, NotifyType

    sender: Any = Apprise()
    if not sender.add(message["url"]):
        return ExitStatus.UNREADABLE_ADDRESS
    kind = NotifyType.SUCCESS if message["good"] else NotifyType.WARNING
    taken = sender.notify(body=message["body"], title=message["title"], notify_type=kind)
    return ExitStatus.TAKEN if taken else ExitStatus.NOT_TAKEN


if __name__ == "__main__":
    sys.exit(main())
