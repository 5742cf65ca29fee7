"""PostgreSQL and a broker that speak TLS alone, and a user of the broker who may not CONFIG: as on AWS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from feedq.local.valkey import Valkey
from tests.certificates import Authority
from tests.cluster import Cluster, feed, wait_until
from tests.invariants import wait_streaming
from tests.source_process import Source
from tests.tls_proxy import TlsProxy

pytestmark = pytest.mark.timeout(180)

USER, PASSWORD = "feedq", "as-elasticache-has-it"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "ours").mkdir()
    return Authority(tmp_path / "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    (tmp_path / "strange").mkdir()
    return Authority(tmp_path / "strange")


@pytest.fixture
def database(database_url: str, authority: Authority) -> Iterator[tuple[TlsProxy, str]]:
    """Its proxy, and its URL with all but the authority to trust."""
    at = urlsplit(database_url)
    assert at.port is not None
    with TlsProxy(at.port, authority.server("localhost"), postgresql=True) as proxy:
        login = at.netloc.rpartition("@")[0]
        yield proxy, f"postgresql://{login}@localhost:{proxy.port}{at.path}?sslmode=verify-full&sslrootcert="


@pytest.fixture
def broker(valkey: Valkey, broker_url: str, authority: Authority) -> Iterator[tuple[TlsProxy, str]]:
    client = valkey.client()
    client.acl_setuser(
        USER,
        enabled=True,
        passwords=[f"+{PASSWORD}"],
        keys="*",
        channels="*",
        categories=["+@all"],
        commands=["-config"],
    )
    at = urlsplit(broker_url)
    assert at.port is not None
    with TlsProxy(at.port, authority.server("localhost"), postgresql=False) as proxy:
        url = (
            f"rediss://{USER}:{PASSWORD}@localhost:{proxy.port}{at.path}?ssl_cert_reqs=required&ssl_ca_certs="
        )
        yield proxy, url
    client.acl_deluser(USER)
    client.close()


def test_a_fleet_streams_over_tls_with_a_broker_that_forbids_config(
    tmp_path: Path, database: tuple[TlsProxy, str], broker: tuple[TlsProxy, str], authority: Authority
) -> None:
    trusted = authority.ca_file
    fleet = Cluster(tmp_path, database_url=database[1] + trusted, broker_url=broker[1] + trusted)
    with Source() as source, fleet as cluster:
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        cluster.apply([feed("over/tls", source.url)])
        wait_streaming(source, ["over/tls"])
        wait_until(lambda: cluster.leases()["over/tls"].records_total, limit_s=30, what="records land")
        said = cluster.run("doctor")
        assert " 0 failed" in said.stdout, said.stdout
        assert "the broker's settings cannot be read" in said.stdout, "CONFIG is forbidden"
        assert database[0].passed_on >= 4
        assert broker[0].passed_on >= 2


def test_a_certificate_that_nobody_trusted_vouches_for_is_refused(
    tmp_path: Path,
    database: tuple[TlsProxy, str],
    broker: tuple[TlsProxy, str],
    authority: Authority,
    stranger: Authority,
) -> None:
    right, wrong = authority.ca_file, stranger.ca_file
    with Cluster(tmp_path, database_url=database[1] + right, broker_url=broker[1] + wrong) as cluster:
        said = cluster.run("doctor")
        assert said.returncode != 0
        assert "certificate verify failed" in said.stdout + said.stderr
        refused = cluster.run("db", "upgrade", env={"FEEDQ_DATABASE_URL": database[1] + wrong})
        assert refused.returncode != 0
        assert "certificate verify failed" in refused.stderr
