"""Writes down which threads of Python a worker has: a module for ``FEEDQ_IMPORTS`` of workers under test."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

VARIABLE = "THREAD_NAMES"
EACH_S = 0.2


def write_names(path: Path) -> None:
    while True:
        names = [one.name for one in threading.enumerate() if one is not threading.current_thread()]
        half = path.with_suffix(".half")
        half.write_text("\n".join(names))
        half.rename(path)
        time.sleep(EACH_S)


if VARIABLE in os.environ:
    threading.Thread(target=write_names, args=(Path(os.environ[VARIABLE]),), daemon=True).start()
