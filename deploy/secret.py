"""Prints what feedq's processes have to keep secret, with new passwords: the URLs of database and broker by role.

::

    python deploy/secret.py --database db.example.com:5432/feedq?sslmode=require --admin postgres:its-password \\
        --broker rediss://:token@broker.example.com:6379/0?ssl_cert_reqs=required > secret.json

JSON is for Secrets Manager (deploy/ecs), ``--env`` prints lines for ``kubectl create secret``. Run it once: the
passwords are new each time, and the roles task gives them to PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import secrets

ROLES = ("migration", "worker", "beat", "flower", "operator", "sink_default")


def secret(*, database: str, admin: str, broker: str, prefix: str = "feedq_") -> dict[str, str]:
    """The keys that the templates name, with their values. ``admin`` is ``user:password``, for the roles task."""
    passwords = {role: secrets.token_hex(16) for role in ROLES}
    urls = {role: f"postgresql://{prefix}{role}:{passwords[role]}@{database}" for role in ROLES}
    return {
        "BROKER_URL": broker,
        "SINK_URL": urls.pop("sink_default"),
        "ADMIN_DATABASE_URL": f"postgresql://{admin}@{database}",
        **{f"{role.upper()}_DATABASE_URL": url for role, url in urls.items()},
        **{f"FEEDQ_ROLE_PASSWORDS__{role.upper()}": password for role, password in passwords.items()},
        "FLOWER_BASIC_AUTH": f"feedq:{secrets.token_hex(16)}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", required=True, help="host, port, database and options, as in a URL")
    parser.add_argument("--admin", required=True, help="user:password of a role that may create roles")
    parser.add_argument("--broker", required=True, help="URL of the broker")
    parser.add_argument("--env", action="store_true", help="lines of NAME=value instead of JSON")
    given = parser.parse_args()
    made = secret(database=given.database, admin=given.admin, broker=given.broker)
    if given.env:
        print("\n".join(f"{name}={value}" for name, value in made.items()))
    else:
        print(json.dumps(made, indent=2))


if __name__ == "__main__":
    main()
