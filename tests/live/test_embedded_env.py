"""What `feedq env` prints gives a shell the settings of a running `feedq up`, whatever their values contain."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from feedq.local.datadir import DataDir

FEEDQ = f"{sys.executable} -c 'from feedq.cli import main; main()'"
SETTINGS = {
    "FEEDQ_TENANT_LIMITS": '{"acme": {"rows_per_s": 5000}, "*": {"rows_per_s": 10}}',
    "FEEDQ_ALERT_URLS": 'mailto://ada:it\'s "me"@example.com  slack://$HOME/`id`/$(id)',
    "FEEDQ_SINKS__FILES": "sqlite:///a\\b !c*\t~;&|<>#\x1b[0m",
    "FEEDQ_ENVIRONMENT": "first line\n\nthird line\n",
    "FEEDQ_IMPORTS": "",
}


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_shell_gets_every_value_as_it_is(shell: str, tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path / "it's a $HOME 'data'")
    shown = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    typed = f'set -e; eval "$({FEEDQ} env --data-dir {shlex.quote(str(data_dir.path))})"; {shown}'
    with data_dir.held():
        data_dir.write_settings(SETTINGS)
        done = subprocess.run([shell, "-c", typed], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout).items() >= SETTINGS.items()
