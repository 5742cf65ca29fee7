"""Traces of a real worker, as a collector receives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.cluster import Cluster, feed, wait_until
from tests.source_process import Source


class Collector:
    """Takes what is exported by OTLP over HTTP."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.spans: list[tuple[str, Span]] = []
        """With the service that each came from."""

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]

    def of(self, feed: str) -> list[Span]:
        """The spans of a feed's claims."""
        return [
            span
            for _, span in self.spans
            if any(one.key == "feedq.feed" and one.value.string_value == feed for one in span.attributes)
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_address[1])
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


def test_a_collector_receives_the_trace_of_a_claim_and_its_log_names_it(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    with (
        collecting() as collector,
        Source(rate=50) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url) as cluster,
    ):
        otel = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        cluster.add_beat("b1")
        worker = cluster.add_worker("w1", env={**otel, "FEEDQ_LOG_LEVEL": "DEBUG"})
        cluster.apply([feed("f/1", source.url) | {"labels": {"tier": "gold"}}])
        wait_until(lambda: collector.of("f/1"), lambda: f"a trace; {worker.text()[-2000:]}")
        (whole,) = collector.of("f/1")
        parts = [span.name for _, span in collector.spans if span.parent_span_id == whole.span_id]
        assert sorted(parts) == ["feedq.connect", "feedq.fence", "feedq.first_commit"]
        assert "feedq.label.tier" in {one.key for one in whole.attributes}
        assert {service for service, _ in collector.spans} == {"feedq"}
        wait_until(
            lambda: any(
                span.name == "feedq.commit" and [link.trace_id for link in span.links] == [whole.trace_id]
                for _, span in collector.spans
            ),
            "a commit that is linked to it",
        )
        named = [line for line in worker.events() if line.get("trace_id") == whole.trace_id.hex()]
        assert {line["feed"] for line in named if "feed" in line} == {"f/1"}
