"""What a process imports: a worker is one of many, and pays for each module with memory."""

from __future__ import annotations

import json
import subprocess
import sys

ELSEWHERE = {
    *("alembic", "apprise", "flower", "jinja2", "pygments", "rich", "sqlalchemy.orm", "tornado"),
    "opentelemetry.sdk",
}
"""What commands, pages, the API, alerts, traces and transactional jobs need."""


PROCESSES = "feedq.celery.application, feedq.worker.quarantine, feedq.worker.monitor"
"""What the processes of a worker begin with."""


def test_a_worker_imports_nothing_of_commands_and_pages() -> None:
    code = f"import json, sys, {PROCESSES}; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not ELSEWHERE & set(json.loads(answer.stdout))
