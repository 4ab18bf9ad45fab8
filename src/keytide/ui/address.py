"""Addresses of pages, for links.

>>> table_address("shop.orders$branch_x", "timeline", before=12)
'/table/shop.orders%24branch_x/timeline?before=12'
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

__all__ = ["page_address", "table_address"]


def page_address(*parts: str, **asked: object) -> str:
    """The address of a page with its query parameters, without those that are None."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    given = {name: str(value) for name, value in asked.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def table_address(name: str, *parts: str, **asked: object) -> str:
    """The address of a page about a table."""
    return page_address("table", name, *parts, **asked)
