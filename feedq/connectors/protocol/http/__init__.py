"""HTTP for feeds: requests on checked connections, endless answers, polls, server-sent events."""
