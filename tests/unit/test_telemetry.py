"""Telemetry: names that are well formed and unique, and passwords that never get out."""

from __future__ import annotations

import logging
import string
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import assume, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from feedq.core.loss import Loss
from feedq.settings import Settings
from feedq.telemetry.logs import LogEvent, configure_logging, log, mask_url
from feedq.telemetry.metrics import GroupHistogram

schemes = st.sampled_from(["postgresql", "redis", "amqp", "tcp", "postgresql+psycopg2", "HTTP"])
users = st.text(string.ascii_letters + string.digits + "_-.%", max_size=8)
hosts = st.sampled_from(["localhost", "db.example:5432", "127.0.0.1:6379", "[::1]:5432"])
paths = st.sampled_from(["", "/", "/db", "/0", "/db?sslmode=require"])
passwords = st.text(
    st.characters(exclude_categories=["Z", "C"], exclude_characters="*"), min_size=1, max_size=20
)
"""Anything without white space, the @ / : and ? that people forget to encode included."""


def url(scheme: str, user: str, password: str, host: str, path: str) -> str:
    return f"{scheme}://{user}:{password}@{host}{path}"


@given(schemes, users, passwords, hosts, paths)
def test_a_password_is_replaced_and_the_rest_is_kept(
    scheme: str, user: str, password: str, host: str, path: str
) -> None:
    assume("://" not in password)
    assert mask_url(url(scheme, user, password, host, path)) == url(scheme, user, "***", host, path)


@given(st.lists(st.tuples(schemes, users, passwords, hosts, paths), min_size=1, max_size=4), st.data())
def test_no_password_survives_in_a_text_with_several_urls(
    parts: list[tuple[str, str, str, str, str]], data: st.DataObject
) -> None:
    secrets = [f"s3cr3t{password}" for _, _, password, _, _ in parts]
    assume(all("://" not in secret for secret in secrets))
    between = data.draw(st.sampled_from([" and ", ", ", ",", "\n", "|"]))
    urls = [url(p[0], p[1], secret, p[3], p[4]) for p, secret in zip(parts, secrets, strict=True)]
    assert "s3cr3t" not in mask_url(f"cannot connect to {between.join(urls)}: refused")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://localhost/db",
        "postgresql://user@localhost/db",
        "redis://localhost:6379/0",
        "http://localhost:8080/path, mail to a@b",
        "t=12:30 a@b",
    ],
)
def test_a_url_without_a_password_is_left_alone(text: str) -> None:
    assert mask_url(text) == text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://h/db?user=u&password=p&x=1", "postgresql://h/db?user=u&password=***&x=1"),
        ("postgresql://h/db?sslpassword=p", "postgresql://h/db?sslpassword=***"),
        ("FEEDQ_redis://u:p@h", "FEEDQ_redis://u:***@h"),
        ("redis://:p@h", "redis://:***@h"),
    ],
)
def test_other_places_of_a_password(text: str, masked: str) -> None:
    assert mask_url(text) == masked


def test_a_long_line_is_masked_in_no_time() -> None:
    mask_url("a" * 1_000_000)
    mask_url("://a:" * 100_000)
    mask_url("x://u:" + "p" * 1_000_000)


# -- logging -----------------------------------------------------------------------------------------


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_log_line_shows_a_password(log_format: Any, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings.model_construct(log_format=log_format))
    bad = "postgresql://user:hunter2@host/db"
    log("feedq.test").warning(LogEvent.DATABASE_AWAY, error=f"cannot reach {bad}", url=bad)
    logging.getLogger("celery.test").warning("connected to %s", bad)
    try:
        raise ConnectionError(f"no route to {bad}")
    except ConnectionError:
        logging.getLogger("kombu.test").exception("lost %s", bad)
        log("feedq.test").exception(LogEvent.UNEXPECTED, where=bad)
    shown = capsys.readouterr().err
    assert shown.count("user:***@host") >= 6
    assert "hunter2" not in shown


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize("stack", [(), ('File "x.py", line 3 in f', 'File "y.py", line 9 in g')])
def test_how_a_worker_was_lost_can_be_read_in_the_log(
    log_format: Any, stack: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(Settings.model_construct(log_format=log_format))
    loss = Loss("stalled", "the loop stood still", 7, is_certain=True, stack=stack)
    log("feedq.test").error(LogEvent.WORKER_LOST, why=loss.said, stack=loss.shown_stack())
    shown = capsys.readouterr().err
    assert "Logging error" not in shown
    assert "the loop stood still" in shown
    assert all(call.split(", ")[1] in shown for call in stack)


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.1000001, 1.0, 7.5, 400.0]), max_size=5), max_size=5)
)
def test_a_histogram_of_groups_says_what_one_that_takes_them_singly_says(groups: list[list[float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    grouped = GroupHistogram("delay_seconds", "Delay", buckets=(0.01, 0.1, 1), registry=ours)
    single = Histogram("delay_seconds", "Delay", buckets=(0.01, 0.1, 1), registry=theirs)
    for group in groups:
        grouped.observe_all(group)
        for amount in group:
            single.observe(amount)
    assert samples(ours) == pytest.approx(samples(theirs))


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """What is shown, without when it began to be counted."""
    lines = (line for line in generate_latest(registry).decode().splitlines() if "_created" not in line)
    shown = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in shown}
