"""One process in real time: its threads, loops, sockets and children, without a server."""
