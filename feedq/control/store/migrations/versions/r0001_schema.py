"""The control tables, which `feedq/control/sql/tables.sql` holds."""

import secrets
from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None

TABLES = Path(__file__).parents[3] / "sql" / "tables.sql"
RANGE_BITS = 24
"""Feeds that an installation can declare before it comes to the numbers of another one, as a power of two."""
RANGES = 2**26
"""Ids stay below 2**50, which is exact wherever a number is a double."""


def upgrade() -> None:
    op.execute(TABLES.read_text())
    # Checkpoints in sinks are known by the numbers of feeds: no other installation, and no control database made
    # anew, gives out the same.
    first = (1 + secrets.randbelow(RANGES - 1)) << RANGE_BITS
    op.execute(f"ALTER TABLE feedq.feed ALTER COLUMN id RESTART WITH {first}")
