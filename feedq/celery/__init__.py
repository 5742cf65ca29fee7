"""The Celery edge: application, pool, bootsteps, broker, beat and tasks.

``celery -A feedq`` looks for `app` here. It is made when it is first asked for, so that importing a module of this
package reads no settings.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "app":
        from feedq.celery.application import app

        return app
    raise AttributeError(f"module 'feedq.celery' has no attribute {name!r}")
