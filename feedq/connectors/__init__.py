"""Connectors: one file a kind, found through the entry point group ``feedq.connectors``; `base` is what they are.

=============  ============================================================================================
kind           besides its own file
=============  ============================================================================================
`tcp`          `ping`
`websocket`    `websocket_connection`, `websocket_frames`, `websocket_refusal`, `pulse`, `ignoring`
`http`         `http_options`, `httpclient`, `http_transport`, `gunzip`; polls: `poller`, `polling`
`sse`          `eventstream`, and the client of `http`
`mqtt`         `mqtt_link`, `mqtt_socket`, `mqtt_pending`
`redis`        `streams`
`nats`         `nats_link`, `nats_transport`, `nats_consumer`, `nats_pulls`, `nats_reading`
`file`         `followed`
`exec`         `child`, `leash`
=============  ============================================================================================

Shared, from the wire to the record:

* to be connected: `remote` (options and URLs), `dialing` (names, addresses, sockets), `tls`, `connection`;
  `request_options` for what is asked over HTTP, `template` for texts that are filled in;
* bytes into records: `framing`, `framing_options`, `headerless`; `messages` and `inbox` for brokers;
* into a record and out of it: `pointer`, `csvtext`, `cursor`, `cursor_options`;
* `blocking` runs connectors that are plain generators.
"""
