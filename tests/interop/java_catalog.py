"""The REST catalog server of Java Paimon's own tests, and Java Paimon as its client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interop_judges import PROJECT
from java_judge import JAVA_RELEASES, JavaGateway, JavaPaimon

import keytide as kt

__all__ = ["JavaCatalog", "JavaClient", "rest_archives", "serving"]

RELEASE = "java-1.4.2"
WAREHOUSE = "lake"
TOKEN = "s3cr3t"
_FOLDER = PROJECT / ".venv-java/rest"
_NEEDED = ("paimon-core", "mockwebserver", "okhttp", "okio", "kotlin-stdlib", "junit")


def rest_archives() -> list[Path]:
    """The archives of the server; the test is skipped where one is missing."""
    found = [JAVA_RELEASES[RELEASE], *sorted(_FOLDER.glob("*.jar"))]
    missing = [name for name in _NEEDED if not any(_FOLDER.glob(f"{name}*.jar"))]
    if missing or not found[0].exists():
        pytest.skip(f"no {', '.join(missing) or RELEASE} here; `make interop` fetches it")
    return found


@dataclass(frozen=True)
class JavaCatalog:
    """A running server with an empty warehouse."""

    gateway: JavaGateway
    address: str

    def connect(self) -> kt.Lake:
        """A lake of the catalog's tables."""
        return kt.connect(self.address, options=self._options)

    @property
    def client(self) -> JavaClient:
        """Java Paimon, which reads and writes through the same catalog."""
        jvm = self.gateway.jvm
        options = jvm.java.util.HashMap()
        for name, value in ({"metastore": "rest", "uri": self.address} | self._options).items():
            options.put(name, value)
        context = self.gateway.paimon.catalog.CatalogContext.create(
            self.gateway.paimon.options.Options(options)
        )
        catalog = self.gateway.paimon.catalog.CatalogFactory.createCatalog(context)
        return JavaClient(WAREHOUSE, self.gateway, "java-rest", catalog)

    @property
    def _options(self) -> dict[str, str]:
        return {"warehouse": WAREHOUSE, "token.provider": "bear", "token": TOKEN}


@dataclass(frozen=True)
class JavaClient(JavaPaimon):
    """Java Paimon with tables that a catalog opens."""

    catalog: Any

    def open(
        self, table: str, options: Mapping[str, str] | None = None, branch: str | None = None
    ) -> Any:
        """The table as Java has it."""
        database, _, name = table.partition(".")
        name, _, named = name.partition("$branch_")
        identifier = self.gateway.paimon.catalog.Identifier(database, name, branch or named or None)
        found = self.gateway.call(self.catalog, "getTable", identifier)
        if not options:
            return found
        given = self.gateway.jvm.java.util.HashMap()
        for key, value in options.items():
            given.put(key, value)
        return found.copy(given)


@contextmanager
def serving(gateway: JavaGateway, folder: Path) -> Iterator[JavaCatalog]:
    """A server at an address of this machine while the block runs."""
    rest = gateway.paimon.rest
    defaults = gateway.jvm.java.util.HashMap()
    defaults.put("prefix", "paimon")
    defaults.put("warehouse", WAREHOUSE)
    server = rest.RESTCatalogServer(
        str(folder),
        rest.auth.BearTokenAuthProvider(TOKEN),
        rest.responses.ConfigResponse(defaults, gateway.jvm.java.util.HashMap()),
        WAREHOUSE,
    )
    server.start()
    try:
        yield JavaCatalog(gateway, server.getUrl())
    finally:
        server.shutdown()
