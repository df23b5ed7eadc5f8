"""One pass over a tensor: its statistics, its fingerprint and its sketch.

    measure(tensor)      -> Measurement, wherever the tensor lives; waits for the result
    supported(tensor)    "" or why this tensor cannot be measured
    definition.py        what fingerprint and sketch are: the constants and the weights      <- read first
    result.py            Measurement, and merge(parts) -> the whole
    sketch.py            relative L2 error and cosine of two tensors from their sketches
    native.py, onepass.c the CPU
    kernel.py, slab.py   CUDA: one launch, no synchronisation; capture launches it itself
    histogram.py         counts of fixed bins, kept where `keep="histogram"`
    portable.py          statistics as a part of a graph, for any compiler
    pair/                two tensors, one pass
    part/                a part of a tensor, counted from its place in the whole
    fingerprint.py       of bytes in memory or a file, without torch; rows.py: of the rows of a batch
    floats.py, float8.py number formats; dense.py: the numbers of a tensor of any layout
    fused.py, bits.py    the fused kernel, and what kernels share; launching.py: how they are launched
    packed.py, wide.py   what it does otherwise on a Hopper chip: numbers of 8 and 16 bits, and of 64
    plain.py             any device, with torch's own operations; also the CPU where no compiler was at hand

Nothing here imports torch until a tensor is measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layertap.errors import BadArgument
from layertap.measure.part.place import PartPlace
from layertap.measure.result import Measurement, merge
from layertap.messages import tr

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Measurement", "measure", "merge", "supported"]

COPY = 1 << 26
"""A non-contiguous tensor with more elements than this is measured slice by slice, not copied as a whole."""


def measure(
    tensor: Tensor, *, offset: int = 0, statistics_only: bool = False, place: PartPlace | None = None
) -> Measurement:
    """Measures `tensor` in C order; `offset` is the index of its first element in the tensor that it is a part of.

    `place` says the same of a part with any shape, of which `in_whole` then tells what it adds to the whole.

    >>> import torch
    >>> found = measure(torch.tensor([1.0, -3.0, 0.0, float("nan")]))
    >>> found.statistics.max, found.statistics.nan, found.statistics.first[:2]
    (1.0, 1, (1.0, -3.0))
    >>> f"{found.fingerprint:016x}", len(found.sketch)
    ('a9d604a765000000', 1004)
    """
    reason = supported(tensor)
    if reason:
        raise BadArgument(tr("measure.cannot", reason=reason))
    if place is not None:
        from layertap.measure.part import whole_sums

        found = measure(tensor, offset=offset, statistics_only=statistics_only)
        return replace(found, in_whole=whole_sums(tensor, place))
    real = real_view(tensor)
    offset *= 2 if tensor.is_complex() else 1
    if not real.is_contiguous():
        if real.numel() > COPY:
            step = real[0].numel()
            parts = (
                measure(row, offset=offset + i * step, statistics_only=statistics_only) for i, row in enumerate(real)
            )
            return merge(list(parts))
        real = real.contiguous()
    return _measure(real, offset, statistics_only)


def _measure(real: Tensor, offset: int, statistics_only: bool) -> Measurement:
    """The one place where a device finds its implementation."""
    from layertap.measure import plain

    if real.device.type == "cpu":
        from layertap.measure import native

        if native.available():
            return native.measure(real, offset=offset, statistics_only=statistics_only)
    elif real.device.type == "cuda" and offset == 0 and not statistics_only:
        from layertap.measure import kernel, slab

        if kernel.available(real.device) and kernel.supported(real.dtype):
            room = real.new_empty(slab.SLAB_BYTES, dtype=plain.BYTE)
            kernel.launch(real, room)
            return slab.decode(room.cpu().numpy(), real.numel())
    return plain.finish(plain.start(real, offset=offset, statistics_only=statistics_only))


def real_view(tensor: Tensor) -> Tensor:
    """Without history, lazy conjugation and imaginary unit: complex numbers become pairs of reals."""
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def supported(tensor: Tensor) -> str:
    """Why `tensor` cannot be measured, in a few words; empty when it can.

    >>> import torch
    >>> supported(torch.ones(2)), supported(torch.ones(2, device="meta"))
    ('', 'a meta tensor has no values')
    """
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

    from layertap.measure import native

    if tensor.device.type == "meta" or isinstance(tensor, torch._subclasses.FakeTensor):
        return tr("measure.meta")
    if tensor.is_nested:
        return tr("measure.nested")
    if tensor.is_quantized:
        return tr("measure.quantized", dtype=tensor.dtype)
    if tensor.layout is not torch.strided:
        return tr("measure.layout", removeprefix=str(tensor.layout).removeprefix("torch."))
    kind: type = type(tensor)
    if is_traceable_wrapper_subclass_type(kind):
        return tr("measure.wraps", name=kind.__name__)
    if tensor.numel():
        reason = _without_memory(tensor)
        if reason:
            return reason
    real = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
    if not native.supported(real.get(tensor.dtype, tensor.dtype)):
        return f"dtype {str(tensor.dtype).removeprefix('torch.')}"
    return ""


def _without_memory(tensor: Tensor) -> str:
    """Why the values of a tensor lie nowhere in memory; reading address 0 would end the process."""
    import torch

    kind = type(tensor).__name__
    try:
        address, storage = tensor.data_ptr(), tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        if torch._C._functorch.is_batchedtensor(tensor):
            return tr("measure.vmap")
        return tr("measure.no_memory", kind=kind)
    if not address:
        return tr("measure.freed") if not storage else tr("measure.no_memory", kind=kind)
    last = tensor.storage_offset() + sum(
        (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    if (last + 1) * tensor.element_size() > storage:
        return tr("measure.partly_freed")
    return ""
