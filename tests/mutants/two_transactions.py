"""A worker that moves a watermark on in one transaction and inserts the runs of its ticks in another.

The other way round a tick could come twice, and the unique key of runs would make one row of the two: that is what
it is for. This way nothing helps a tick whose worker dies between the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from feedq.control.store.jobs import firing


def write(c: Connection, decided: Sequence[firing.Decided]) -> int:
    firing._cancel_others(c, decided)
    firing.advance(c, decided)
    # Beneath the transaction of SQLAlchemy, which knows nothing of it.
    c.connection.commit()
    return firing.insert(c, decided)


firing.write = write
