"""Tables with features of Paimon 2.0: how they are made, and who has to know the feature."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from keytide.options.features import Needs

__all__ = ["FEATURE_TABLES", "OUTSIDE", "FeatureTable", "as_json"]

OUTSIDE = "/outside".ljust(160, "-")
"""Stands for a folder outside the tables. Uncompressed manifests have it as long as it is."""


@dataclass(frozen=True)
class FeatureTable:
    """A table with a feature: values of its column `x`, written batch by batch.

    `needs` says who has to know the feature, and `named` what a refusal names.
    """

    column: str = "INT"
    batches: tuple[tuple[Any, ...], ...] = ((1, 2, None), (3,))
    options: Mapping[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ("k",)
    partition_by: tuple[str, ...] = ()
    needs: Needs = Needs.NOTICE
    named: str = ""
    branch_option: str = ""
    """The option that names a branch with other rows. Doors for rows read both branches."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the table: a key, a partition, a text, and the feature."""
        null = " NOT NULL" if self.key else ""
        return {"k": f"INT{null}", "p": f"STRING{null}", "v": "STRING", "x": self.column}


VECTORS = {"bucket": "1", "deletion-vectors.enabled": "true"}
PARTS: dict[str, Any] = {"key": ("p", "k"), "partition_by": ("p",)}
OBJECTS = tuple(f'{{"a": {n}, "b": "x"}}' for n in range(3))

VARIANTS = (
    '{"b": 1, "a": "x", "c": [1, {"d": 2.50, "a": null}, "y"], "o": {"z": true, "y": [0.125]}}',
    '{"a": 7, "b": 300000, "c": {"k": 1}, "o": null}',
    '{"a": "", "b": 5000000000, "c": [], "o": {}, "e": {"b": {"a": [[1, 2], {}]}}}',
    '{"b": 12.75, "o": {"y": "text", "x": 1e300}}',
    "[1, 2.5, null]",
    '"' + "long " * 20 + '"',
    "17",
    "null",
    "true",
    "{}",
    '{"\u00e9": {"\U0001f600": 1, "\ufffd": 2}, "a": "b"}',
    None,
    '{"b": 99999999999999999999999999.5, "c": [[1], [2]]}',
)


def _of_fields(**types: Any) -> dict[str, Any]:
    """The type of a ROW, as Paimon writes it in JSON."""
    fields = [{"id": i, "name": n, "type": t} for i, (n, t) in enumerate(types.items())]
    return {"type": "ROW", "fields": fields}


SHREDDED_BY = json.dumps(
    _of_fields(
        x=_of_fields(
            b="DECIMAL(18, 2)", a="STRING", c={"type": "ARRAY", "element": "VARIANT"},
            o=_of_fields(y={"type": "ARRAY", "element": "DOUBLE"}, z="BOOLEAN"), e="VARIANT",
        )
    )
)  # fmt: skip

FEATURE_TABLES: dict[str, FeatureTable] = {
    "plain": FeatureTable(),
    "blob": FeatureTable(
        "BLOB", ((b"", b"\0\xff" * 300, None), (b"new", b"abc")),
        needs=Needs.CLEANERS, named="'x' is BLOB",
    ),
    "blob_in_partitions": FeatureTable(
        "BLOB", ((b"one", b"two"), (b"new",)), {"bucket": "2"}, **PARTS,
        needs=Needs.CLEANERS, named="'x' is BLOB",
    ),
    "blob_evolution": FeatureTable(
        "BLOB", ((b"one", b"two"),),
        {"bucket": "-1", "row-tracking.enabled": "true", "data-evolution.enabled": "true"}, (),
        needs=Needs.READERS, named="data-evolution.enabled",
    ),
    "blobs_in_array": FeatureTable(
        "ARRAY<BLOB>", (), needs=Needs.READERS, named="'x' is BLOB",
    ),
    "variant": FeatureTable(
        "VARIANT", (OBJECTS, (None,)), needs=Needs.WRITERS, named="'x' is VARIANT",
    ),
    "variant_shredded": FeatureTable(
        "VARIANT", (OBJECTS,), {"variant.inferShreddingSchema": "true"},
        needs=Needs.WRITERS, named="VARIANT",
    ),
    "variants_inferred": FeatureTable(
        "VARIANT", ((*VARIANTS[:4], None, "{}"), VARIANTS[3:6]),
        {"variant.inferShreddingSchema": "true", "variant.shredding.minFieldCardinalityRatio": "0"},
        needs=Needs.WRITERS, named="VARIANT",
    ),
    "variants_shredded_by_schema": FeatureTable(
        "VARIANT", (VARIANTS, VARIANTS[::-1]), {"variant.shreddingSchema": SHREDDED_BY}, **PARTS,
        needs=Needs.WRITERS, named="VARIANT",
    ),
    "variants_in_rows": FeatureTable(
        "ROW<n INT, f VARIANT>", (tuple((n, each) for n, each in enumerate(VARIANTS[:4])),),
        {"variant.inferShreddingSchema": "true", "variant.shredding.minFieldCardinalityRatio": "0"},
        needs=Needs.WRITERS, named="VARIANT",
    ),
    "vector": FeatureTable("VECTOR<FLOAT, 3>", (([1.0, 2.0, 3.0], None), ([0.5, 0.5, 9.0],))),
    "shared_map": FeatureTable(
        "MAP<STRING NOT NULL, INT>", (([("a", 1)], [("b", 2), ("c", 3)]),),
        {"fields.x.map.storage-layout": "shared-shredding"},
        needs=Needs.READERS, named="fields.x.map.storage-layout",
    ),
    "clustering": FeatureTable(
        "INT", ((9, 5, 7), (1,)),
        {**VECTORS, "pk-clustering-override": "true", "clustering.columns": "x"},
        needs=Needs.READERS, named="pk-clustering-override",
    ),
    "clustering_first_row": FeatureTable(
        "INT", ((9, 5, 7), (1,)),
        {"merge-engine": "first-row", "pk-clustering-override": "true", "clustering.columns": "x"},
        needs=Needs.READERS, named="pk-clustering-override",
    ),
    "chain": FeatureTable(
        "INT", (),
        {"chain-table.enabled": "true", "sequence.field": "x",
         "partition.timestamp-pattern": "$p", "partition.timestamp-formatter": "yyyyMMdd"},
        **PARTS, needs=Needs.READERS, named="chain-table.enabled",
    ),
    "fallback_branch": FeatureTable(
        "INT", ((1, 2),), **PARTS, branch_option="scan.fallback-branch",
        needs=Needs.READERS, named="scan.fallback-branch",
    ),
    "primary_branch": FeatureTable(
        "INT", ((1, 2),), **PARTS, branch_option="scan.primary-branch",
        needs=Needs.READERS, named="scan.primary-branch",
    ),
    "vectors_next_to_data": FeatureTable(
        "INT", ((1, 2), (3,)), {**VECTORS, "index-file-in-data-file-dir": "true"},
        needs=Needs.READERS, named="index-file-in-data-file-dir",
    ),
    "postponed": FeatureTable(
        "INT", ((1, 2),), {"bucket": "-2", "postpone.merge-on-read": "true"},
        needs=Needs.READERS, named="postpone.merge-on-read",
    ),
    "lookups_stored": FeatureTable(
        "INT", ((1, 2), (3,)),
        {"changelog-producer": "lookup", "lookup.remote-file.enabled": "true"},
        needs=Needs.CLEANERS, named="lookup.remote-file.enabled",
    ),
    "external_paths": FeatureTable(
        "INT", ((1, 2), (3,)),
        {"data-file.external-paths": f"file:{OUTSIDE}", "manifest.compression": "null",
         "data-file.external-paths.strategy": "round-robin"},
    ),
    "btree_index": FeatureTable("INT", ((1, 2), (3,)), {**VECTORS, "pk-btree.index.columns": "x"}),
    "row_tracking": FeatureTable(
        "INT", ((1, 2), (3,)), {"bucket": "-1", "row-tracking.enabled": "true"}, (),
        needs=Needs.WRITERS, named="row-tracking.enabled",
    ),
    "upsert_key": FeatureTable(
        "INT", ((1, 2),), {"bucket": "-1", "upsert-key": "k"}, (),
        needs=Needs.WRITERS, named="upsert-key",
    ),
    "query_auth": FeatureTable(
        "INT", ((1, 2),), {"query-auth.enabled": "true"},
        needs=Needs.READERS, named="query-auth.enabled",
    ),
}  # fmt: skip


def as_json(rows: pa.Table | None) -> list[Any] | None:
    """Rows, sorted by key, as JSON has them."""
    if rows is None:
        return None
    found = sorted(rows.to_pylist(), key=lambda row: (row["p"], row["k"], str(row["x"])))
    told: list[Any] = json.loads(json.dumps(found, default=bytes.hex))
    return told
