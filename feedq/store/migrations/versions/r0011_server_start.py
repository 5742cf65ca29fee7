"""By which start a restarted database is known, whatever its clock says.

Runs on a live database, as 0003 does.
"""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("ALTER TABLE feedq.fleet ADD COLUMN IF NOT EXISTS server_started_at timestamptz")
