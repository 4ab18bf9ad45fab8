"""Storage for the files of a warehouse: a local directory or an object store."""

from keytide.store.cache_folder import CacheFolder
from keytide.store.cached import CachedStore
from keytide.store.interface import ObjectInfo, PassingStore, SeekableReader, Store, created
from keytide.store.local import LocalStore
from keytide.store.object_store import ObjectStore
from keytide.store.open import is_inside, is_stored_inside, open_store, store_of_file, takes_options

__all__ = [
    "CacheFolder",
    "CachedStore",
    "LocalStore",
    "ObjectInfo",
    "ObjectStore",
    "PassingStore",
    "SeekableReader",
    "Store",
    "created",
    "is_inside",
    "is_stored_inside",
    "open_store",
    "store_of_file",
    "takes_options",
]
