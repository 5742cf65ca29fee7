"""How jobs get into a worker and out: signals, and what a worker takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from feedq.celery import bootsteps
from feedq.celery.bootsteps import Places
from feedq.settings import Settings

# -- signals -----------------------------------------------------------------------------------------


def hurried(made: list[str]) -> bootsteps.Shutdown:
    shutdown = bootsteps.Shutdown()
    shutdown.on_insisted.append(lambda: made.append("hurry"))
    return shutdown


def test_the_same_signal_by_two_ways_is_one_and_a_later_one_insists() -> None:
    made: list[str] = []
    shutdown = hurried(made)
    shutdown.begin(exitcode=0, how=None, now=99.0)
    shutdown.begin(exitcode=0, how="Warm", now=100.0)
    shutdown.begin(exitcode=0, how=None, now=100.0)
    shutdown.begin(exitcode=0, how="Warm", now=100.5)
    assert made == []
    shutdown.begin(exitcode=0, how="Warm", now=101.1)
    assert made == ["hurry"]


# -- what a worker takes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "concurrency", "places"),
    [
        (("feedq", "feedq.control"), 500, Places(500, 4)),
        (("jobs",), 20, Places(0, 20)),
        (("jobs", "feedq"), 20, Places(20, 4)),
    ],
)
def test_what_a_worker_takes_goes_by_its_queues_and_its_concurrency(
    queues: tuple[str, ...], concurrency: int, places: Places
) -> None:
    consumes = dict.fromkeys((*queues, bootsteps.node_queue("w1@h")))
    app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=consumes)))
    worker = SimpleNamespace(hostname="w1@h", app=app, concurrency=concurrency)
    assert Places.of(worker, Settings()) == places
    described = bootsteps._describe("w1@h", places, Settings(), tasks={"acme.report"})
    assert (described.capacity, described.job_slots) == (places.capacity, places.job_slots)
    assert described.tasks == {"acme.report"}


def test_a_module_that_is_not_there_ends_the_process_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootsteps, "settings", lambda: Settings(imports="json, tests.no_such_module"))
    with pytest.raises(SystemExit, match=r"^feedq: FEEDQ_IMPORTS: module 'tests\.no_such_module'"):
        bootsteps._import_jobs()
