"""Options of the http and sse connectors: what goes together, and what a mistake is told."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from feedq.connectors.protocol.http_client import named
from feedq.connectors.protocol.request_options import RETRY_AFTER_S_MAX, retry_after_s

NOW = datetime(2026, 1, 1, tzinfo=UTC)


# -- headers of answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        (" 17 ", 17.0),
        ("999999999", RETRY_AFTER_S_MAX),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30.0),
        ("Fri, 01 Jan 2027 00:00:00 GMT", RETRY_AFTER_S_MAX),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float | None) -> None:
    assert retry_after_s(text, now=NOW) == seconds


def test_only_a_word_of_a_header_is_shown() -> None:
    assert named("text/html") == "'text/html'"
    assert named("s3cret of ours") == "that it names"
    assert named("x" * 100) == "that it names"
