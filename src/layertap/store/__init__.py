"""A run on disk: written safely by `RunWriter`, read without torch by `Run`. FORMAT.md says what lies in the folder.

    schema      the columns of a record, to and from arrow tables      <- read after FORMAT.md
    dtype       element types by name, and how numpy reads them
    tensorfile  safetensors: written as a stream, read by a memory map
    runfile     run.json: what is known of the run as a whole, session by session
    folder      what to do with a run that already exists
    writer      RunWriter: records and tensors in, committed shard by shard
    memory      MemoryWriter: the same without a folder
    shards      the parquet files, opened with suspicion
    index       the small columns of all records, in memory
    run         Run: the reader
    records     SiteRecords: what a run knows of one site
    layout      Layout: which output of a compiled artefact is which tap

Nothing here imports torch until a tensor is asked for.
"""

from layertap.store.layout import Layout
from layertap.store.memory import MemoryWriter
from layertap.store.records import SiteRecords
from layertap.store.run import Run
from layertap.store.schema import FORMAT
from layertap.store.writer import RunWriter

__all__ = ["FORMAT", "Layout", "MemoryWriter", "Run", "RunWriter", "SiteRecords"]
