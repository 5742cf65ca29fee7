"""What a feed weighs: as it is declared, blended with what was measured of it.

A feed that lands as many rows and bytes a second as the mean of the fleet measures 1; half of the measure is
rows, half bytes. Leases hold the smoothed rates, workers' heartbeats the fleet's sums. `tests.fakes.memory`
says the same in Python, and the contract compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from feedq.lease import RATE_TIME_S

WEIGHT_MIN = 0.01
"""A silent feed weighs this much: none at all would let any number of them go to one worker."""

# A feed that lands nothing reports nothing: beyond one time constant its rates are taken to fade.
_SILENT_S = "extract(epoch FROM clock_timestamp() - l.reported_at)::float8"
_FADE = f"exp(-least(greatest({_SILENT_S} / {RATE_TIME_S} - 1, 0), 20))"
# As a feed weighs now, of `feed f` and `lease l`. Rounded, so that two who compute it agree.
EFFECTIVE_WEIGHT = f"""
    CASE WHEN :measured = 0 OR l.reported_at IS NULL OR (:mean_rows = 0 AND :mean_bytes = 0) THEN f.weight
    ELSE greatest({WEIGHT_MIN}, round(CAST((1 - :measured) * f.weight + :measured * {_FADE} * (
        coalesce(l.rows_per_s / nullif(:mean_rows, 0), l.bytes_per_s / :mean_bytes)
        + coalesce(l.bytes_per_s / nullif(:mean_bytes, 0), l.rows_per_s / :mean_rows)) / 2
        AS numeric), 2)::float8) END
"""


@dataclass(frozen=True, slots=True)
class Means:
    """What the mean feed of the fleet lands, and how much that counts: the parameters of
    `EFFECTIVE_WEIGHT`."""

    measured: float = 0.0
    mean_rows: float = 0.0
    mean_bytes: float = 0.0

    def parameters(self) -> dict[str, float]:
        return {"measured": self.measured, "mean_rows": self.mean_rows, "mean_bytes": self.mean_bytes}


def means(c: Connection, *, measured: float) -> Means:
    if not measured:
        return Means()
    sql = """
        SELECT coalesce(sum(w.rows_per_s) / greatest(sum(h.feeds), 1), 0) AS rows,
               coalesce(sum(w.bytes_per_s) / greatest(sum(h.feeds), 1), 0) AS bytes
        FROM feedq.worker w JOIN feedq.worker_held h ON h.worker_id = w.id WHERE w.state <> 'gone'
    """
    row = c.execute(text(sql)).one()
    return Means(measured, row.rows, row.bytes)
