"""Columns with the names that DELETE, UPDATE and MERGE give their own: refused, not confused."""

from __future__ import annotations

import pyarrow as pa
import pytest

import keytide as kt

NAMES = ["$row", "$row_id", "$case", "$CASE", "$matches", "$operation", "$source", "$split",
         "$nothing", "$value_0", "$value_0_0", "$condition_0", "$id_0", "$kept_0"]  # fmt: skip
SAME = "target.k = source.k"


def new_table(warehouse: str, name: str) -> kt.Table:
    schema = pa.schema([("k", pa.int64()), (name, pa.string())])
    table = kt.connect(warehouse).create_table("t", schema, ["k"])
    table.write([{"k": 1, name: "a"}])
    return table


@pytest.mark.parametrize("name", NAMES)
def test_column_of_the_table_is_refused_by_its_name(warehouse: str, name: str) -> None:
    table = new_table(warehouse, name)
    merge = table.merge([{"k": 1}], SAME).when_matched_delete()

    for change in (lambda: table.delete("k = 1"), lambda: table.update({"k": "k + 1"}),
                   merge.execute):  # fmt: skip
        with pytest.raises(kt.UnsupportedError) as refused:
            change()
        assert repr(name) in str(refused.value)
        assert "rename the column" in str(refused.value)
    assert table.scan().to_pylist() == [{"k": 1, name: "a"}]


@pytest.mark.parametrize("name", NAMES)
def test_column_of_the_source_is_refused_by_its_name(warehouse: str, name: str) -> None:
    table = new_table(warehouse, "v")
    merge = table.merge([{"k": 1, name: "b"}], SAME)

    with pytest.raises(kt.UnsupportedError, match="rename the column"):
        merge.when_matched_update({"v": f"source.`{name}`"}).execute()


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", ["$id", "$oid", "row", "$rows", "merged", "$value"])
def test_other_names_with_a_dollar_are_columns_like_others(warehouse: str, name: str) -> None:
    table = new_table(warehouse, name)

    assert table.update({name: "'b'"}, f"`{name}` = 'a'").rows == 1
    merge = table.merge([{"k": 1, name: "c"}, {"k": 2, name: "d"}], SAME)
    assert merge.when_matched_update_all().when_not_matched_insert_all().execute().rows == 2
    assert table.delete(f"`{name}` = 'd'").rows == 1
    assert table.scan().to_pylist() == [{"k": 1, name: "c"}]
