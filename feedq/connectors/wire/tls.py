"""TLS contexts of client connections, shared between feeds that ask for the same.

A context with the system's certificates takes about 20 ms and half a megabyte to make, so thousands of
feeds must share one. Certificates are renewed under a running worker: a file that changed makes a new
context for the next connection. Reads files, so it belongs into a thread.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, fields
from functools import lru_cache

from feedq.errors import FeedMisconfigured

CONTEXTS_MAX = 64
"""Contexts kept; beyond it they are made anew, which only costs time."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What identifies a context. Paths are of PEM files on the worker; None means the system's or none."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises `FeedMisconfigured`, naming the option and the file."""
    return _make(files, tuple(_stamp(files, f.name) for f in fields(files) if f.name.endswith("_file")))


@lru_cache(maxsize=CONTEXTS_MAX)
def _make(files: TlsFiles, _stamps: tuple[object, ...]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except ssl.SSLError:
        raise FeedMisconfigured(f"source.ca_file: {files.ca_file} holds no PEM certificates") from None
    if not files.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if files.cert_file is not None:
        try:
            # Without a password an encrypted key would ask for one on the worker's terminal.
            context.load_cert_chain(files.cert_file, files.key_file, password="")
        except ssl.SSLError:
            raise FeedMisconfigured(
                f"source.cert_file: {files.cert_file} with key {files.key_file or 'in the same file'} is no "
                "PEM certificate with its unencrypted private key"
            ) from None
    return context


def _stamp(files: TlsFiles, option: str) -> tuple[int, int] | None:
    path = getattr(files, option)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
    except OSError as error:
        raise FeedMisconfigured(
            f"source.{option}: {path} cannot be read on this worker: {error.strerror}"
        ) from None
    return status.st_mtime_ns, status.st_size
