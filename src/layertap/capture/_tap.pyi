"""The types of tap.c."""

from typing import Any

class Counts:
    fired: int
    tensors: int
    direct: int
    recomputed: int
    dropped: int

class Numbers:
    def take(self, step: int, phase: str, call: int) -> int: ...

class Slot:
    shape: Any
    dtype: Any
    device: Any
    numbers: Any
    plans: Any
    kernel: Any
    number: int
    nbytes: int
    itemsize: int
    arena_bytes: int
    index: int
    count: int
    kind: int
    table: int
    kept: bool
    gathers: bool
    on_device: bool
    large: bool

class Kernel:
    function: int
    threads: int
    shared: int
    tile: int
    lanes: int
    workers: int
    slices: int

class Part:
    address: int
    stream: int
    index: int
    begin: int
    end: int
    slab: int
    last_slab: int
    slab_bytes: int
    scratch: int
    scratch_bytes: int
    waiting: int
    together: int
    segments: Any
    rows: Any
    def close_segment(self) -> None: ...

class Batch:
    moment: Any
    part: Any
    address: int
    count: int
    capacity: int
    row_bytes: int
    arena_address: int
    arena_size: int
    used: int
    credit: int
    moment_number: int
    opened: float
    def claim(self) -> int: ...

class Gathering:
    open: Any
    plans: Any
    taken: int
    age: float
    look: int
    crowded: bool

class Recording:
    epoch: Any
    batch: Any
    flags: Any
    gathering: Any
    step_number: int
    last_step: int
    order: int
    overhead: float
    attached: bool
    simple: bool
    strict: bool
    def next_order(self) -> int: ...
    def of_this_process(self) -> bool: ...
    def begin_in_process(self) -> None: ...

class Tap:
    recording: Any
    counts: Any
    slot: Any
    step: int
    total: int
    forwards: int
    eval_calls: int
    train_calls: int
    idle: bool
    early: bool
    plain: bool
    def enter(self, args: Any, kwargs: Any, direct: bool) -> tuple[Any, Any, Any]: ...
    def leave(self, token: Any, output: Any) -> Any: ...

class UnderWay:
    modules: set[int]
    waiting: dict[int, Any]
    unseen: bool

class Call:
    cls: Any
    general: Any
    simple: bool

class Forward:
    cls: Any
    general: Any
    simple: bool

def take(recording: Any, slot: Any, tensor: Any, moment: Any, counts: Any) -> bool: ...
def connect(names: dict[str, Any], measure: int) -> None: ...
def find_driver() -> bool: ...
