"""A sink that goes back under the feet of its writers: every kind of it, with real rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from feedq.local.postgres import Postgres
from feedq.sinks.base import Fenced, Sink, Superseded
from tests.contract.sink_harness import (
    PostgresSinkHarness,
    SqliteHarness,
    empty_database,
)
from tests.contract.sink_stage import RAW, batch, fence, landed, request, rows_of, write

Harness = PostgresSinkHarness | SqliteHarness


@pytest.fixture(params=["postgresql", "sqlite"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made: Harness
    if request.param == "sqlite":
        made = SqliteHarness(tmp_path / "sink.sqlite3")
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        made = PostgresSinkHarness(empty_database(postgres))
    yield made
    made.close()


class Owner:
    """Writes numbers for one feed, each in a commit of its own, and remembers where it left the checkpoint."""

    def __init__(self, harness: Harness, *, epoch: int = 1) -> None:
        self.worker_id = uuid4()
        self.sink: Sink = harness.sink(worker_id=self.worker_id)
        self.epoch = epoch
        self.fenced = fence(self.sink, 1, epoch)
        self.left: UUID | None = self.fenced.commit_id

    def write(self, number: int) -> str:
        written = self.sink.write(
            [write(1, self.epoch, batch(b"%d" % number, cursor=number), continues=self.left)]
        )
        if (1, self.epoch) in written.landed:
            self.left = written.commit_id
            return "landed"
        return "rewound" if written.rewound else "fenced"


def back_up(harness: Harness) -> None:
    for table in ("raw", "feedq_checkpoint"):
        harness.query(f"CREATE TABLE saved_{table} AS SELECT * FROM {table}")


def restore(harness: Harness, *tables: str) -> None:
    for table in tables or ("raw", "feedq_checkpoint"):
        harness.query(f"DELETE FROM {table}")
        harness.query(f"INSERT INTO {table} SELECT * FROM saved_{table}")


def numbers(*landed: int) -> list[str]:
    return [str(number) for number in landed]


def test_a_restored_backup_is_noticed_by_the_next_write_and_filled_up_from_its_cursor(
    harness: Harness,
) -> None:
    owner = Owner(harness)
    assert owner.write(1) == "landed"
    back_up(harness)
    assert [owner.write(n) for n in (2, 3)] == ["landed", "landed"]
    restore(harness)
    assert owner.write(4) == "rewound"
    again = fence(owner.sink, 1, 1)
    assert again == Fenced(1, 1, 1, 1)
    owner.left = again.commit_id
    assert [owner.write(n) for n in (2, 3, 4)] == ["landed"] * 3
    assert landed(harness) == rows_of(1, 1, *numbers(1, 2, 3, 4))


def test_a_checkpoint_that_was_deleted_is_not_written_to(harness: Harness) -> None:
    owner = Owner(harness)
    owner.write(1)
    harness.query("DELETE FROM feedq_checkpoint")
    assert owner.write(2) == "rewound"
    assert fence(owner.sink, 1, 1).cursor is None
    assert landed(harness) == rows_of(1, 1, "1")


def test_two_owners_of_one_epoch_exclude_each_other(harness: Harness) -> None:
    """Sink and control database went back together, and the epoch that was lost is given out again."""
    first = Owner(harness, epoch=4)
    first.write(1)
    back_up(harness)
    fenced = fence(first.sink, 1, 5)
    first.epoch, first.left = 5, fenced.commit_id
    first.write(2)
    restore(harness)
    second = Owner(harness, epoch=5)
    assert first.write(3) == "rewound"
    assert second.write(2) == "landed"
    assert first.write(3) == "rewound"
    assert first.sink.fence([request(1, 5)], lock_timeout_s=1) == [Superseded(1, 5, 5)]
    assert second.write(3) == "landed"
    assert sorted(payload for _, _, payload in landed(harness)) == numbers(1, 2, 3)


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_of_unknown_outcome_that_was_taken_back_counts_as_taken_back(
    harness: Harness, happened: bool
) -> None:
    owner = Owner(harness)
    owner.write(1)
    back_up(harness)
    owner.write(2)
    lost = [write(1, 1, batch(b"3", cursor=3), continues=owner.left)]
    sink, unknown = harness.lost(lost, happened=happened)
    restore(harness)
    settled = sink.settle(unknown)
    assert settled is not None
    assert (settled.landed, settled.rewound) == ({}, ((1, 1),))
    assert fence(owner.sink, 1, 1).cursor == 1
    assert landed(harness) == rows_of(1, 1, "1")


def test_a_checkpoint_of_a_release_that_named_no_commit_is_taken_over(harness: Harness) -> None:
    before = Owner(harness)
    before.write(1)
    harness.query("UPDATE feedq_checkpoint SET commit_id = NULL")
    after = Owner(harness, epoch=2)
    assert after.fenced.cursor == 1
    assert after.write(2) == "landed"
    assert before.write(2) == "fenced"


def test_rows_that_were_taken_back_without_their_checkpoint_are_nobodys_to_find(harness: Harness) -> None:
    """What is said of it: only what goes back together with its checkpoint is noticed."""
    owner = Owner(harness)
    owner.write(1)
    back_up(harness)
    owner.write(2)
    restore(harness, "raw")
    assert owner.write(3) == "landed"
    assert landed(harness, RAW) == rows_of(1, 1, "1", "3")
