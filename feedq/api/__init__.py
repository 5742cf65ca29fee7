"""The HTTP API, ``/api/v1``: one ASGI application over the control database.

The documents are those of the commands' ``--json`` (`feedq.verbs.report.rows`), the verbs those of the command
line (`feedq.verbs.actions`, `feedq.control.store`), and an error says the same words. `feedq.api.app` makes the
application; who runs it, `feedq api` say, gives it a store and settings."""
