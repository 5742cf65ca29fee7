"""The control database: interfaces in `base`, PostgreSQL in the other modules.

The only package that speaks SQL to the control database.
"""
