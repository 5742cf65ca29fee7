"""The HTTP API, ``/api/v1``: one endpoint in front of the verbs of `feedq.verbs.registry`.

An address is a verb, a document the dataclass that it answers with, and an error says the words of the command.
One handler (`feedq.api.handler`) reads the requests, in `feedq api` and inside Flower."""
