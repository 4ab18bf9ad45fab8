"""Measures upserts, lookups and reads of a table in an object store with high latency.

An S3 server on this machine is behind a proxy that delays responses by `--latency` milliseconds.
Each engine loads `--rows` rows, makes ten upserts of `--upsert-rows` rows, looks up single keys and
reads everything, in a process that continues to run. Then each of the reads is repeated in a new
process. The rows that are read are compared with those written.

    python benchmarks/far.py
    python benchmarks/far.py --rows 200000 --engines keytide deltalake --server versitygw

The server is moto's, which is part of the development tools and processes one request at a time, or
the one that `--server` names: the program versitygw, which processes many.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from late_proxy import HOST
from measure import import_lazily_loaded, installed_version
from report import SUBJECT, print_table
from workload import SCHEMA, Workload, digest, open_workload, prepare

BUCKET, USER, SECRET, REGION = "bench", "keytide-bench", "keytide-secret", "us-east-1"
UPSERT_RATIO_MAX = 1 / 3
LOOKS = 5

Figures = dict[str, Any]


class FarEngine(ABC):
    """A table of one engine in the bucket. Each call uses the latest version."""

    distribution: str

    def __init__(self, endpoint: str, directory: Path) -> None:
        self.endpoint = endpoint
        self.directory = directory

    @abstractmethod
    def load(self, rows: pa.Table) -> None:
        """Create the table with its first rows."""

    @abstractmethod
    def open(self) -> None:
        """Open the table."""

    @abstractmethod
    def upsert(self, rows: pa.Table) -> None:
        """Insert rows or replace those with the same `id`, in one commit."""

    @abstractmethod
    def get(self, key: int) -> pa.Table:
        """The row of a key."""

    @abstractmethod
    def read(self) -> pa.Table:
        """All rows."""


class Keytide(FarEngine):
    distribution = "keytide"

    def _lake(self) -> Any:
        import keytide

        options = {"endpoint": self.endpoint, "region": REGION, "access_key_id": USER,
                   "secret_access_key": SECRET, "allow_http": "true"}  # fmt: skip
        return keytide.connect(f"s3://{BUCKET}/keytide", options=options)

    def load(self, rows: pa.Table) -> None:
        options = {"bucket": "1"}
        self.table = self._lake().create_table("bench.t", SCHEMA, ["id"], options=options)
        self.table.write(rows)

    def open(self) -> None:
        self.table = self._lake().table("bench.t")

    def upsert(self, rows: pa.Table) -> None:
        self.table.write(rows)

    def get(self, key: int) -> pa.Table:
        return pa.Table.from_pylist([self.table.get(key)], schema=SCHEMA)

    def read(self) -> pa.Table:
        return self.table.scan().to_arrow()


class Deltalake(FarEngine):
    distribution = "deltalake"

    @property
    def _options(self) -> dict[str, str]:
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": REGION, "AWS_ACCESS_KEY_ID": USER,
                "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ALLOW_HTTP": "true",
                "AWS_CONDITIONAL_PUT": "etag"}  # fmt: skip

    def load(self, rows: pa.Table) -> None:
        import deltalake

        uri = f"s3://{BUCKET}/deltalake"
        deltalake.write_deltalake(uri, rows, storage_options=self._options)
        self.open()

    def open(self) -> None:
        import deltalake

        self.builder = deltalake.QueryBuilder
        self.table = deltalake.DeltaTable(f"s3://{BUCKET}/deltalake", storage_options=self._options)

    def upsert(self, rows: pa.Table) -> None:
        self.table.update_incremental()
        merge = self.table.merge(
            rows, "target.id = source.id", source_alias="source", target_alias="target"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def get(self, key: int) -> pa.Table:
        return self._query(f"SELECT * FROM t WHERE id = {key}")

    def read(self) -> pa.Table:
        return self._query("SELECT * FROM t")

    def _query(self, text: str) -> pa.Table:
        self.table.update_incremental()
        query = self.builder()
        query.register("t", self.table)
        return pa.table(query.execute(text).read_all())


class Pylance(FarEngine):
    distribution = "pylance"

    @property
    def _options(self) -> dict[str, str]:
        return {"aws_endpoint": self.endpoint, "aws_region": REGION, "aws_access_key_id": USER,
                "aws_secret_access_key": SECRET, "allow_http": "true"}  # fmt: skip

    def load(self, rows: pa.Table) -> None:
        import lance

        lance.write_dataset(rows, f"s3://{BUCKET}/t.lance", storage_options=self._options)
        self.open()

    def open(self) -> None:
        import lance

        self.table = lance.dataset(f"s3://{BUCKET}/t.lance", storage_options=self._options)

    def upsert(self, rows: pa.Table) -> None:
        self.table.checkout_latest()
        merge = self.table.merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def get(self, key: int) -> pa.Table:
        self.table.checkout_latest()
        return self.table.to_table(filter=f"id = {key}")

    def read(self) -> pa.Table:
        self.table.checkout_latest()
        return self.table.to_table()


class Pyiceberg(FarEngine):
    """Its catalog is a SQLite file on local disk, which has no latency."""

    distribution = "pyiceberg"

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("bench", **{
            "uri": f"sqlite:///{self.directory}/catalog.db",
            "warehouse": f"s3://{BUCKET}/pyiceberg", "s3.endpoint": self.endpoint,
            "s3.region": REGION, "s3.access-key-id": USER, "s3.secret-access-key": SECRET,
        })  # fmt: skip

    def load(self, rows: pa.Table) -> None:
        catalog = self._catalog()
        catalog.create_namespace("bench")
        self.table = catalog.create_table("bench.t", SCHEMA)
        self.table.append(rows)

    def open(self) -> None:
        self.table = self._catalog().load_table("bench.t")

    def upsert(self, rows: pa.Table) -> None:
        self.table.refresh()
        self.table.upsert(rows, join_cols=["id"])

    def get(self, key: int) -> pa.Table:
        self.table.refresh()
        return self.table.scan(row_filter=f"id = {key}").to_arrow()

    def read(self) -> pa.Table:
        self.table.refresh()
        return self.table.scan().to_arrow()


ENGINES = {engine.distribution: engine for engine in (Keytide, Deltalake, Pylance, Pyiceberg)}


# -- the server ------------------------------------------------------------------------------------


@contextmanager
def far_server(program: str | None, folder: Path, latency_ms: float) -> Iterator[str]:
    """The address of an S3 server with high latency and an empty bucket."""
    port = free_port()
    command, environment = server_command(program, folder, port)
    with running(command, environment) as _:
        make_bucket(f"http://{HOST}:{port}")
        proxy = [sys.executable, str(Path(__file__).with_name("late_proxy.py")), str(port),
                 str(latency_ms)]  # fmt: skip
        with running(proxy, {}) as process:
            assert process.stdout is not None
            yield f"http://{HOST}:{int(process.stdout.readline())}"


def server_command(
    program: str | None, folder: Path, port: int
) -> tuple[list[str], dict[str, str]]:
    if program is None:
        return [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)], {}
    found = shutil.which(program)
    if found is None:
        raise SystemExit(f"--server: there is no program {program}")
    for name in ("objects", "attributes"):
        (folder / name).mkdir()
    secrets = {"ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": SECRET}
    return [found, "--port", f"{HOST}:{port}", "--quiet", "posix", "--sidecar",
            str(folder / "attributes"), str(folder / "objects")], secrets  # fmt: skip


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def make_bucket(address: str) -> None:
    import boto3
    from botocore.config import Config

    tries = Config(retries={"mode": "standard", "max_attempts": 20})  # until the server listens
    client = boto3.client("s3", endpoint_url=address, region_name=REGION, aws_access_key_id=USER,
                          aws_secret_access_key=SECRET, config=tries)  # fmt: skip
    client.create_bucket(Bucket=BUCKET)


# -- one engine, in a separate process -------------------------------------------------------------


def part_of(name: str, what: str, endpoint: str, directory: Path) -> Figures:
    """The results of a process that continues to run (`warm`), or of a new one (`get`, `read`)."""
    workload = open_workload(directory / "workload")
    try:
        engine = ENGINES[name](endpoint, directory / name)
        import_lazily_loaded()
        parts = {"warm": warm, "get": cold_get, "read": cold_read}
        return {**parts[what](engine, workload), "version": installed_version(name)}
    except ModuleNotFoundError as error:
        return {"trouble": f"missing: {error}"}


def warm(engine: FarEngine, workload: Workload) -> Figures:
    engine.directory.mkdir()
    engine.load(workload.load_rows())
    upserts = [seconds(partial(engine.upsert, rows))[0] for rows in list(workload.upserts())]
    keys = known_keys(workload)
    gets = [look_up(engine, key) for key in keys]
    reads = [seconds(engine.read) for _ in range(3)]
    check(reads[-1][1], workload)
    return {"upserts": upserts, "get": median(gets[1:]), "read": min(took for took, _ in reads)}


def cold_get(engine: FarEngine, workload: Workload) -> Figures:
    key = known_keys(workload)[0]
    return {"cold get": seconds(lambda: (engine.open(), look_up(engine, key)))[0]}


def cold_read(engine: FarEngine, workload: Workload) -> Figures:
    took, (_, rows) = seconds(lambda: (engine.open(), engine.read()))
    check(rows, workload)
    return {"cold read": took}


def known_keys(workload: Workload) -> list[int]:
    return workload.load_rows()["id"][: LOOKS + 1].to_pylist()


def look_up(engine: FarEngine, key: int) -> float:
    took, found = seconds(lambda: engine.get(key))
    if found["id"].to_pylist() != [key]:
        raise ValueError(f"wrong row of key {key}: {found.to_pylist()}")
    return took


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    given = call()
    return time.perf_counter() - start, given


def check(rows: pa.Table, workload: Workload) -> None:
    if (found := digest(rows)) != workload.expected:
        raise ValueError(f"wrong rows: {found}, expected {workload.expected}")


# -- all engines -----------------------------------------------------------------------------------


def measured(name: str, endpoint: str, directory: Path, python: str) -> Figures:
    found: Figures = {}
    for what in ("warm", "get", "read"):
        done = subprocess.run(
            [python, __file__, "--part", name, "--what", what, "--endpoint", endpoint,
             "--directory", str(directory)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
        if done.returncode:
            return {"trouble": f"failed: {lines[-1] if lines else done.returncode}"}
        found |= json.loads(lines[-1])
    return found


def report(found: dict[str, Figures]) -> None:
    """Print the table and the goals, as Markdown."""
    headings = ("engine", "upsert median / worst / sum s", "lookup s", "read s",
                "first lookup s", "first read s")  # fmt: skip
    print()
    print_table(headings, [cells(name, figures) for name, figures in found.items()])
    print()
    mine = found.get(SUBJECT)
    for peer, figures in found.items():
        if mine is None or peer == SUBJECT:
            continue
        told = [
            verdict("upsert", median(mine["upserts"]), median(figures["upserts"]), UPSERT_RATIO_MAX)
        ] + [verdict(what, mine[what], figures[what], 1.0) for what in ("get", "read")]
        print(f"to {peer}: {', '.join(told)}")


def verdict(what: str, mine: float, peer: float, ratio_max: float) -> str:
    ratio = mine / peer
    return f"{what} {ratio:.2f} ({'pass' if ratio <= ratio_max else 'FAIL'}: {ratio_max:.2f})"


def cells(name: str, figures: Figures) -> list[str]:
    upserts = figures["upserts"]
    times = [f"{figures[what]:.2f}" for what in ("get", "read", "cold get", "cold read")]
    first = f"{median(upserts):.2f} / {max(upserts):.2f} / {sum(upserts):.1f}"
    return [f"{name} {figures['version']}".rstrip(), first, *times]


def main() -> None:
    arguments = parse_arguments()
    if arguments.part:
        given = (arguments.part, arguments.what, arguments.endpoint, arguments.directory)
        print(json.dumps(part_of(*given)))
        return
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    found = {}
    with tempfile.TemporaryDirectory(prefix="far-", dir=arguments.directory) as scratch:
        directory = Path(scratch)
        prepare(directory / "workload", arguments.rows, upsert_rows=arguments.upsert_rows)
        for name in arguments.engines:
            print(f"measuring {name} ...", flush=True)
            folder = directory / f"store-{name}"
            folder.mkdir()
            with far_server(arguments.server, folder, arguments.latency) as endpoint:
                figures = measured(name, endpoint, directory, arguments.python)
            shutil.rmtree(folder)
            if "trouble" in figures:
                print(f"  {figures['trouble']}")
            else:
                found[name] = figures
    report(found)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--upsert-rows", type=int, default=1_000)
    parser.add_argument("--latency", type=float, default=30, metavar="MS")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--server", metavar="PROGRAM", help="versitygw, as a name or path")
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter in which the peers are installed"
    )
    parser.add_argument("--directory", type=Path, help="where the store and the rows are stored")
    for internal in ("--part", "--what", "--endpoint"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
