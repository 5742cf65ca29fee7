"""The control database. `postgresql` has all of it; the other modules each have a part.

The only package that speaks SQL to the control database.
"""
