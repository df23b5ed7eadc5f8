"""English: what layertap.store says."""

MESSAGES = {
    "store.exists": (
        "{folder} already contains a run; exists='append' (--append) continues it, exists='replace' (--replace) "
        "removes it, or give another folder"
    ),
    "store.left_here": (
        "{shards} shard(s) could not be put into {url}; they stay in {folder}, whose files can be copied there"
    ),
    "store.local_only": "{path}: {what} needs a folder of this machine, not a URL",
    "store.no_objects": "{url}: no run here; a run is the URL that was given to layertap.record",
    "store.not_deleted": "{url}/{name}: cannot be deleted ({why})",
    "store.not_put": "{url}/{name}: cannot be written ({why})",
    "store.not_read": "{url}/{name}: cannot be read ({why})",
    "store.put_later": "shard {stem} of {url} is tried again with the next one: {why}",
    "store.scheme": "{url}: not a storage that layertap writes to; it takes a folder, or a URL of {schemes}",
    "store.short": "{there} of {expected} bytes arrived",
    "store.taken": "{name}: another writer has put an object of this name",
    "store.unreachable": "{url}: the storage does not answer ({why})",
    "store.in_use": "{folder} is in use; this one writes to {own}",
}
