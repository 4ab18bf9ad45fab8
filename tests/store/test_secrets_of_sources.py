"""External tables in a bucket that the environment opens: its keys are in nothing that is told."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

SECRET, KEY_ID = "g3heim/of+the=environment", "id-of-the-environment"
ROWS = pa.table({"k": [1, 1, 2], "w": [1, 2, 1]})
FORMATS = ["delta", "iceberg", "parquet", "keytide"]


@pytest.fixture
def environment(s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "AWS_ENDPOINT": s3_options["endpoint"],
        "AWS_ENDPOINT_URL": s3_options["endpoint"],
        "AWS_REGION": s3_options["region"],
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)


def written(format_: str, bucket: str, options: dict[str, str], scratch: Path) -> str:
    """A table of that format in a bucket, and where it is."""
    location = f"s3://{bucket}/{format_}"
    if format_ == "delta":
        told = {**options, "allow_http": "true"}
        deltalake.write_deltalake(location, ROWS, storage_options=told)
    elif format_ == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        files = {f"s3.{name.replace('_', '-')}": value for name, value in options.items()}
        catalog = SqlCatalog("c", uri=f"sqlite:///{scratch}/c.db", warehouse=location, **files)
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", ROWS.schema)
        table.append(ROWS)
        return str(table.location())
    elif format_ == "parquet":
        from keytide.store import open_store

        sink = pa.BufferOutputStream()
        pq.write_table(ROWS, sink)
        open_store(location, options).put("1.parquet", sink.getvalue().to_pybytes())
    else:
        table = kt.connect(location, options=options).create_table("t", ROWS.schema, [])
        table.write(ROWS)
        return table.uri
    return location


@pytest.fixture
def refusing() -> Iterator[None]:
    """A server that lets nobody in who is not known to it, and it knows nobody."""
    from moto import settings
    from moto.core.responses import ActionAuthenticatorMixin

    with (
        mock.patch.object(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0),
        mock.patch.object(ActionAuthenticatorMixin, "request_count", 0),
    ):
        yield


def everything_told(lake: kt.Lake, table: kt.ExternalTable, folder: Path) -> dict[str, str]:
    """All that people see of a table, and all that is stored of it and travels."""
    scan = table.scan(where="k > 0")
    stored = {str(p): repr(p.read_bytes()) for p in folder.rglob("*") if p.is_file()}
    statements = ("SHOW CREATE TABLE e", "EXPLAIN SELECT * FROM e", "DESCRIBE e",
                  "SHOW TBLPROPERTIES e")  # fmt: skip
    shown = {text: str(lake.sql(text).to_pylist()) for text in statements}
    objects = {"table": table, "scan": scan, "tasks": scan.tasks(), "why": table.why(1)}
    reprs = {f"{name} shown": repr(each) for name, each in objects.items()}
    pickles = {name: repr(pickle.dumps(each)) for name, each in objects.items() if name != "why"}
    return {**stored, **shown, **reprs, **pickles, "html": table._repr_html_()}


@pytest.mark.parametrize("format_", FORMATS)
def test_keys_of_the_environment_are_shown_and_stored_nowhere_and_do_not_travel(
    format_: str, environment: None, s3_bucket: str, s3_options: dict[str, str], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    location = written(format_, s3_bucket, s3_options, tmp_path)
    caplog.clear()
    lake = kt.connect(str(tmp_path / "lake"))
    table = lake.create_external_table(
        "e", format=format_, location=location, primary_key=["k"], watermark_key=["w"]
    )
    (task,) = pickle.loads(pickle.dumps(table.scan().tasks()))
    assert sum(frame.height for frame in task.frames(1 << 20)) == 2
    told = everything_told(lake, table, tmp_path / "lake")
    told["log"] = "\n".join(record.getMessage() for record in caplog.records)
    assert [name for name, text in told.items() if SECRET in text or KEY_ID in text] == []


@pytest.mark.parametrize("format_", FORMATS)
def test_keys_that_are_refused_are_an_error_that_names_the_place_and_no_key(
    format_: str, environment: None, s3_bucket: str, s3_options: dict[str, str], tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    location = written(format_, s3_bucket, s3_options, tmp_path)
    lake = kt.connect(str(tmp_path / "lake"))
    request.getfixturevalue("refusing")
    with pytest.raises(kt.KeytideError) as raised:
        lake.create_external_table(
            "e", format=format_, location=location, primary_key=["k"], watermark_key=["w"]
        )
    text = str(raised.value)
    assert s3_bucket in text
    assert "Check" in text
    assert "credentials" in text
    assert SECRET not in text
    assert KEY_ID not in text
    assert not isinstance(raised.value, kt.NotFoundError)
    assert not lake.exists
