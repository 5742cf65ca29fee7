"""A process that reads hostile sources one after the other, and tells what each of them did to it.

::

    python -m tests.hostile.victim tcp redis        the attacks on these connectors; a line of JSON for each
    python -m tests.hostile.victim --limits         honest sources at their limits instead

The sources are in a process of their own, so that what they take is not counted. What is measured is what a worker
would feel: the growth of resident memory at its highest (the kernel's own mark, reset before each source), and how
long the event loop stood still, in time and in processor time of its thread, of which the second is the truth on a
machine that is busy with other things.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop

from feedq.connectors.base import Context, load_connector
from feedq.connectors.blocking import open_stream
from feedq.core.clock import SystemClock
from feedq.core.permission import Permissions
from feedq.errors import FeedqError
from feedq.settings import Settings
from feedq.testing.loopback import RecordingGuard, serving
from feedq.worker.batch_queue import InflightBudget
from tests.hostile.attacks import ATTACKS, HONEST, Attack, prepare

PROBE_S: Final = 0.002
GIVE_UP_S: Final = 60.0
"""Three times what the slowest takes on a machine that is busy with other things."""
ENOUGH_S: Final = 0.4
"""Of what goes on."""
HONEST_S: Final = 0.3
"""Of what is read at its limits, once some of it has been."""
MEBIBYTE: Final = 2**20
ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Harm:
    """What a source did."""

    name: str
    error: str
    """What the connector ended with; empty if it did not within `GIVE_UP_S`."""
    kind: str
    unexpected: list[str]
    """Errors that are none of feedq's, and those that only the log was told."""
    records: int
    growth_mib: float
    stall_s: float
    stall_cpu_s: float


class Probe:
    """Looks how late the loop is."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.stall_s = self.stall_cpu_s = 0.0
        self._at, self._cpu_at = time.perf_counter(), time.thread_time()
        self._handle = self._loop.call_later(PROBE_S, self._look)

    def _look(self) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        self.stall_s = max(self.stall_s, now - self._at - PROBE_S)
        self.stall_cpu_s = max(self.stall_cpu_s, cpu - self._cpu_at)
        self._at, self._cpu_at = now, cpu
        self._handle = self._loop.call_later(PROBE_S, self._look)

    def stop(self) -> None:
        self._handle.cancel()


class Memory:
    """Resident memory over what it was at the beginning, at its highest."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        gc.collect()
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self._can_reset = False
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self._can_reset = True
        self._before = self._process.memory_info().rss
        self._highest = self._before

    def check(self) -> None:
        self._highest = max(self._highest, self._process.memory_info().rss)

    @property
    def growth_mib(self) -> float:
        self.check()
        if self._can_reset:
            status = Path("/proc/self/status").read_text()
            mark = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
            self._highest = max(self._highest, int(mark.split()[1]) * 1024)
        return (self._highest - self._before) / MEBIBYTE


class Complaints(logging.Handler):
    """What is logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.heard.append(record.getMessage())


async def suffer(attack: Attack, source: Mapping[str, Any], programs: frozenset[str]) -> Harm:
    """Read a source to its end."""
    kind = load_connector(attack.connector)
    options = kind.Options.model_validate(dict(source))
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.heard.append(str(context)))
    memory, probe = Memory(), Probe()
    began, is_honest = time.monotonic(), attack in HONEST
    error: BaseException | None = None
    records = 0
    cursor: Any = None
    try:
        first_s = ENOUGH_S if attack.goes_on and not is_honest else GIVE_UP_S
        async with asyncio.timeout(first_s) as limit:
            context = Context(
                feed="hostile/feed",
                clock=SystemClock(),
                guard=RecordingGuard(),
                on_connected=lambda: None,
                secrets={},
                permissions=Permissions(programs=tuple(programs)),
                room=InflightBudget(Settings.model_fields["inflight_bytes_total"].default),
            )
            async with aclosing(open_stream(kind, options, context=context, cursor=cursor)) as stream:
                async for batch in stream:
                    records += batch.count
                    memory.check()
                    if batch.on_committed is not None:
                        batch.on_committed()
                    del batch
                    await asyncio.sleep(0)
                    if is_honest:
                        limit.reschedule(asyncio.get_running_loop().time() + ENOUGH_S)
                        if time.monotonic() >= began + HONEST_S:
                            break
    except TimeoutError:
        pass
    except Exception as raised:
        error = raised
    # A stall shows only when the loop has turned again.
    await asyncio.sleep(4 * PROBE_S)
    probe.stop()
    logging.getLogger().removeHandler(complaints)
    if error is not None and not isinstance(error, FeedqError):
        complaints.heard.append(repr(error)[:500])
    return Harm(
        name=attack.name,
        error=str(error) if error is not None else "",
        kind=type(error).__name__ if error is not None else "",
        unexpected=complaints.heard,
        records=records,
        growth_mib=round(memory.growth_mib, 1),
        stall_s=round(probe.stall_s, 3),
        stall_cpu_s=round(probe.stall_cpu_s, 3),
    )


# -- processes -----------------------------------------------------------------------------------------------


async def _serve(attacks: list[Attack], reader: Connection) -> None:
    """Listen for each of them, tell where, and stay as long as the reader does."""
    ports = {}
    async with AsyncExitStack() as stack:
        for attack in attacks:
            if attack.script is not None:
                ports[attack.name] = await stack.enter_async_context(serving(attack.script))
        reader.send(ports)
        with suppress(EOFError):
            await asyncio.to_thread(reader.recv)


def _be_sources(attacks: list[Attack], theirs: Connection, ours: Connection) -> None:
    theirs.close()  # of which the fork made a copy
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what becomes of a source is no complaint of the reader's
    asyncio.run(_serve(attacks, ours))


@contextmanager
def _served(attacks: list[Attack]) -> Iterator[dict[str, int]]:
    forking = multiprocessing.get_context("fork")
    ours, theirs = forking.Pipe()
    server = forking.Process(target=_be_sources, args=(attacks, ours, theirs))
    server.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        server.kill()
        server.join(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", help="connectors, or names of attacks")
    parser.add_argument("--limits", action="store_true", help="honest sources at their limits")
    options = parser.parse_args()
    table = HONEST if options.limits else ATTACKS
    wanted = [a for a in table if not options.which or {a.name, a.connector} & set(options.which)]
    with tempfile.TemporaryDirectory(prefix="feedq-hostile-") as directory, _served(wanted) as ports:
        prepare(directory)
        programs = frozenset(str(path) for path in Path(directory).glob("*.sh"))
        for attack in wanted:
            source = attack.source(f"127.0.0.1:{ports.get(attack.name, 0)}", directory)
            harm = uvloop.run(suffer(attack, source, programs))
            print(json.dumps(asdict(harm)), flush=True)


if __name__ == "__main__":
    main()
