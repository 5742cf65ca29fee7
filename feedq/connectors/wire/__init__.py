"""To be connected: options and URLs, names and addresses, TLS, sockets; texts that are filled in."""
