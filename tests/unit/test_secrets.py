"""Secrets: resolved on the worker, named in errors, never shown."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.permission import Permissions
from feedq.errors import FeedMisconfigured
from feedq.secrets import MASK, SECRET_BYTES_MAX, Masker, parse_reference, resolve_secrets

SECRET = "hunter2-very-secret"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return tmp_path / "secret"


def test_a_variable_of_the_worker_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_TOKEN", SECRET)
    assert resolve_secrets({"token": "${env:ACME_TOKEN}"}) == {"token": SECRET}


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"abc", "abc"),
        (b"abc\n", "abc"),
        (b"abc\r\n", "abc"),
        (b"abc\n\n", "abc\n"),
        (b" abc ", " abc "),
        (b"a\nb\n", "a\nb"),
        (b"abc\r", "abc\r"),
        ("ä".encode(), "ä"),
    ],
)
def test_a_file_is_read_without_its_last_newline(secret_file: Path, content: bytes, value: str) -> None:
    secret_file.write_bytes(content)
    assert resolve_secrets({"token": f"${{file:{secret_file}}}"}) == {"token": value}


def refusal(reference: str) -> str:
    with pytest.raises(FeedMisconfigured) as caught:
        resolve_secrets({"token": reference})
    assert caught.value.__cause__ is None
    assert "'token'" in str(caught.value)
    return str(caught.value)


def test_a_secret_of_another_tenant_is_refused_whether_it_is_there_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    permitted = Permissions(secrets=(("acme", ("env:ACME_*",)),))
    monkeypatch.setenv("ACME_TOKEN", SECRET)
    monkeypatch.setenv("OTHER_TOKEN", SECRET)
    own = {"token": "${env:ACME_TOKEN}"}
    assert resolve_secrets(own, tenant="acme", permissions=permitted) == {"token": SECRET}
    for tenant, reference in (("other", "ACME_TOKEN"), ("", "ACME_TOKEN"), ("acme", "OTHER_TOKEN")):
        with pytest.raises(FeedMisconfigured, match=r"may not use .*FEEDQ_SECRETS_ALLOW") as caught:
            resolve_secrets({"token": f"${{env:{reference}}}"}, tenant=tenant, permissions=permitted)
        monkeypatch.delenv(reference, raising=False)
        with pytest.raises(FeedMisconfigured, match=re.escape(str(caught.value))):
            resolve_secrets({"token": f"${{env:{reference}}}"}, tenant=tenant, permissions=permitted)
        monkeypatch.setenv(reference, SECRET)


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACME_TOKEN", raising=False)
    assert "${env:ACME_TOKEN} is not set" in refusal("${env:ACME_TOKEN}")


def test_a_file_may_be_as_large_as_the_limit_and_no_larger(secret_file: Path) -> None:
    secret_file.write_bytes(b"x" * SECRET_BYTES_MAX)
    assert len(resolve_secrets({"token": f"${{file:{secret_file}}}"})["token"]) == SECRET_BYTES_MAX
    secret_file.write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    assert "larger than" in refusal(f"${{file:{secret_file}}}")


def test_a_file_that_is_not_text_is_refused_without_its_bytes(secret_file: Path) -> None:
    secret_file.write_bytes(b"hunter2\xff")
    message = refusal(f"${{file:{secret_file}}}")
    assert "not UTF-8" in message
    assert "hunter2" not in message


def test_a_pipe_does_not_hold_the_worker(secret_file: Path) -> None:
    os.mkfifo(secret_file)
    assert "not a regular file" in refusal(f"${{file:{secret_file}}}")


def test_a_directory_and_a_device_are_refused(tmp_path: Path) -> None:
    assert "directory" in refusal(f"${{file:{tmp_path}}}").lower()
    assert "not a regular file" in refusal("${file:/dev/zero}")


@pytest.mark.parametrize(
    "text",
    [SECRET, "", "${env:}", "${env:1A}", "$ACME", "${file:relative}", "${file:}", "x${env:A}", "${env:A}\n"],
)
def test_what_is_no_reference_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="is not a reference") as caught:
        parse_reference(text)
    assert SECRET not in str(caught.value)
    assert SECRET not in refusal(text)


def test_of_two_secrets_that_begin_alike_the_longer_leaves_no_end_behind() -> None:
    assert Masker(["abc", "abcdef"]).mask("abcdef abc") == f"{MASK} {MASK}"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_a_secret_is_masked_however_it_was_quoted(secret: str) -> None:
    masker = Masker([secret])
    for text in (
        f"<{secret}>",
        f"<{secret!r}>",
        f"<{secret.encode()!r}>",
        f"<{msgspec.json.encode(secret).decode()}>",
        f"<{quote(secret, safe='')}>",
        f"<{quote_plus(secret)}>",
    ):
        masked = masker.mask(text)
        assert MASK in masked
        if len(secret) > 3:  # shorter ones may be part of the mask and of the quotes themselves
            assert secret not in masked


@pytest.mark.parametrize(
    "secret",
    [
        'it\'s "so" secret',
        "it's so secret",
        "p\u00e4ss w\u00f6rd / 100% + more",
        "tab\tplus\\backslash",
        "\U0001f511 key",
    ],
)
@pytest.mark.parametrize(
    "quoted",
    [
        lambda secret: repr(f"he said \"no\" and 'yes' to {secret}"),
        lambda secret: repr(f"he said \"no\" and 'yes' to {secret}".encode()),
        lambda secret: json.dumps({"password": secret}),
        lambda secret: repr(ValueError(json.dumps({"password": secret, "user": "it's me"}))),
        lambda secret: repr(msgspec.json.encode({"password": secret, "user": "it's me"})),
        lambda secret: f"GET /?token={quote(secret, safe='')} HTTP/1.1",
        lambda secret: f"GET /?token={quote(secret, safe='').lower()} HTTP/1.1",
        lambda secret: f"GET /?token={quote_plus(secret)} HTTP/1.1",
        lambda secret: " ".join(f"\n you said:\n {secret}".split()),
    ],
)
def test_a_secret_within_something_that_is_quoted_is_masked(
    secret: str, quoted: Callable[[str], str]
) -> None:
    masked = Masker([secret, secret.lower()]).mask(quoted(secret))
    assert MASK in masked
    assert not [word for word in re.findall(r"\w{3,}", secret) if word.lower() in masked.lower()]


def test_each_line_of_a_secret_is_masked_but_not_what_any_text_may_hold() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n{\n}\n-----END KEY-----\n"
    masker = Masker([key])
    assert masker.mask("invalid key: kqhkiG9w0BAQEF {}") == f"invalid key: {MASK} {{}}"
    assert masker.mask(" ".join(f"cannot read {key}".split())) == f"cannot read {MASK}"


def test_a_masker_does_not_show_its_secrets() -> None:
    assert SECRET not in repr(Masker([SECRET]))
