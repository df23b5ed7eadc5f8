"""A run on disk: written safely by `RunWriter`, read without torch by `Run`. FORMAT.md says what is in the folder.

schema        the columns of a record, to and from arrow tables      <- read after FORMAT.md
writer        RunWriter: records and tensors in, committed shard by shard
open_shard    the shard that is being written: parquetfile, tensorfile; batch_append: rows of a batch
columns       rows as taps fill them; row_columns: as the columns of a table; plans: what many have in common
given         the bytes to keep, checked; session: one process that writes, and how it ended
folder        what to do with a run that exists; folder_lock, locked_file: one writer; recorded: what a folder holds
compaction    many small shards made one; thinning: steps taken out
memory        MemoryWriter: the same without a folder
run           Run: the reader
opening       what a folder holds; runfile: run.json; shards: the parquet files, opened with suspicion (footer)
index         the small columns of all records, in memory
records       SiteRecords: what a run knows of one site
kept          the bytes of kept tensors, checked (mapped: through a map; dtype: element types without torch)
assembly      the parts of a distributed tensor as the whole; merged: a run of ranks as one process's
rank_reading  what is known of such a run beside its records
dims          how plain tensors lie on a mesh of ranks, as somebody says it; stated: in a mapping, by pattern
storage       object storage; remote_writer: written there; mirror: read from there
layout        Layout: which output of a compiled artefact is which tap

Nothing here imports torch until a tensor is asked for.
"""

from layertap.store.layout import Layout
from layertap.store.memory import MemoryWriter
from layertap.store.records import SiteRecords
from layertap.store.run import Run
from layertap.store.schema import FORMAT
from layertap.store.writer import RunWriter

__all__ = ["FORMAT", "Layout", "MemoryWriter", "Run", "RunWriter", "SiteRecords"]
