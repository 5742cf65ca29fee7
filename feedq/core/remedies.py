"""What to do about a server that does not let feedq in, judged by what its driver says of it. Pure.

One table serves the control database, the broker and the sinks, be they PostgreSQL, MySQL, Valkey or RabbitMQ;
and all who report them: `feedq doctor`, the commands, the log of a worker that starts. It goes by words, because
drivers have no codes for what happens before there is a session. For a server that answers in another language
there is no remedy, rather than a wrong one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from feedq.errors import SinkUnavailable, Unavailable

IN_GENERAL: Final = "check that the server is up and reachable from this machine, and that {setting} names it"
"""For what the table does not know."""

_REMEDIES: Final[Sequence[tuple[str, str]]] = (
    # Who asks.
    (
        r"no password supplied|Authentication required|NOAUTH|using password: NO",
        "add the password to {setting}",
    ),
    (
        r"without any password configured",
        "remove the password from {setting}: the server has none",
    ),
    (
        r"password authentication failed|invalid username-password|invalid password|WRONGPASS"
        r"|ACCESS_REFUSED - Login|Access denied for user .* \(using password: YES\)",
        "correct the user name and the password in {setting}; special characters must be percent-encoded",
    ),
    (
        r'role "(?P<name>[^"]*)" does not exist',
        "correct the user name in {setting}, or have the role created: CREATE ROLE {name} LOGIN",
    ),
    (r'role "(?P<name>[^"]*)" is not permitted to log in', "let it log in: ALTER ROLE {name} LOGIN"),
    # What is asked for.
    (
        r'database "(?P<name>[^"]*)" does not exist|Unknown database \'(?P<mysql>[^\']*)\'',
        "correct the database's name in {setting}, or create it: CREATE DATABASE {name}",
    ),
    (
        r'permission denied for database "(?P<name>[^"]*)"',
        "let the user of {setting} connect: GRANT CONNECT ON DATABASE {name} TO that user",
    ),
    (
        r"Access denied for user .* to database",
        "give the user of {setting} access: GRANT … ON that database",
    ),
    (
        r"not currently accepting connections",
        "correct the database's name in {setting}, or let it accept connections",
    ),
    (
        r"DB index is out of range|invalid DB index",
        "write a smaller database number at the end of {setting}: the server's `databases` says how many it has",
    ),
    (
        r"NOT_ALLOWED - vhost .* not found|vhost .* not found",
        "correct the virtual host at the end of {setting} (// is the host /), or create it: rabbitmqctl add_vhost",
    ),
    (
        r"access to vhost .* refused",
        "give the user of {setting} access to the virtual host: rabbitmqctl set_permissions",
    ),
    (
        r"no permissions to (?:run|access)|NOPERM",
        "allow the user of {setting} all commands, keys and channels: ACL SETUSER NAME ~* &* +@all",
    ),
    # TLS.
    (
        r"does not support SSL, but SSL was required",
        "write sslmode=prefer in {setting}, or switch TLS on at the server (ssl = on)",
    ),
    (
        r"pg_hba\.conf (?:entry|rejects).*(?:no encryption|SSL off)",
        "write sslmode=require in {setting} if the server wants TLS; otherwise allow this machine and user in "
        "its pg_hba.conf",
    ),
    (
        r"pg_hba\.conf (?:entry|rejects)",
        "allow this machine, user and database in the server's pg_hba.conf",
    ),
    (
        r"certificate verify failed|root certificate file|certificate has expired|does not match host name"
        r"|CERTIFICATE_VERIFY_FAILED|[Hh]ostname mismatch",
        "check that the server's certificate is valid for the host in {setting}, and that this machine trusts "
        "its issuer (sslrootcert, ssl_ca_certs)",
    ),
    (
        r"WRONG_VERSION_NUMBER|wrong version number|record layer failure",
        "write the scheme without TLS in {setting}, or switch TLS on at the server",
    ),
    # Where it is.
    (
        r"could not translate host name|Name or service not known|name resolution|nodename nor servname"
        r"|No address associated with hostname|Unknown MySQL server host",
        "correct the host in {setting}, or make sure that its name resolves on this machine",
    ),
    (
        r"Connection refused|Error 111 |\[Errno 111\]",
        "start the server, or correct host and port in {setting}: nothing listens there",
    ),
    (
        r"accepting connections on that socket|unix socket.*No such file|Error 2 connecting to unix",
        "start the server, or correct the path of its socket in {setting}",
    ),
    (
        r"timeout expired|timed out|Timeout (?:connecting|reading)|No route to host|Network is unreachable",
        "correct host and port in {setting}, or check what is in between: a firewall or a security group drops "
        "the packets, or the server hangs",
    ),
    (
        r"invalid response to SSL negotiation|unsupported frontend protocol|Connection closed by server"
        r"|expected protocol",
        "check that port and scheme in {setting} match the server, with TLS or without, and that it is not "
        "restarting",
    ),
    (
        r"unable to open database file",
        "correct the path in {setting}, or create its directory, writable for this user",
    ),
    # How it is.
    (
        r"too many connections for (?:role|database)|remaining connection slots|too many clients already"
        r"|Too many connections|max number of clients reached",
        "end sessions that nobody needs, or raise the server's limit of connections (max_connections, maxclients, "
        "CONNECTION LIMIT)",
    ),
    (
        r"database system is (?:starting up|shutting down|in recovery mode|not yet accepting)"
        r"|not accepting connections|LOADING",
        "wait: the server is starting, stopping or recovering; its log says how far it is",
    ),
    (
        r"protected mode",
        "give the server a password and write it in {setting}: without one it serves only its own machine",
    ),
    (
        r"in a read-only transaction|READONLY",
        "point {setting} at the primary server: this is a replica",
    ),
)


def command(*words: str) -> str:
    """A command as a person may paste it into a shell, whatever names are among its words."""
    return shlex.join(("feedq", *words))


def driver_text(error: BaseException) -> str:
    """What a driver said, on one line, whether or not an error of ours or of SQLAlchemy's passes it on."""
    cause = (error.__cause__ if isinstance(error, Unavailable | SinkUnavailable) else None) or error
    cause = getattr(cause, "orig", None) or cause
    return " ".join(str(cause).split()) or type(cause).__name__


def remedy(text: str, *, setting: str) -> str | None:
    """What to do about an error of this text; None when the table does not know it.

    ``setting`` is what holds the server's URL, as people have to write it.
    """
    for pattern, template in _REMEDIES:
        if found := re.search(pattern, text, re.DOTALL):
            groups = found.groupdict()
            name = groups.get("name") or groups.get("mysql") or ""
            return template.format(setting=setting, name=name)
    return None


def with_remedy(text: str, *, setting: str) -> str:
    """The text and, where there is one, its remedy."""
    return "; ".join(filter(None, (text, remedy(text, setting=setting))))
