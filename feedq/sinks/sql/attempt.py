"""Landing under a savepoint: all of what is given, or nothing and the reason."""

from __future__ import annotations

from collections.abc import Sequence

from feedq.sinks.isolate import FailedAttempt, LandingBroken
from feedq.sinks.sql.flavor import explain
from feedq.sinks.sql.plan import InsertPlan, Row
from feedq.sinks.sql.session import RowRefused, SqlSession
from feedq.sinks.sqlstate import ErrorScope


def attempt(session: SqlSession, plan: InsertPlan, rows: Sequence[Row]) -> FailedAttempt | None:
    """Land. Raises `LandingBroken`, and `SQLAlchemyError` for what savepoints cannot mend."""
    try:
        with session.savepoint("feedq_attempt"):
            plan.insert(session, rows)
    except RowRefused as refused:
        trouble = session.flavor.trouble(refused.error)
        if trouble is ErrorScope.LANDING:
            raise LandingBroken(
                f"table {plan.landing.table!r} cannot be written: {explain(refused.error)}; "
                "mend the table or edit the feed"
            ) from refused
        if trouble is not ErrorScope.DATA:
            raise refused.error from refused
        return FailedAttempt(explain(refused.error), refused.position)
    return None
