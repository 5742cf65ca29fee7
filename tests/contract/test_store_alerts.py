"""Alerts leave in order, at least once to each target, and one that is away holds up no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from feedq.control.store.expectations import Alert
from feedq.control.store.postgresql import PostgresStore
from feedq.errors import FeedqError, InvalidInput
from feedq.settings import Settings
from feedq.verbs import alert_sending
from feedq.verbs.alerts import AlertSender, AlertTarget, message_of, targets_of
from feedq.verbs.diagnosis.checks import Level
from feedq.verbs.fleet import check_alerts, send_tests
from feedq.verbs.wording import LINES_MAX
from tests.alert_receiver import AlertReceiver
from tests.cluster import wait_until
from tests.contract.harness import Harness

HERE, THERE = "here", "there"


class Bench:
    """The outbox, with alerts that a test makes."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.store: PostgresStore = harness.store
        for target in (HERE, THERE):
            assert self.due(target) == []

    def alert(self, feed: str, *, begins: bool = True, tenant: str = "") -> None:
        self.harness.execute(
            "INSERT INTO feedq.alert (feed, tenant, kind, begins, since, bound, found) "
            "VALUES (%s, %s, 'max_silence', %s, clock_timestamp(), '60', 61)",
            feed,
            tenant,
            begins,
        )

    def found(self, target: str = HERE, *, tenant: str | None = None) -> list[Alert]:
        return self.store.alerts.due(target, tenant=tenant, pause_s=30.0, retry_s=5.0)

    def due(self, target: str = HERE, *, tenant: str | None = None) -> list[str]:
        return [one.feed for one in self.found(target, tenant=tenant)]

    def failures(self, target: str) -> int:
        sql = "SELECT failures FROM feedq.alert_target WHERE target = %s"
        ((count,),) = self.harness.execute(sql, target)
        return int(str(count))


@pytest.fixture(scope="module", autouse=True)
def compiled_apprise() -> None:
    """The first import compiles hundreds of modules, which may take longer than a target has to answer."""
    subprocess.run([sys.executable, "-c", "import apprise"], check=True, timeout=100)


@pytest.fixture
def bench(harness: Harness) -> Bench:
    return Bench(harness)


def test_what_is_not_taken_is_due_again_and_what_is_taken_is_not(bench: Bench) -> None:
    for feed in "ab":
        bench.alert(feed)
    assert (bench.due(), bench.due(), bench.due(THERE)) == (["a", "b"], ["a", "b"], ["a", "b"])
    bench.store.alerts.told(HERE, bench.found()[-1].id)
    bench.harness.elapse(31)
    assert (bench.due(), bench.due(THERE)) == ([], ["a", "b"])
    bench.alert("c", begins=False)
    assert bench.due() == ["c"]


def test_what_is_found_within_the_pause_is_told_together_after_it(bench: Bench) -> None:
    bench.alert("a")
    bench.store.alerts.told(HERE, bench.found()[-1].id)
    for feed in "bc":
        bench.alert(feed)
    assert bench.due() == []
    bench.harness.elapse(31)
    assert bench.due() == ["b", "c"]


def test_a_target_that_fails_is_asked_ever_more_rarely(bench: Bench) -> None:
    bench.alert("a")
    for failures in range(6 + 3):
        bench.store.alerts.failed(HERE, "away")
        pause_s = 5.0 * 2 ** min(failures, 6)
        bench.harness.elapse(pause_s - 2)
        assert bench.due() == []
        bench.harness.elapse(2)
        assert bench.due() == ["a"]
    assert bench.harness.execute("SELECT error FROM feedq.alert_target WHERE target = %s", HERE) == [
        ("away",)
    ]


def test_a_tenant_hears_of_its_own_feeds_alone(bench: Bench) -> None:
    bench.alert("a", tenant="acme")
    bench.alert("b", tenant="other")
    assert (bench.due(tenant="acme"), bench.due(THERE)) == (["a"], ["a", "b"])


def test_a_message_says_what_is_wrong_and_no_more_than_can_be_read(bench: Bench) -> None:
    for number in range(LINES_MAX + 5):
        bench.alert(f"f/{number:02}")
    bench.alert("f/00", begins=False)
    title, body = message_of(bench.found())
    lines = body.splitlines()
    assert title == f"feedq: {LINES_MAX + 5} feeds not as expected, 1 feed as expected again"
    assert lines[0].startswith("f/00: silent for more than 1m, since 20")
    assert lines[0].endswith("Z")
    assert (len(lines), lines[-1]) == (LINES_MAX + 1, "and 6 more: feedq doctor")


def settings(**given: object) -> Settings:
    return Settings(**given)  # as the environment has them


def test_targets_are_those_of_all_and_those_of_tenants_and_show_no_secret() -> None:
    found = targets_of(
        settings(
            alert_urls="json://u:s3cret@host/x  slack://s3cret", tenant_alert_urls={"acme": "json://s3cret"}
        )
    )
    assert [(one.url.partition("://")[0], one.tenant) for one in found] == [
        ("json", None),
        ("slack", None),
        ("json", "acme"),
    ]
    assert not any("s3cret" in one.shown or "s3cret" in one.key for one in found)
    assert len({one.key for one in found}) == 3


def test_a_message_that_is_refused_or_has_no_address_is_an_error() -> None:
    with AlertReceiver() as receiver:
        target = AlertTarget(receiver.url)
        target.send("title", "body", good=True)
        assert receiver.take() == [("title", "body")]
        receiver.refuses = True
        with pytest.raises(FeedqError, match="did not accept the message"):
            target.send("title", "body", good=False)
    with pytest.raises(InvalidInput, match="apprise cannot read this address"):
        AlertTarget("nowhere://s3cret").send("title", "body", good=True)


def test_the_doctor_sends_each_target_a_message_only_when_it_is_asked_to() -> None:
    with AlertReceiver() as receiver:
        s = settings(alert_urls=f"{receiver.url} nowhere://s3cret")
        (asked,) = check_alerts(s)
        assert (asked.level, asked.detail) == (Level.NOT_CHECKED, "2 targets")
        assert receiver.take() == []
        taken, unreadable = send_tests(s)
        assert receiver.take() == [("feedq: a test", "Alerts arrive here.")]
    assert (taken.level, unreadable.level) == (Level.OK, Level.FAIL)
    assert "apprise cannot read this address" in unreadable.detail
    assert list(check_alerts(settings())) == []
    assert [check.level for check in send_tests(settings())] == [Level.FAIL]


@pytest.fixture
def hanging_apprise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apprise that waits for its server without a time-out, as releases before 1.10 do."""
    (tmp_path / "apprise.py").write_text(
        "import threading\n"
        "class NotifyType: SUCCESS, WARNING = 'success', 'warning'\n"
        "class Apprise:\n"
        "    def add(self, url): return True\n"
        "    def notify(self, **message): threading.Event().wait()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(alert_sending, "SEND_S", 1.0)


@pytest.mark.usefixtures("hanging_apprise")
def test_a_target_that_never_answers_is_given_up_and_told_again(bench: Bench) -> None:
    s = settings(alert_urls="json://never.example")
    (target,) = targets_of(s)
    sender = AlertSender(s, lambda: bench.store.alerts, lambda: True)
    sender.work()  # a new target begins with what comes next
    bench.alert("a")
    with capture_logs() as logs:
        sender.work()
        wait_until(lambda: bool(logs), "the failure is logged")
    assert logs[0]["error"] == f"alert target {target.shown} did not answer within 1 s"
    wait_until(lambda: bench.failures(target.key) == 1, "the message is due again")
