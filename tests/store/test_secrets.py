"""Credentials, wherever they are given, are in no text that people see."""

from __future__ import annotations

import os
import pickle
from unittest import mock
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import keytide as kt
from keytide.errors import KeytideError
from keytide.store import open_store
from keytide.store.object_store import ObjectStore

SECRETS = st.text(st.sampled_from("ABCxyz0189/+=%:@ ?#&.-_"), min_size=8, max_size=24).filter(
    lambda text: len(text.strip()) >= 8
)
OPTIONS = ["access_key_id", "secret_access_key", "aws_session_token", "sas_key", "account_key"]


def traceback_text(error: BaseException | None) -> str:
    """All that a traceback would show of an error and its causes."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


def assert_hidden(secret: str, text: str) -> None:
    for shown in (secret, quote(secret), quote(secret, safe="")):
        assert shown not in text


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "az", "azure", "abfss", "file", "https"])
@pytest.mark.parametrize(
    "place", ["{0}://KEY:{1}@bucket/x", "{0}://KEY:{1}/t", "{0}://bucket/x?sig={1}"]
)
@given(secret=SECRETS)
@example(secret="00000%00")  # a NUL character, for which paths are refused
def test_secret_in_an_address_is_refused_without_being_told(
    scheme: str, place: str, secret: str
) -> None:
    if scheme == "file" and "?" in place:
        return  # a local path, in which everything is a name
    with pytest.raises(KeytideError) as caught:
        kt.connect(place.format(scheme, secret))
    assert_hidden(secret, traceback_text(caught.value))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("where", ["option", "environment"])
@given(secret=SECRETS)
def test_secret_in_an_answer_of_the_service_is_masked(option: str, where: str, secret: str) -> None:
    options = ((option, secret),) if where == "option" else ()
    inherited = {f"AWS_{option.upper()}": secret} if where == "environment" else {}
    store = ObjectStore("s3://bucket", "x", options)
    answer = OSError(f"denied for {secret} at https://host/?k={quote(secret, safe='')}")
    with (
        mock.patch.dict(os.environ, inherited),
        pytest.raises(KeytideError) as caught,
        store._errors("read", "a"),
    ):
        raise answer
    assert_hidden(secret, traceback_text(caught.value))
    for text in (repr(store), str(store), store.uri, repr(kt.connect("", store=store))):
        assert_hidden(secret, text)
    assert pickle.loads(pickle.dumps(store)) == store


@pytest.mark.parametrize("value", ["a", "the", "s3"])
def test_short_value_does_not_garble_messages(value: str) -> None:
    store = ObjectStore("s3://bucket", "x", (("access_key_id", value),))
    refused = pytest.raises(kt.DataError, match=r"read s3://bucket/x/a: that was denied\. ")
    with refused, store._errors("read", "a"):
        raise OSError("that was denied")


@pytest.mark.parametrize("name", ["AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"])
def test_odd_value_in_the_environment_is_told_as_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "odd value")
    with pytest.raises(KeytideError, match="s3://odd-environment"):
        open_store(f"s3://odd-environment-{name.lower()}/x")
