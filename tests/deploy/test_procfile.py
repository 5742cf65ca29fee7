"""The Procfile as honcho runs it, and the health checks that every platform asks, asked of what it started."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from feedq.local.process import free_port
from tests import platforms
from tests.cluster import wait_until
from tests.platforms import ROOT

pytestmark = pytest.mark.timeout(180)

START_S = 90.0
STOP_S = 60.0
HONCHO = (sys.executable, "-m", "honcho")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def has_answered(process: subprocess.Popen[bytes], url: str) -> bool:
    """Whether there is no more to wait for."""
    return process.poll() is not None or answers(url)


def test_honcho_runs_the_procfile_and_each_health_check_answers(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    first = free_port()
    metrics, beat_metrics = free_port(), free_port()
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FEEDQ_DATABASE_URL": database_url,
        "FEEDQ_BROKER_URL": broker_url,
        "FEEDQ_METRICS_PORT": str(metrics),
        "FEEDQ_BEAT_METRICS_PORT": str(beat_metrics),
        "FLOWER_BASIC_AUTH": "ada:secret",
    }
    release = subprocess.run(
        [*HONCHO, "run", *shlex.split(platforms.PROCFILE["release"])],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=START_S, check=False,
    )  # fmt: skip
    assert release.returncode == 0, release.stderr
    log = tmp_path / "honcho.log"
    # Each type of process gets ports of its own, a hundred apart.
    started = ["api", "flower", "worker", "beat"]
    bases = {"api": first, "flower": first + 100, "worker": metrics, "beat": beat_metrics}
    with log.open("wb") as output:
        honcho = subprocess.Popen(
            [*HONCHO, "start", "--port", str(first), *started],
            cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        asked = {
            (process.process, health.partition("/")[2])
            for process in platforms.described()
            for health in process.health
            if process.process in started
        }
        assert {name for name, _ in asked} == set(started)
        for name, path in sorted(asked):
            url = f"http://127.0.0.1:{bases[name]}/{path}"
            wait_until(
                partial(has_answered, honcho, url),
                partial("{} answers:\n{}".format, url, log),
                limit_s=START_S,
                interval_s=0.1,
            )
            assert honcho.poll() is None, log.read_text()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{bases['flower']}/", timeout=10)
    finally:
        honcho.send_signal(signal.SIGTERM)
        try:
            honcho.wait(STOP_S)
        finally:
            print(log.read_text())
