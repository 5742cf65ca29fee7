"""What the watch of a worker makes of threads that turn, wait, hang and end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator
from threading import Event

import pytest

from feedq.errors import Unavailable
from feedq.telemetry import watched_threads
from feedq.telemetry.watched_threads import TURN_S, WatchedThread, asking, asks
from feedq.worker import watch as watch_module
from feedq.worker.activity import CHECK_S, Activity, Limits
from feedq.worker.watch import LOOP, STUCK_S, Watch

LOOKS = int(2 * STUCK_S / CHECK_S)


class Stage:
    """A watch under a clock that moves with each look, and threads that stand where the test leaves them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(watch_module, "monotonic", lambda: self.now)
        monkeypatch.setattr(watched_threads, "_watched", set())
        monkeypatch.setattr(watched_threads, "_ended", {})
        self.watch = Watch(Activity.private(), Limits(5, 0))
        self.over = Event()

    def begin(self, name: str, body: Callable[[], object]) -> WatchedThread:
        thread = WatchedThread(body, name=name)
        thread.start()
        return thread

    def looks(self, number: int = LOOKS, *, each: Callable[[], object] = lambda: None) -> str | None:
        """What the watch says in the end, after so many looks."""
        for _ in range(number):
            each()
            self.now += CHECK_S
            self.watch.look()
        return self.watch.stuck.said if self.watch.stuck is not None else None


def hear_the_server() -> None:
    """Wait until the watch has the answer of the control database."""
    for thread in threading.enumerate():
        if thread.name == "feedq-witness":
            thread.join(10)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    made = Stage(monkeypatch)
    yield made
    made.over.set()


def test_a_thread_that_does_not_turn_is_stuck_and_the_monitor_hears_which(stage: Stage) -> None:
    stage.begin("feedq-writer-a", stage.over.wait)
    assert stage.looks(int(STUCK_S / CHECK_S)) is None
    said = stage.looks()
    assert said is not None
    assert said.startswith("thread feedq-writer-a has stood still for ")
    noted = stage.watch.activity.stuck
    assert noted is not None
    assert noted[1].startswith("thread feedq-writer-a")
    assert stage.watch.stalled_s == float("inf"), "no heartbeat is sent"


def test_a_thread_that_turns_again_in_time_is_taken_back(stage: Stage) -> None:
    thread = stage.begin("feedq-writer-a", stage.over.wait)
    assert stage.looks() is not None
    thread.turns += 1
    assert stage.looks(1) is None
    assert stage.watch.activity.stuck is None


def test_a_thread_that_asks_a_server_is_not_stuck_however_long_it_takes(stage: Stage) -> None:
    def ask() -> None:
        with asking():
            with asking():
                pass
            stage.over.wait()

    thread = stage.begin("feedq-lease-client", ask)
    assert stage.looks() is None
    assert thread.is_asking
    stage.over.set()
    thread.join(10)
    assert not thread.is_asking


@pytest.mark.parametrize(
    ("idle", "stuck"), [((7,), "inside the driver"), ((), None), (Unavailable("away"), None)], ids=str
)
def test_a_thread_whose_session_has_nothing_to_do_is_stuck_inside_the_driver(
    stage: Stage, idle: tuple[int, ...] | Unavailable, stuck: str | None
) -> None:
    def ask() -> None:
        with asking():
            asks(7)
            stage.over.wait()

    def say(_: Collection[int]) -> Collection[int]:
        if isinstance(idle, Unavailable):
            raise idle
        return idle

    stage.watch.idle_backends = say
    thread = stage.begin("feedq-keeper", ask)
    said = stage.looks(each=hear_the_server)
    assert (said is None) if stuck is None else (said is not None and stuck in said)
    stage.over.set()
    thread.join(10)
    assert (thread.backend, thread.found_idle) == (0, 0)


def test_one_answer_is_no_proof_that_a_thread_is_stuck_inside_the_driver(stage: Stage) -> None:
    answers = itertools.cycle([(7,), (7,), ()])

    def ask() -> None:
        with asking():
            asks(7)
            stage.over.wait()

    stage.watch.idle_backends = lambda _: next(answers)
    stage.begin("feedq-keeper", ask)
    assert stage.looks(each=hear_the_server) is None


def test_a_thread_that_asks_another_server_meanwhile_is_judged_by_that(stage: Stage) -> None:
    def ask() -> None:
        with asking():
            with asking():
                asks(7)
            stage.over.wait()

    stage.watch.idle_backends = lambda _: (7,)
    thread = stage.begin("feedq-fencer-a", ask)
    assert stage.looks() is None
    assert thread.is_asking


def test_a_thread_that_ended_by_an_exception_is_stuck_at_once(stage: Stage) -> None:
    watched_threads._ended["feedq-jobs"] = "MemoryError"
    assert stage.looks(1) == "thread feedq-jobs has ended by MemoryError"


def test_the_loop_is_judged_by_a_limit_of_its_own(stage: Stage) -> None:
    stage.begin(LOOP, stage.over.wait)
    assert stage.looks() is None
    assert stage.watch.loop_stalled_s > STUCK_S


def test_a_thread_that_may_wait_for_code_on_the_loop_is_not_called_stuck(stage: Stage) -> None:
    stage.begin(LOOP, stage.over.wait)
    stage.looks(1)
    stage.begin("feedq-keeper", stage.over.wait)
    assert stage.looks() is None


def test_a_thread_that_stood_still_before_the_loop_did_is_stuck(stage: Stage) -> None:
    stage.begin("feedq-keeper", stage.over.wait)
    loop = stage.begin(LOOP, stage.over.wait)

    def turn() -> None:
        loop.turns += 1

    stage.looks(int(2 * TURN_S / CHECK_S), each=turn)
    assert stage.looks() is not None


def test_a_watch_that_does_not_look_is_stuck_itself(stage: Stage) -> None:
    stage.looks(1)
    assert stage.watch.stuck is None
    stage.now += STUCK_S + 1
    assert stage.watch.stuck is not None
    assert "feedq-watch" in stage.watch.stuck.said
