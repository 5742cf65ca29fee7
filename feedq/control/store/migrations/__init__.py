"""Migrations of the control database, which are the one description of its schema in code."""
