"""The ``directory`` catalog: all manifests below a directory, YAML or JSON.

Names that begin with a dot are left out, as those are that Kubernetes keeps beside a mounted ConfigMap.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import BYTES_MAX, FeedCatalog

SUFFIXES: Final = (".yaml", ".yml", ".json")


class DirectoryCatalog(FeedCatalog):
    """All files of a directory."""

    errors: ClassVar = (OSError,)

    path: str
    """The directory."""

    @property
    def where(self) -> str:
        return self.path

    def contents(self, settings: Settings) -> Iterator[tuple[str, bytes]]:
        root = Path(self.path)
        if not root.is_dir():
            raise CatalogUnavailable(f"{root}: is not a directory")
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            is_hidden = any(part.startswith(".") for part in name.parts)
            if path.suffix in SUFFIXES and path.is_file() and not is_hidden:
                with path.open("rb") as file:
                    yield str(name), file.read(BYTES_MAX + 1)
