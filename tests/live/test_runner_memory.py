"""What a connector remembers from one connection of a stream to the next."""

from __future__ import annotations

from feedq.testing.loopback import until
from feedq.worker.runner import Interrupt
from tests.contract.mqtt_broker import ScriptedBroker
from tests.live.test_runner import Bench
from tests.unit.data_path import DataPath


async def test_messages_committed_after_their_connection_broke_do_not_land_again() -> None:
    async with ScriptedBroker().listening() as broker:
        with DataPath() as path:
            bench = Bench(
                path, {"url": f"mqtt://127.0.0.1:{broker.port}", "topics": ["t/#"]}, connector="mqtt"
            )
            bench.start()
            await broker.until_subscribed()
            # The sink is away while the connection breaks: the commit comes too late to be acknowledged.
            path.tables.away = True
            await broker.publish([b'{"seq": %d}' % seq for seq in range(1, 4)])
            await until(lambda: path.budget.bytes > 0)
            broker.dismiss(0x8B)
            await until(lambda: bench.runner.progress.status(None) == "connecting")
            assert broker.acknowledged == []
            path.tables.away = False
            await until(lambda: len(broker.acknowledged) == 3)
            assert len(broker.connections) == 2
            await broker.publish([b'{"seq": 4}'])
            await bench.landed_at_least(4)
            bench.runner.interrupt(Interrupt.STOP)
            await bench.end()
    assert bench.landed == [1, 2, 3, 4]
