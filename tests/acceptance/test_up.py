"""`feedq up` as a person meets it: it starts, streams, survives its own workers, and leaves nothing behind."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg2
import pytest

from feedq.local.demo import TABLE
from feedq.local.demo_source import RATES
from feedq.local.process import tail
from tests.cluster import wait_until

pytestmark = pytest.mark.timeout(300)

START_S = 120.0
ALL_LAND = r"12 feeds \(12 streaming\), workers: {} serving .* rows, 0 missing, 0 doubled\n"
"""What the demo says while everything streams on so many workers."""
STOP_S = 60.0
FEEDQ = [sys.executable, "-c", "from feedq.cli import main; main()"]


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Up:
    """A `feedq up` in a process of its own."""

    def __init__(
        self, data_dir: Path, *options: str, env: Mapping[str, str], cwd: Path, feedq: Sequence[str] = FEEDQ
    ) -> None:
        self.data_dir, self.env = data_dir, dict(env)
        self._log = data_dir.with_suffix(".out")
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [*feedq, "up", "--data-dir", str(data_dir), *options],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=self.env, cwd=cwd, start_new_session=True,
            )  # fmt: skip
        self._seen: dict[int, psutil.Process] = {}

    @property
    def output(self) -> str:
        return self._log.read_text()

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until the output matches, and the process lives."""

        def found() -> re.Match[str] | None:
            self.family()
            matched = re.search(pattern, self.output)
            if matched is None and self.process.poll() is not None:
                pytest.fail(
                    f"ended with {self.process.returncode} before it said {pattern!r}:\n{self.output}"
                )
            return matched

        wait_until(found, lambda: f"{pattern!r} in:\n{self.output}", limit_s=START_S)
        matched = re.search(pattern, self.output)
        assert matched is not None
        return matched

    def says_again(self, pattern: str) -> None:
        """Wait until a line that is yet to come matches."""
        begin = len(self.output)
        wait_until(
            lambda: re.search(pattern, self.output[begin:]),
            lambda: f"{pattern!r} in:\n{self.output[begin:]}",
            limit_s=START_S,
        )

    def family(self) -> list[psutil.Process]:
        """Every process that it has ever been seen to have started."""
        try:
            me = psutil.Process(self.process.pid)
            self._seen |= {p.pid: p for p in me.children(recursive=True)}
        except psutil.NoSuchProcess:
            pass
        return list(self._seen.values())

    def survivors(self) -> list[psutil.Process]:
        named = [
            p
            for p in psutil.process_iter(["cmdline"])
            if any(str(self.data_dir) in a for a in p.info["cmdline"] or ()) and p.pid != self.process.pid
        ]
        return [p for p in {*self.family(), *named} if is_running(p)]

    def exits(self, *, limit_s: float = STOP_S) -> int:
        return self.process.wait(limit_s)

    def leaves_nothing(self, *, limit_s: float = STOP_S) -> None:
        assert self._seen, "nothing was seen running"
        wait_until(lambda: not self.survivors(), lambda: f"left: {self.survivors()}", limit_s=limit_s)

    def settings(self) -> dict[str, str]:
        ran = run_feedq("env", "--json", "--data-dir", str(self.data_dir), env=self.env)
        assert ran.returncode == 0, ran.stderr
        return dict(json.loads(ran.stdout))

    def worker_pid(self, number: int) -> int:
        return int(self.says(rf"worker{number} +\(pid (\d+)\)").group(1))


def run_feedq(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FEEDQ, *arguments], env=dict(env), capture_output=True, text=True, timeout=60, check=False
    )


def plain_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("FEEDQ_")}


@contextmanager
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="feedq-up-"))
    made.chmod(0o711)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def running(where: Path, *options: str, feedq: Sequence[str] = FEEDQ, **settings: str) -> Iterator[Up]:
    up = Up(where / "data", *options, env={**plain_env(), **settings}, cwd=where, feedq=feedq)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait(STOP_S)
        print(up.output)  # for whoever reads of a failure
        for log in sorted((where / "data" / "logs").glob("*.log")):
            print(f"== {log.name}", tail(log, lines=40), sep="\n")
        up.leaves_nothing()


@pytest.fixture(scope="module")
def demo() -> Iterator[Up]:
    with directory() as where, running(where, "--demo") as up:
        up.says(ALL_LAND.format(3))
        yield up


def counts(database_url: str) -> dict[str, tuple[int, int, int]]:
    """Rows, distinct numbers and the highest number of each feed."""
    connection = psycopg2.connect(database_url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT feed, count(*), count(DISTINCT seq), max(seq) FROM {TABLE} GROUP BY feed")
            return {feed: (rows, distinct, last) for feed, rows, distinct, last in cursor.fetchall()}
    finally:
        connection.close()


def are_exact(counted: Mapping[str, tuple[int, int, int]]) -> bool:
    return len(counted) == len(RATES) and all(r == d == last for r, d, last in counted.values())


def every_feed_goes_on(up: Up) -> None:
    """Wait until each feed has landed more, and nothing is missing or there twice."""
    url = up.settings()["FEEDQ_DATABASE_URL"]
    before = counts(url)

    def has_gone_on() -> bool:
        now = counts(url)
        return are_exact(now) and all(now[feed][2] > last for feed, (_, _, last) in before.items())

    wait_until(has_gone_on, lambda: f"{before} goes on to {counts(url)}\n{up.output}", limit_s=START_S)


def test_the_demo_lands_every_feed_gapless(demo: Up) -> None:
    demo.says(r"[\d,]{4,} rows, 0 missing, 0 doubled\n")
    assert are_exact(counts(demo.settings()["FEEDQ_DATABASE_URL"]))


def test_the_link_to_flower_logs_in_and_nothing_else_does(demo: Up) -> None:
    user, password, at = demo.says(r"flower +http://(\w+):([\w-]{24,})@(127\.0\.0\.1:\d+) ").groups()
    assert (demo.data_dir / "flower.password").stat().st_mode & 0o077 == 0

    def status(path: str, **headers: str) -> int:
        try:
            asked = urllib.request.Request(f"http://{at}{path}", headers=headers)
            return int(urllib.request.urlopen(asked, timeout=30).status)
        except urllib.error.HTTPError as error:
            return error.code

    login = {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    for path in ("/feeds", "/workers", "/api/workers", "/api/v1/feeds"):
        assert (status(path), status(path, **login)) == (401, 200), path
    for process in demo.survivors():
        assert password not in " ".join(process.cmdline())


def test_the_settings_of_the_running_stack_work_for_other_commands(demo: Up) -> None:
    printed = run_feedq("env", "--data-dir", str(demo.data_dir), env=plain_env())
    assert printed.returncode == 0
    lines = dict(line.removeprefix("export ").split("=", 1) for line in printed.stdout.splitlines())
    assert {"FEEDQ_DATABASE_URL", "FEEDQ_BROKER_URL"} <= set(lines)
    listed = run_feedq("feed", "list", "--json", env={**plain_env(), **lines})
    assert listed.returncode == 0, listed.stderr
    assert {row["feed"]["spec"]["name"] for row in json.loads(listed.stdout)} == set(RATES)


def test_feeds_of_a_killed_worker_go_on_elsewhere_and_the_worker_comes_back(demo: Up) -> None:
    victim = demo.worker_pid(1)
    os.kill(victim, signal.SIGKILL)
    demo.says(rf"worker1 \(pid {victim}\) was killed by signal 9 \(Killed\); starting it again in 5 s")
    demo.says(r"worker1 started again \(pid (\d+)\)")
    demo.says_again(ALL_LAND.format(3))
    every_feed_goes_on(demo)
    said = (demo.data_dir / "logs" / "worker1.log").read_text()
    assert re.search(rf"worker lost +\[feedq.worker.monitor\] .* pid={victim} cause=killed", said), (
        "by its monitor"
    )
    assert "Logging error" not in said


def test_killed_servers_come_back_and_nothing_is_lost(demo: Up) -> None:
    patterns = {"valkey": r"\(Valkey, pid (\d+)\)", "postgres": r"\(PostgreSQL \d+, pid (\d+)\)"}
    pids = {server: int(demo.says(pattern).group(1)) for server, pattern in patterns.items()}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    for server in pids:
        demo.says(rf"{server} started again \(pid")
    demo.says_again(ALL_LAND.format(3))
    every_feed_goes_on(demo)


def test_nothing_outlives_a_kill_and_in_a_terminal_the_demo_goes_on_where_it_was(demo: Up) -> None:
    """The last test of the demo, which it ends."""
    before = counts(demo.settings()["FEEDQ_DATABASE_URL"])
    demo.process.kill()
    demo.exits()
    demo.leaves_nothing(limit_s=10)
    told = run_feedq("env", "--data-dir", str(demo.data_dir), env=plain_env())
    assert (told.returncode, "no feedq up runs in" in told.stderr) == (1, True)

    def has_each_landed_more(shown: bytes) -> bool:
        now = checked(shown)
        return all(feed in now and now[feed][-1] > last for feed, (_, _, last) in before.items())

    shown = show_in_a_terminal(demo.data_dir, "--workers=1", until=has_each_landed_more)
    assert shown.rstrip().endswith(b"stopped")
    assert re.search(rb"NAME +STATUS .*CHECK", plain(shown))
    assert re.search(
        rb"Pages: http://feedq:[\w-]+@127\.0\.0\.1:\d+/feeds   Ctrl-C stops everything", plain(shown)
    )
    after = checked(shown)
    assert after.keys() == before.keys()
    assert all(min(after[feed]) >= before[feed][2] for feed in before), "goes on, does not begin anew"


def show_in_a_terminal(data_dir: Path, *options: str, until: Callable[[bytes], bool]) -> bytes:
    """Run the demo in a terminal until what that has shown is enough, then press Ctrl-C: all that was shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        os.execvpe(FEEDQ[0], [*FEEDQ, "up", "--demo", f"--data-dir={data_dir}", *options], plain_env())
    shown = bytearray()
    finished = threading.Thread(target=_read, args=(terminal, shown))
    finished.start()
    try:
        wait_until(
            lambda: until(bytes(shown)),
            lambda: shown[-4_000:].decode(errors="replace"),
            limit_s=START_S,
            interval_s=0.1,
        )
        os.write(terminal, b"\x03")
        finished.join(STOP_S)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
    return bytes(shown)


def plain(shown: bytes) -> bytes:
    """What a terminal was sent, without what moves its cursor and colours its text."""
    return re.sub(rb"\x1b\[[0-9;]*[A-Za-z]", b"", shown)


def checked(shown: bytes) -> dict[str, list[int]]:
    """Of each feed, the rows that the check found, one time after the other."""
    found: dict[str, list[int]] = {}
    for feed, rows in re.findall(
        rb"(coastguard/ais-\d+) .*?([\d,]+) rows, 0 missing, 0 doubled", plain(shown)
    ):
        found.setdefault(feed.decode(), []).append(int(rows.replace(b",", b"")))
    return found


def _read(terminal: int, shown: bytearray) -> None:
    with suppress(OSError):  # the other end is closed
        while some := os.read(terminal, 65_536):
            shown.extend(some)


def test_ctrl_c_during_the_start_ends_it() -> None:
    with directory() as where, running(where, "--workers", "1", "--beats", "1") as up:
        up.says("broker")
        up.process.send_signal(signal.SIGINT)
        assert up.exits() == 0
        up.leaves_nothing()


def test_urls_replace_the_servers_and_a_second_signal_does_not_wait_for_a_frozen_worker(
    database_url: str, broker_url: str
) -> None:
    settings = {"FEEDQ_DATABASE_URL": database_url, "FEEDQ_BROKER_URL": broker_url}
    with directory() as where, running(where, "--workers", "1", "--beats", "0", **settings) as up:
        up.says("everything is up")
        assert up.settings().items() >= settings.items()
        assert not list(up.data_dir.glob("pg*"))
        assert not (up.data_dir / "valkey").exists()
        os.kill(up.worker_pid(1), signal.SIGSTOP)
        up.process.send_signal(signal.SIGTERM)
        up.says("stopping")
        up.process.send_signal(signal.SIGTERM)
        assert up.exits() == 1
        assert not up.survivors()


def test_a_worker_that_does_not_start_is_an_error_with_the_end_of_its_log(
    database_url: str, broker_url: str
) -> None:
    settings = {"FEEDQ_DATABASE_URL": database_url, "FEEDQ_BROKER_URL": broker_url}
    with directory() as where:
        (where / "beat_schedule.py").write_text("raise RuntimeError('this schedule is broken')\n")
        with running(where, "--workers", "1", "--beats", "1", **settings) as up:
            up.says(r"Error: \w+ ended with status \d+; its log .*\.log ends:")
            assert up.exits() == 1
            assert "this schedule is broken" in up.output
            up.leaves_nothing()
