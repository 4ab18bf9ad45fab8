"""The page about catalogs shows what happens: with a REST catalog, with Glue and with Hive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hive_stand_in import Hive, hive_serving

import aws
import keytide as kt
from pages import PAGES, Changed, run_page

sys.path.append(str(Path(__file__).parents[1] / "rest"))
import catalog_server

CREATE = "CREATE TABLE shop.orders (id INT, PRIMARY KEY (id) NOT ENFORCED)"


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.metastore)])
def hive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of a Hive Metastore, and a warehouse that it can make databases in."""
    if request.param == "real":  # it has no file system for S3
        yield request.getfixturevalue("real_metastore"), str(tmp_path / "lake")
    else:
        with hive_serving(Hive()) as address:
            yield address, "s3://lake"


def test_page_does_what_it_says(
    hive: tuple[str, str], glue_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in aws.environment(glue_endpoint).items():
        monkeypatch.setenv(name, value)
    aws.client_of("s3", glue_endpoint).create_bucket(Bucket="lake")
    address, warehouse = hive
    kt.connect(address, options={"warehouse": warehouse}).sql(CREATE)
    with catalog_server.serving(tmp_path) as service:
        catalog_server.connected(service).sql(CREATE)
        texts = {
            "http://catalog:8080": service.address,
            '"thrift://metastore:9083", options={"warehouse": "s3://lake"}':
            f'"{address}", options={{"warehouse": "{warehouse}"}}',
            '"token": "..."': f'"token": "{catalog_server.TOKEN}"',
            "KEYTIDE_REST_TOKEN=...": f"KEYTIDE_REST_TOKEN={catalog_server.TOKEN}",
        }  # fmt: skip
        assert all(text in (PAGES / "catalogs.md").read_text() for text in texts)
        run_page(PAGES / "catalogs.md", {"kt": kt}, lambda: capsys.readouterr().out,
                 changed=Changed(tmp_path, texts))  # fmt: skip
    kt.connect(address, options={"warehouse": warehouse}).drop_database("shop", cascade=True)
    aws.forget_everything(glue_endpoint)
