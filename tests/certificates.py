"""An authority for tests, and certificates that it vouches for."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


class Authority:
    """Writes its own certificate, and those of clients and servers, into a directory."""

    def __init__(self, directory: Path) -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self.ca_file = str(directory / "ca.pem")
        self._ca.cert_pem.write_to_path(self.ca_file)

    def files(self, *names: str) -> dict[str, str]:
        """A certificate for some names: its ``cert_file`` and ``key_file``."""
        certificate = self._ca.issue_cert(*names)
        files = {what: str(self._directory / f"{names[0]}-{what}.pem") for what in ("cert_file", "key_file")}
        certificate.cert_chain_pems[0].write_to_path(files["cert_file"])
        certificate.private_key_pem.write_to_path(files["key_file"])
        return files

    def server(self, *names: str, client: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
        """What a server of these names serves with, and whether it asks for the certificate of a client."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ca.issue_cert(*names).configure_cert(context)
        if client:  # or the authority's own certificate would be sent along
            self._ca.configure_trust(context)
            context.verify_mode = client
        return context
