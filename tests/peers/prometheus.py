"""A Prometheus, with the rules of ``deploy/``, that reads what a test names."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests import promql
from tests.peers.servers import PeerServer

SCRAPE = "200ms"


class Prometheus(PeerServer):
    """``targets``: the ports of workers and beats, by what they are called here."""

    def __init__(self, directory: Path, targets: Mapping[str, int]) -> None:
        scraped = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in targets.items()
        ]
        config = {
            "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": "1s"},
            "rule_files": [str(promql.RULES)],
            "scrape_configs": [{"job_name": "feedq", "static_configs": scraped}],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        super().__init__(
            "prometheus",
            "--config.file={directory}/prometheus.yml",
            "--storage.tsdb.path={directory}/data",
            "--web.listen-address=127.0.0.1:{port}",
            directory=directory,
            ready=self._is_ready,
        )

    def query(self, expr: str) -> list[float]:
        """The values that an expression has now; none where it has no data."""
        found = self._get("/api/v1/query", query=expr)["data"]["result"]
        return [float(sample["value"][1]) for sample in found]

    def alerts_known(self) -> set[str]:
        """The names of the alerts that it has loaded, each of which it can evaluate."""
        groups = self._get("/api/v1/rules")["data"]["groups"]
        return {rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "ok"}

    def _get(self, path: str, **asked: str) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2):
                return True
        except OSError:
            return False
