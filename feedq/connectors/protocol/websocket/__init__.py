"""WebSockets for feeds: the connection, its frames in bulk, refusals, signs of life."""
