"""Every session with a database, as the kernel has it: either end notices one that says nothing any more."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.cluster import FEEDQ, Cluster, feed, wait_until
from tests.source_process import Source

LIMIT_S = 90.0
PIDFD_GETFD = 438
SESSIONS = """
    SELECT pid, client_port, split_part(application_name, '/', 1) AS kind FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'feedq%' AND application_name <> 'feedq-tests'
"""
KINDS = {
    *("feedq", "feedq-keeper", "feedq-listener", "feedq-writer", "feedq-fencer"),  # a worker, with its pool
    *("feedq-beat", "feedq-waiter"),
    "feedq-job",  # the session of a transactional job
    "feedq-cli",
}
WANTED = {
    "keepalive": 1,
    "idle_s": 5,
    "interval_s": 2,
    "count": 3,
    "user_timeout_ms": 10_000,
}


def test_each_end_of_every_session_gives_up_a_silent_other_end_within_seconds(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    env = {"FEEDQ_IMPORTS": "tests.jobs_under_test"}
    with (
        Source(rate=20) as source,
        Cluster(
            tmp_path, database_url=database_url, broker_url=broker_url, env=env, with_roles=True
        ) as cluster,
    ):
        beat, worker = cluster.add_beat("b1"), cluster.add_worker("w1")
        job = {"task": "tests.pause", "kwargs": {"seconds": 60}, "semantics": "transactional", "every": "1d"}
        cluster.apply(
            [feed("ends/streams", source.url), feed("ends/refused", "tcp://127.0.0.1:1")],
            schedules=[{"name": "ends/job", **job}],
        )
        cluster.feedq("schedule", "trigger", "ends/job")
        found: dict[tuple[str, str], dict[str, int]] = {}
        wanted = {(kind, whose) for kind in KINDS for whose in ("server", "client")}

        def look(command: int) -> bool:
            """Sessions come and go: not all kinds are there at the same moment."""
            if ("feedq-fencer", "client") not in found:
                cluster.feedq("feed", "restart", "ends/streams")  # that of the fencer ends after seconds
            for row in cluster.sql(SESSIONS):
                for whose, pids in (("server", [row["pid"]]), ("client", [beat.pid, worker.pid, command])):
                    for pid in pids:
                        for connection in connections_of(pid, row["client_port"]):
                            with suppress(OSError):  # it has ended meanwhile
                                found[row["kind"], whose] = options_of(pid, connection.fd)
            return found.keys() >= wanted

        with waiting_command(cluster) as command:
            wait_until(
                partial(look, command),
                limit_s=LIMIT_S,
                what=lambda: f"sessions of each kind, and not {wanted - found.keys()}",
            )
    assert found == dict.fromkeys(found, WANTED)


@contextmanager
def waiting_command(cluster: Cluster) -> Iterator[int]:
    """The pid of a command that waits for what does not happen."""
    command = subprocess.Popen(
        [str(FEEDQ), "feed", "restart", "ends/refused", "--wait", "--timeout", "60"],
        env=cluster.env,
        cwd=cluster.directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield command.pid
    finally:
        command.kill()
        command.wait(10)


def connections_of(pid: int, client_port: int) -> list[Any]:
    """The TCP connections of a process to or from a client's port."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return []
    return [c for c in connections if c.raddr and client_port in (c.laddr.port, c.raddr.port)]


def options_of(pid: int, descriptor: int) -> dict[str, int]:
    """What a process has asked of its end of a connection."""
    with closing(duplicate(pid, descriptor)) as end:
        return {
            "keepalive": end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            "idle_s": end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            "interval_s": end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            "count": end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            "user_timeout_ms": end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        }


def duplicate(pid: int, descriptor: int) -> socket.socket:
    """A descriptor of our own for a socket of another process."""
    process = os.pidfd_open(pid)
    try:
        found = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if found < 0:
        raise OSError(ctypes.get_errno(), f"a socket of process {pid} cannot be looked at")
    return socket.socket(fileno=found)
