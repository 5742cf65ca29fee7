"""Landing under a savepoint: all of what is given, or nothing and the reason."""

from __future__ import annotations

from collections.abc import Sequence

from feedq.sinks.isolate import Refusal
from feedq.sinks.sql.flavor import explain
from feedq.sinks.sql.plan import Plan, Row
from feedq.sinks.sql.session import RowRefused, Session
from feedq.sinks.sqlstate import Trouble


class LandingBroken(Exception):
    """The table cannot be written, whatever the records."""


def attempt(session: Session, plan: Plan, rows: Sequence[Row]) -> Refusal | None:
    """Land. Raises `LandingBroken`, and `SQLAlchemyError` for what savepoints cannot mend."""
    try:
        with session.savepoint("feedq_attempt"):
            plan.insert(session, rows)
    except RowRefused as refused:
        trouble = session.flavor.trouble(refused.error)
        if trouble is Trouble.LANDING:
            raise LandingBroken(
                f"table {plan.landing.table!r} cannot be written: {explain(refused.error)}; "
                "mend the table or edit the feed"
            ) from refused
        if trouble is not Trouble.DATA:
            raise refused.error from refused
        return Refusal(explain(refused.error), refused.position)
    return None
