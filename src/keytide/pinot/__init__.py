"""Tables created from Apache Pinot's table config and schema."""

from keytide.pinot.tables import create_table

__all__ = ["create_table"]
