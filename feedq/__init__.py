"""feedq keeps every feed running on exactly one worker and lands its data exactly once.

Imports nothing heavy: ``celery -A feedq`` finds the app in :mod:`feedq.celery`.
"""

__version__ = "0.1.0"
