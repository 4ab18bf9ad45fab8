"""Credentials of tables in an object store that a catalog lends."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from catalog_server import Service, connected

import keytide as kt
from keytide.store import Store

HOUR_MS = 3_600_000


class Bucket:
    """An object store without objects, which notes whose requests come."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.address = ""


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    found = Bucket()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            signed = self.headers.get("Authorization") or ""
            found.keys.append(signed.partition("Credential=")[2].partition("/")[0])
            self.send_response(404)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.address = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def lends(service: Service, bucket: Bucket, lasts_ms: int, **told: str) -> None:
    """Have the service keep its tables in a bucket, and lend a new key with each request."""
    service.settings["data-token.enabled"] = "true"
    service.place = "s3://sales/t"

    def token() -> dict[str, Any]:
        number = sum(asked.endswith("/token") for asked in service.asked)
        keys = {"fs.s3.accessKeyId": f"AK{number}", "fs.s3.accessKeySecret": "s3cr3t"}
        place = {"fs.s3.endpoint": bucket.address, "fs.s3.region": "eu-central-1"}
        ends = int(time.time() * 1000) + lasts_ms
        return {"token": told or keys | place, "expiresAtMillis": ends}

    service.token = token


def store_of(lake: kt.Lake) -> Store:
    return lake.catalog.warehouse.metadata("shop", "t").store


def asked_for_tokens(service: Service) -> int:
    return sum(asked.endswith("/token") for asked in service.asked)


def test_credentials_are_lent_once_while_they_last(
    service: Service, table: kt.Table, bucket: Bucket
) -> None:
    lends(service, bucket, HOUR_MS)
    lake = connected(service)
    for _ in range(2):
        store = store_of(lake)
        assert not store.exists("a")
        assert not pickle.loads(pickle.dumps(store)).sub("schema").exists("b")
    assert (bucket.keys, asked_for_tokens(service)) == (["AK1"] * 4, 1)
    assert "s3cr3t" not in f"{store!r}"


def test_credentials_are_lent_anew_before_they_end(
    service: Service, table: kt.Table, bucket: Bucket
) -> None:
    lends(service, bucket, 60_000)
    store = store_of(connected(service))
    assert not store.exists("a")
    time.sleep(0.2)  # obstore asks no more often than this
    assert not store.exists("b")
    first, second = bucket.keys
    assert int(second[2:]) > int(first[2:])


def test_catalog_that_lends_nothing_is_told(
    service: Service, table: kt.Table, bucket: Bucket
) -> None:
    lends(service, bucket, HOUR_MS)
    service.token = dict
    with pytest.raises(kt.DataError, match="issues no credentials"):
        connected(service).table("shop.t")


def test_credentials_of_other_stores_are_refused_by_their_names(
    service: Service, table: kt.Table, bucket: Bucket
) -> None:
    lends(service, bucket, HOUR_MS, **{"fs.oss.accessKeyId": "AK1", "fs.oss.securityToken": "x"})
    with pytest.raises(kt.UnsupportedError, match=r"fs\.oss\.accessKeyId.*only S3"):
        connected(service).table("shop.t")


def test_what_the_service_insists_on_goes_before_the_users_word(
    service: Service, table: kt.Table, bucket: Bucket
) -> None:
    lends(service, bucket, HOUR_MS)
    own = {"data-token.enabled": "false", "endpoint": bucket.address, "region": "eu-central-1"}
    keys = {"access_key_id": "MINE", "secret_access_key": "of mine"}
    lake = connected(service, **own, **keys)
    assert not store_of(lake).exists("a")
    service.insists = True
    assert not store_of(connected(service, **own, **keys)).exists("a")
    assert bucket.keys == ["MINE", "AK1"]
