"""The tcp connector against gpsd: reports of a receiver land as it sends them, once it has been asked to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import reduce
from operator import xor
from pathlib import Path

import msgspec

from feedq.connectors.tcp import TcpConnector
from feedq.testing.driver import ConnectorDriver, pull
from feedq.testing.loopback import PATIENCE_S, serving
from tests.peers.servers import PeerServer

WATCH = r'?WATCH={"enable":true,"json":true};\n'


def sentence(text: str) -> bytes:
    """A sentence of NMEA 0183, with its checksum."""
    return b"$%b*%02X\r\n" % (text.encode(), reduce(xor, text.encode()))


def fix(second: int) -> bytes:
    """A receiver's report: where it was, a second after the one before."""
    time = f"12{second // 60 % 60:02}{second % 60:02}"
    return sentence(f"GPGGA,{time},5403.123,N,01030.456,E,1,08,0.9,12.0,M,46.9,M,,") + sentence(
        f"GPRMC,{time},A,5403.123,N,01030.456,E,5.5,84.4,230326,,,A"
    )


async def receiver(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends ten fixes a second, so that a test need not wait for them."""
    second = 0
    while True:
        writer.write(fix(second))
        await writer.drain()
        await asyncio.sleep(0.1)
        second += 1


@asynccontextmanager
async def gpsd(directory: Path) -> AsyncIterator[PeerServer]:
    """A gpsd that reads that receiver."""
    async with serving(receiver) as port:
        args = ["-N", "-n", "-S", "{port}", f"tcp://127.0.0.1:{port}"]
        server = PeerServer("gpsd", *args, directory=directory)
        # It is waited for on a thread: the receiver is served by this loop.
        await asyncio.to_thread(server.start)
        try:
            yield server
        finally:
            await asyncio.to_thread(server.stop)


def driver_of(server: PeerServer) -> ConnectorDriver:
    source = {"url": f"tcp://127.0.0.1:{server.port}", "hello": WATCH, "idle_timeout_s": 10}
    return ConnectorDriver(TcpConnector, source)


async def test_reports_of_gpsd_land_as_json(peer_dir: Path) -> None:
    async with gpsd(peer_dir) as server:
        driver = driver_of(server)
        async with aclosing(driver.open()) as stream:
            await pull_until(driver, lambda: pull(driver, stream, count=len(driver.records) + 1))
    reports = [msgspec.json.decode(record) for record in driver.records]
    # It introduces itself, and says what it was asked for, before the first report.
    assert reports[0]["class"] == "VERSION"
    assert "WATCH" in {report["class"] for report in reports}
    where = next(report for report in reports if report["class"] == "TPV" and "lat" in report)
    assert abs(where["lat"] - (54 + 3.123 / 60)) < 1e-6
    assert abs(where["lon"] - (10 + 30.456 / 60)) < 1e-6
    assert driver.connected == 1


async def pull_until(driver: ConnectorDriver, step: Callable[[], Awaitable[None]]) -> None:
    """Until a report says where the receiver is."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(b'"class":"TPV"' in record and b'"lat"' in record for record in driver.records):
            await step()
