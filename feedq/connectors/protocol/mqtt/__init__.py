"""MQTT for feeds: the session with the broker, its socket, and what is not yet acknowledged."""
