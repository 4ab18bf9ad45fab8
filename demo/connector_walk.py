"""How rows of a table are deleted and updated through a connector, call by call.

The functions in the middle do what an engine does, except for threads and error handling. They do
not know how the rows are stored. So the same calls change a table in memory and a table of files,
whose deleted rows are marked in separate files as in Hive ACID. The last part does the same with
SQL, and shows the calls that SQL made.

    python demo/connector_walk.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

import keytide as kt
from keytide.base.text import counted
from keytide.dml.append_table import appended_connector
from keytide.dml.memory import MemoryConnector
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    Connector,
    ConnectorSession,
    Fragment,
    UpdatablePageSource,
)

ORDERS = pa.table({"id": [1, 2, 3, 4], "status": ["new", "paid", "new", "sent"]})
Change = Callable[[UpdatablePageSource, pa.RecordBatch], None]


# -- what an engine does ---------------------------------------------------------------------------


def delete_new_orders(connector: Connector, name: str) -> int:
    """DELETE FROM name WHERE status = 'new'."""
    session, metadata = ConnectorSession(), connector.metadata
    table = metadata.get_table_handle(session, name)
    row_id = metadata.get_delete_row_id_column_handle(session, table)
    print(f"get_delete_row_id_column_handle -> {row_id.type}")
    table = metadata.begin_delete(session, table)
    print("begin_delete")

    def change(source: UpdatablePageSource, page: pa.RecordBatch) -> None:
        doomed = page.filter(pc.equal(page.column("status"), "new"))
        source.delete_rows(doomed.column(ROW_ID))
        print(f"  delete_rows: {counted(doomed.num_rows, 'row')}")

    fragments = change_splits(connector, session, table, row_id, change)
    count = metadata.finish_delete(session, table, fragments)
    print(f"finish_delete: {counted(len(fragments), 'fragment')} -> {counted(count, 'row')}")
    return count


def update_orders(connector: Connector, name: str) -> int:
    """UPDATE name SET status = upper(status)."""
    session, metadata = ConnectorSession(), connector.metadata
    table = metadata.get_table_handle(session, name)
    row_id = metadata.get_update_row_id_column_handle(session, table, ["status"])
    print(f"get_update_row_id_column_handle -> {row_id.type}")
    table = metadata.begin_update(session, table, ["status"])
    print("begin_update")

    def change(source: UpdatablePageSource, page: pa.RecordBatch) -> None:
        values = pc.utf8_upper(page.column("status"))
        new = pa.record_batch([values, page.column(ROW_ID)], ["status", ROW_ID])
        source.update_rows(new, [0, 1])  # the columns of the new values and of the row ids
        print(f"  update_rows: {counted(new.num_rows, 'row')}")

    fragments = change_splits(connector, session, table, row_id, change)
    count = metadata.finish_update(session, table, fragments)
    print(f"finish_update: {counted(len(fragments), 'fragment')} -> {counted(count, 'row')}")
    return count


def change_splits(
    connector: Connector,
    session: ConnectorSession,
    table: object,
    row_id: ColumnHandle,
    change: Change,
) -> Sequence[Fragment]:
    """Read every split, and pass the changes of its rows back to their source."""
    columns = [ColumnHandle("status", pa.string()), ColumnHandle(ROW_ID, row_id.type, False)]
    fragments: list[Fragment] = []
    for number, split in enumerate(connector.splits.get_splits(session, table)):
        print(f"split {number}")
        source = connector.pages.create_page_source(session, table, split, columns)
        assert isinstance(source, UpdatablePageSource)
        while (page := source.get_next_page()) is not None:
            print(f"  get_next_page: {counted(page.num_rows, 'row')}")
            change(source, page)
        fragments += (told := source.finish())
        print(f"  finish: {counted(len(told), 'fragment')}")
        source.close()
    return fragments


# -- on two kinds of tables ------------------------------------------------------------------------


def main() -> None:
    """Print the calls."""
    memory = MemoryConnector()
    memory.create_table("orders", ORDERS.schema)
    memory.insert("orders", ORDERS.slice(0, 2))
    memory.insert("orders", ORDERS.slice(2))
    print("-- a table in memory")
    delete_new_orders(memory.connector, "orders")
    update_orders(memory.connector, "orders")
    print(memory.rows("orders").to_pylist())

    with tempfile.TemporaryDirectory() as folder:
        lake = kt.connect(folder)
        options = {"deletion-vectors.enabled": "true"}
        orders = lake.create_table("orders", ORDERS.schema, (), options=options)
        orders.write(ORDERS)
        print("-- a table of files, deleted rows marked in separate files")
        delete_new_orders(appended_connector(lake.catalog), "default.orders")
        update_orders(appended_connector(lake.catalog), "default.orders")
        print(orders.scan().to_pylist())

        print("-- the same with SQL")
        lake.attach("mem", memory.connector)
        for table in ("mem.orders", "orders"):
            print(f"EXPLAIN ANALYZE DELETE FROM {table} WHERE id = 2")
            for row in lake.sql(f"EXPLAIN ANALYZE DELETE FROM {table} WHERE id = 2").to_pylist():
                print(f"  {row['plan']}")


if __name__ == "__main__":
    main()
