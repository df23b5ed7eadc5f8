"""English: what layertap says about object storage."""

MESSAGES = {
    "storage.left_here": (
        "{shards} shard(s) could not be put into {url}; they stay in {folder}, whose files can be copied there"
    ),
    "storage.local_only": "{path}: {what} needs a folder of this machine, not a URL",
    "storage.no_objects": "{url}: no run here; a run is the URL that was given to layertap.record",
    "storage.not_deleted": "{url}/{name}: cannot be deleted ({why})",
    "storage.not_put": "{url}/{name}: cannot be written ({why})",
    "storage.not_read": "{url}/{name}: cannot be read ({why})",
    "storage.put_later": "shard {stem} of {url} is tried again with the next one: {why}",
    "storage.scheme": "{url}: not a storage that layertap writes to; it takes a folder, or a URL of {schemes}",
    "storage.short": "{there} of {expected} bytes arrived",
    "storage.taken": "{name}: another writer has put an object of this name",
    "storage.unreachable": "{url}: the storage does not answer ({why})",
}
