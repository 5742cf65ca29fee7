"""Alembic migrations of the control database; run by `feedq db upgrade`."""
