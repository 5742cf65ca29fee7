"""${message}."""

from feedq.control.store.migrations import run_live

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

STATEMENTS = """
"""


def upgrade() -> None:
    run_live(STATEMENTS)
