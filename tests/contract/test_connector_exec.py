"""The exec connector: what a program writes lands, and the program ends with its feed, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from feedq.connectors.exec import ExecConnector
from feedq.core.model import JSON
from feedq.core.permission import Permissions
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.testing.driver import SECRET, ConnectorDriver
from feedq.testing.loopback import PATIENCE_S, until

SHELL = "/bin/sh"
ALLOWED = Permissions(programs=(SHELL, sys.executable))


def shell(script: str, **source: Any) -> ConnectorDriver:
    """A feed of a shell script; a record is any text."""
    command = [SHELL, "-c", script.replace("\\", "\\\\")]
    return ConnectorDriver(
        ExecConnector, {"command": command, "format": "text", **source}, permissions=ALLOWED
    )


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- what it is given ----------------------------------------------------------------------------------


async def test_arguments_hold_the_cursor_and_the_name() -> None:
    cursors: list[tuple[JSON, str]] = [
        (None, "none"),
        (17, "17"),
        ("a b", "a b"),
        ({"n": [1]}, '{"n":[1]}'),
    ]
    for cursor, shown in cursors:
        source = {
            "command": [
                SHELL,
                "-c",
                'printf "%s|" "$@"',
                "-",
                "after={cursor}",
                "{name}",
                r"\x7bcursor}",
            ],
            "first_cursor": "none",
            "format": "text",
        }
        driver = ConnectorDriver(
            ExecConnector, source, feed="acme/orders", permissions=ALLOWED, cursor=cursor
        )
        await driver.read()
        assert driver.records == [f"after={shown}|acme/orders|{{cursor}}|".encode()]


async def test_the_environment_holds_what_is_given_and_nothing_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKERS_OWN", "hidden")
    monkeypatch.setenv("LANG", "C.UTF-8")

    env = {"TOKEN": "Bearer {token}", "AFTER": "{cursor}", "FEED": "{name}"}
    driver = ConnectorDriver(
        ExecConnector,
        {
            "command": [
                sys.executable,
                "-I",
                "-c",
                "import os, json; print(json.dumps(dict(os.environ)))",
            ],
            "env": env,
            "secrets": {"token": "${env:UNUSED}"},
        },
        permissions=ALLOWED,
        cursor=17,
    )
    await driver.read()
    (record,) = driver.records
    given = json.loads(record)
    assert {name: given.pop(name) for name in env} == {
        "TOKEN": f"Bearer {SECRET}",
        "AFTER": "17",
        "FEED": "conformance/feed",
    }
    # Python adds the last one to whatever it is started with in the C locale.
    assert given.keys() <= {"PATH", "LANG", "HOME", "LC_CTYPE"}
    assert given["LANG"] == "C.UTF-8"


@pytest.fixture
def hangup_ignored() -> Iterator[None]:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_ignored")
async def test_it_inherits_no_descriptor_no_input_and_no_ignored_signal() -> None:
    script = """
import os, signal, sys
fds = os.listdir("/proc/self/fd")
print(sorted(int(fd) for fd in fds if os.path.exists("/proc/self/fd/" + fd)))
print(sys.stdin.read() == "", os.getcwd(), os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())
"""

    source = {"command": [sys.executable, "-I", "-c", script], "format": "text"}
    driver = ConnectorDriver(ExecConnector, source, permissions=ALLOWED)
    await driver.read()
    assert driver.records == [b"[0, 1, 2]", b"True / True True"]
    # A shell cannot trap what was ignored when it began, and Python ignores SIGPIPE.
    ignored = shell("grep SigIgn /proc/self/status")
    await ignored.read()
    (mask,) = ignored.records
    # 32 and 33 are the C library's own: it may leave them ignored in a child, and nobody can trap them.
    ours = sum(1 << number - 1 for number in signal.valid_signals())
    assert int(mask.removeprefix(b"SigIgn:"), 16) & ours == 0


# -- how it ends ---------------------------------------------------------------------------------------


async def test_a_program_that_ends_is_told_with_its_status_and_last_words() -> None:
    for script, message in [
        ("echo 1", "ended (exit status 0)"),
        ("echo 1; echo warned >&2", "ended (exit status 0): warned"),
        ("echo 1; echo no access >&2; exit 3", "failed (exit status 3): no access"),
        ("echo 1; kill -9 $$", "was ended by SIGKILL"),
        ("echo 1; echo $TOKEN >&2; exit 1", "failed (exit status 1): ***"),
    ]:
        driver = shell(script, env={"TOKEN": "{token}"}, secrets={"token": "${env:UNUSED}"})
        error = await driver.read()
        assert driver.records == [b"1"]
        assert isinstance(error, SourceUnavailable)
        assert str(error) == f"{SHELL}: {message}"


async def test_last_words_are_bounded_and_hold_no_part_of_a_secret() -> None:
    script = 'i=0; while [ $i -lt 3000 ]; do echo "$TOKEN $i" >&2; i=$((i+1)); done; exit 1'
    error = await shell(script, env={"TOKEN": "{token}"}, secrets={"token": "${env:UNUSED}"}).read()
    assert str(error).endswith("*** 2999")
    assert len(str(error)) < 600
    for part in (SECRET[:8], SECRET[-8:]):
        assert part not in str(error)


@pytest.mark.parametrize(("status", "landed"), [(0, [b"1", b"2"]), (1, [b"1"])])
async def test_the_end_of_a_program_that_ends_well_ends_its_last_record(
    status: int, landed: list[bytes]
) -> None:
    driver = shell(f"printf '1\n2'; exit {status}")
    await driver.read()
    assert driver.records == landed


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
async def test_it_ends_with_its_children_whatever_they_ignore(trap: str) -> None:
    driver = shell(f"{trap}sleep 60 & echo $$; echo $!; wait; wait; exec sleep 60")
    stream = driver.open()
    await driver.pull(stream, count=2)
    pids = list(map(int, driver.records))
    assert all(map(alive, pids))
    began = time.monotonic()
    await stream.aclose()
    assert time.monotonic() - began < 30, "it waited for them to end by themselves"
    await until(lambda: not any(map(alive, pids)))
    assert not driver.guard.watched


async def test_a_program_that_ended_is_told_though_what_it_left_running_holds_its_output() -> None:
    driver = shell("sleep 60 & echo $!; exit 3")
    error = await driver.read()
    assert str(error) == f"{SHELL}: failed (exit status 3)"
    (pid,) = map(int, driver.records)
    await until(lambda: not alive(pid))


async def test_the_guard_ends_the_program_although_the_loop_is_stuck() -> None:
    driver = shell("echo $$; while :; do echo x; done")
    async with aclosing(driver.open()) as stream:
        await driver.pull(stream, count=1)
        pid = int(driver.records[0])
        assert alive(pid)
        driver.guard.cut()
        give_up_at = time.monotonic() + PATIENCE_S
        # The loop does nothing here, and takes no batch.
        while alive(pid):
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        with pytest.raises(SourceUnavailable):
            await driver.pull(stream, count=10**9)


def test_the_program_ends_when_the_worker_is_killed(tmp_path: Path) -> None:
    worker = f"""
import sys
from feedq.testing.driver import ConnectorDriver
from feedq.connectors.base import Context
from feedq.connectors.exec import ExecConnector
from feedq.core.permission import Permissions
from feedq.core.clock import SystemClock
from feedq.testing.loopback import RecordingGuard
options = ExecConnector.Options(command=["{SHELL}", "-c", "echo $$; exec sleep 60"], format="text")
permissions = Permissions(programs=("{SHELL}",))
context = Context("a", SystemClock(), RecordingGuard(), lambda: None, {{}}, permissions)
for batch in ExecConnector(options, context).stream(None):
    print(batch.split()[0].decode(), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.send_signal(signal.SIGKILL)
    give_up_at = time.monotonic() + PATIENCE_S
    while alive(pid):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


# -- what it may run -----------------------------------------------------------------------------------


async def test_only_allowed_programs_are_run(tmp_path: Path) -> None:
    for allowed in ((), (f"{SHELL}x",), ("/bin",), ("sh",)):
        driver = ConnectorDriver(
            ExecConnector,
            {"command": [SHELL, "-c", f"touch {tmp_path}/run"]},
            permissions=Permissions(programs=allowed),
        )
        error = await driver.read()
        assert isinstance(error, FeedMisconfigured)
        assert str(error).startswith(f"{SHELL}: feeds may not run this program here")
        assert "FEEDQ_EXEC_ALLOW" in str(error)
        assert driver.connected == 0
    assert not os.listdir(tmp_path)


async def test_a_program_that_cannot_be_run_says_why(tmp_path: Path) -> None:
    data, broken = tmp_path / "data", tmp_path / "broken"
    data.write_text("x")
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)

    for program, problem in [
        (tmp_path / "missing", "there is no such program on this worker"),
        (tmp_path, "there is no such program on this worker"),
        (data, "it may not be executed by the worker"),
        (broken, "failed (exit status 127): cannot be run: No such file or directory"),
    ]:
        permissions = Permissions(programs=(str(program),))
        error = await ConnectorDriver(
            ExecConnector, {"command": [str(program)]}, permissions=permissions
        ).read()
        assert isinstance(error, SourceUnavailable)
        assert str(error) == f"{program}: {problem}"
