"""Landing under a savepoint: all of what is given, or nothing and the reason."""

from __future__ import annotations

from collections.abc import Callable

import psycopg2

from feedq.sinks.isolate import FailedAttempt, LandingBroken
from feedq.sinks.jsontext import UnreadableRecord
from feedq.sinks.plan import CopyPlan
from feedq.sinks.session import SinkSession
from feedq.sinks.sqlstate import ErrorScope, classify, explain, line_of


class NotNow(Exception):
    """The table cannot be written at this moment, though perhaps later: locked, no room on its disk."""

    def __init__(self, table: str, error: psycopg2.Error) -> None:
        super().__init__(f"table {table!r}: {explain(error)}")
        self.error = error


def attempt(session: SinkSession, plan: CopyPlan, land: Callable[[], None]) -> FailedAttempt | None:
    """Land. Raises `LandingBroken`, `NotNow`, and `psycopg2.Error` for what savepoints cannot mend."""
    session.execute("SAVEPOINT attempt")
    try:
        plan.clear_stage(session)
        land()
    except UnreadableRecord as unreadable:
        refusal = FailedAttempt(str(unreadable))
    except psycopg2.Error as error:
        trouble = classify(error)
        if trouble is ErrorScope.UNAVAILABLE or session.is_broken:
            raise
        if trouble is ErrorScope.LANDING:
            raise LandingBroken(
                f"table {plan.landing.table!r} cannot be written: {explain(error)}; "
                "mend the table or edit the feed"
            ) from error
        if trouble is not ErrorScope.DATA:
            raise NotNow(plan.landing.table, error) from error
        refusal = FailedAttempt(explain(error), line_of(error))
    else:
        session.execute("RELEASE SAVEPOINT attempt")
        return None
    session.execute("ROLLBACK TO SAVEPOINT attempt; RELEASE SAVEPOINT attempt")
    return refusal
