"""Cutting the feeds' sockets from any thread, whatever else is wrong."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from feedq.connectors.base import Sockets


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_the_sockets_of_one_feed_are_cut_without_the_others(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, other = Sockets(), Sockets()
    one.watch(pair[0].fileno())
    other_pair = socket.socketpair()
    with other_pair[0], other_pair[1]:
        other.watch(other_pair[0].fileno())
        assert one.cut() == 1
        assert pair[1].recv(1) == b""
        other_pair[0].sendall(b"x")
        assert other_pair[1].recv(1) == b"x"
        one.forget(pair[0].fileno())
        assert (one.cut(), other.cut()) == (0, 1)
        assert other_pair[1].recv(1) == b""


def test_sockets_are_cut_even_when_no_descriptor_is_left(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    sockets = Sockets()
    sockets.watch(ours.fileno())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        sockets.cut()
    finally:
        for fileno in opened:
            os.close(fileno)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    theirs.settimeout(5)
    assert theirs.recv(1) == b""


def test_a_number_that_is_no_socket_any_more_costs_the_others_nothing(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    sockets = Sockets()
    with open(os.devnull) as file:
        sockets.watch(file.fileno())
        sockets.watch(ours.fileno())
        sockets.cut()
        os.fstat(file.fileno())
    assert theirs.recv(1) == b""
