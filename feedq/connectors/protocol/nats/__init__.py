"""NATS JetStream for feeds: the link to the server, the consumer, pulls, and what was read."""
