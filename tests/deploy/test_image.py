"""The Dockerfile as hadolint judges it. No image is built here: `make image` needs a Docker engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.platforms import ROOT

DOCKERFILE = ROOT / "Dockerfile"


def test_hadolint_finds_nothing() -> None:
    linted = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "--no-color", DOCKERFILE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_the_base_is_pinned_and_the_user_has_a_number() -> None:
    text = DOCKERFILE.read_text()
    base = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", text, re.MULTILINE)
    assert base is not None
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+(@sha256:\w{64})?", base[1])
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${PYTHON_IMAGE}"] * 2
    # Kubernetes takes `runAsNonRoot` on trust only from a number.
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE) == ["10001"]
