"""Catalogs: where tables are registered, created and changed. Folders are the first of them."""
