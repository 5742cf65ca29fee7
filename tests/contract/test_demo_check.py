"""The demo's check of its table: a missing record and a doubled one do not make up for each other."""

from __future__ import annotations

from contextlib import closing

import psycopg2
import pytest

from feedq.local.demo import _CREATE, TABLE, LandedCheck, Tally, total

pytestmark = pytest.mark.servers


def test_missing_and_doubled_records_are_counted_each_by_themselves(control_database_url: str) -> None:
    landed = {"exact": [1, 2, 3], "both": [1, 2, 2, 4]}
    with closing(psycopg2.connect(control_database_url)) as session, session.cursor() as cursor:
        cursor.execute(_CREATE)
        for feed, numbers in landed.items():
            for seq in numbers:
                cursor.execute(f"INSERT INTO {TABLE} VALUES (%s, %s, now(), '')", (feed, seq))
        session.commit()
        try:
            found = LandedCheck(control_database_url).tallies()
        finally:
            cursor.execute(f"DROP TABLE {TABLE}")
            session.commit()
    assert found == {"exact": Tally(3, 0, 0), "both": Tally(4, missing=1, doubled=1)}
    assert str(total(found)) == "7 rows, 1 missing, 1 doubled"
    assert str(total({})) == "0 rows, 0 missing, 0 doubled"
