"""Which part of a tensor a capture is: tokens of a padded bucket, the last token alone, what rank 0 holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layertap.result import Note
from layertap.site import Sharding, Site

if TYPE_CHECKING:
    import torch

    from layertap.targets.neuron.listening import ForwardCall

_HIDDEN = ("norm", "input_layernorm", "post_attention_layernorm", "mlp", "self_attn")
_AS_WIDE = {
    "output": (*_HIDDEN, "embed_tokens", "o_proj", "down_proj"),
    "input": (*_HIDDEN, "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "gate", "experts", "lm_head"),
}
"""What takes or returns tensors as wide as the hidden state."""
ROUTERS = ("mlp.gate", "mlp.router", "block_sparse_moe.gate")
EXPERTS = ("mlp.experts", "block_sparse_moe.experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the compiled model says of itself, as far as it decides how a capture is cut."""

    tp_degree: int = 1
    sequence_parallel: bool = False
    tiled: bool = False
    """Whether sequence parallelism deals the tokens out in tiles, not in one piece for each rank."""
    fused_residual: bool = False
    """Whether a decoder layer leaves its last residual addition to the next one."""
    gathered_logits: bool = True
    """Whether `lm_head` itself puts the ranks' logits together."""
    hidden_size: int | None = None
    intermediate_size: int | None = None
    vocab_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None

    @classmethod
    def of(cls, neuron: Any, config: Any) -> Compiled:
        """From a compiled model's NeuronConfig and the app's configuration."""
        text = getattr(config, "text_config", None) or config

        def number(name: str) -> int | None:
            value = getattr(text, name, None)
            return value if isinstance(value, int) else None

        heads, hidden = number("num_attention_heads"), number("hidden_size")
        return cls(
            tp_degree=int(getattr(neuron, "tp_degree", 1) or 1),
            sequence_parallel=bool(getattr(neuron, "sequence_parallel_enabled", False)),
            tiled=bool(getattr(neuron, "tile_cc", False)) or int(getattr(neuron, "cp_degree", 1) or 1) > 1,
            fused_residual=bool(getattr(neuron, "qkv_kernel_fuse_residual_add", False)),
            gathered_logits=getattr(neuron, "on_device_sampling_config", None) is None,
            hidden_size=hidden,
            intermediate_size=number("intermediate_size"),
            vocab_size=number("vocab_size"),
            heads=heads,
            kv_heads=number("num_key_value_heads") or heads,
            head_dim=number("head_dim") or (hidden // heads if hidden and heads else None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call: how many sequences and tokens it was given, and what of the bucket is true."""

    batch: int
    length: int
    """Tokens of a sequence on the device, padding included."""
    first: int = 0
    last: int = 0
    """The true tokens begin at `first` and end before `last`."""
    ends: int | None = None
    """The place of the one token that `lm_head` sees; None where the sequences end at different places."""
    prefill: bool = True

    @classmethod
    def of(cls, call: ForwardCall) -> Asked | None:
        """None where the call does not say."""
        ids, mask, positions = call.ids, call.mask, call.positions
        if ids is None or ids.ndim != 2:
            return None
        batch, tokens = int(ids.shape[0]), int(ids.shape[1])
        prefill = bool(getattr(call.config, "is_prefill_stage", None) or call.model.startswith("context"))
        if not prefill or tokens == 1:
            return cls(batch=batch, length=tokens, last=tokens, ends=tokens - 1, prefill=False)
        first, last, ends = 0, tokens, tokens - 1
        if mask is not None and mask.ndim == 2 and mask.shape[1] >= tokens and bool(mask.any()):
            used = mask[:, :tokens].bool().any(0).nonzero().reshape(-1)
            first, last = int(used[0]), int(used[-1]) + 1
        length = _bucket(getattr(call.config, "buckets", None), tokens)
        end: int | None = ends
        if getattr(call.config, "padding_side", "right") == "left":
            end = length - 1
        elif positions is not None and positions.ndim == 2:
            places = set(positions.argmax(1).tolist())
            end = places.pop() if len(places) == 1 else None
        return cls(batch=batch, length=length, first=first, last=last, ends=end)


def _bucket(buckets: Any, tokens: int) -> int:
    sizes = [size for size in buckets or () if isinstance(size, int) and size >= tokens]
    return min(sizes, default=0)


@dataclass(frozen=True, slots=True)
class Placed:
    """A capture without padding, and what part of a whole it is."""

    tensor: torch.Tensor | None
    """None where nothing of it is true."""
    sharding: Sharding | None = None
    note: str = ""


def place(site: Site, tensor: torch.Tensor, compiled: Compiled, asked: Asked | None) -> Placed:
    """Cuts a capture to its true tokens, and says where it is in the whole tensor."""
    cut = _Cut(tensor)
    if asked is not None:
        _tokens(cut, site, compiled, asked)
    if cut.tensor is not None:
        _ranks(cut, site, compiled)
    if site.role == "output" and site.path.endswith(ROUTERS):
        cut.flatten()
    return cut.placed(compiled)


class _Cut:
    """A capture on its way to what is true of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.begin: list[int | None] = [0] * tensor.ndim
        self.whole: list[int | None] = list(tensor.shape)
        self.placements: list[str] = []
        self.notes: list[str] = []

    def flatten(self) -> None:
        """The tokens of all sequences in one row, as Hugging Face's routers have them."""
        if self.tensor is None or self.tensor.ndim != 3:
            return
        (batch, tokens, last), (sequences, length, width) = self.begin, self.whole
        self.begin = [tokens if sequences == 1 and batch == 0 else None, last]
        self.whole = [None if sequences is None or length is None else sequences * length, width]
        self.placements = [text.replace("dim=1", "dim=0").replace("dim=2", "dim=1") for text in self.placements]
        self.tensor = self.tensor.reshape(-1, self.tensor.shape[-1])

    def placed(self, compiled: Compiled) -> Placed:
        note = "; ".join(self.notes)
        if self.tensor is None or not self.placements:
            return Placed(self.tensor, None, note)
        sharding = Sharding(
            placements=tuple(self.placements),
            global_shape=() if None in self.whole else tuple(size for size in self.whole if size is not None),
            offset=() if None in self.begin else tuple(place for place in self.begin if place is not None),
            mesh_shape=(compiled.tp_degree,),
            mesh_names=("tp",) if compiled.tp_degree > 1 else (),
        )
        return Placed(self.tensor, sharding, note)


def _tokens(cut: _Cut, site: Site, compiled: Compiled, asked: Asked) -> None:
    tensor = cut.tensor
    assert tensor is not None
    flat = tensor.ndim == 2 and tensor.shape[0] % asked.batch == 0
    if not flat and (tensor.ndim < 3 or tensor.shape[0] != asked.batch):
        return
    # A router and its experts see the tokens of all sequences in one row.
    rows = tensor.reshape(asked.batch, -1, tensor.shape[1]) if flat else tensor
    axis = 2 if rows.ndim == 4 and rows.shape[1] != asked.length and rows.shape[2] == asked.length else 1
    size, true = int(rows.shape[axis]), asked.last - asked.first
    length = asked.length or (size if size >= asked.last else 0)
    if not asked.prefill or not length:
        if not length and size > 1:
            cut.notes.append(Note("neuron.true_unknown", size=size, true=true))
        return
    if size == length:
        if true < size:
            cut.notes.append(Note("neuron.padded", size=size, true=true))
        rows = rows.narrow(axis, asked.first, true)
    elif compiled.sequence_parallel and size * compiled.tp_degree == length:
        _own_tokens(cut, asked, compiled, size, true)
        here = min(size, asked.last) - asked.first
        rows = rows.narrow(axis, asked.first, max(here, 0)) if here > 0 else rows[:0]
        cut.begin[0 if flat else axis], cut.whole[0 if flat else axis] = (None if compiled.tiled else 0), true
        if flat and asked.batch > 1:
            cut.begin[0], cut.whole[0] = None, true * asked.batch
    elif size == 1 and not flat:
        cut.placements.append(f"Slice(dim={axis})")
        cut.begin[axis] = None if asked.ends is None else asked.ends - asked.first
        cut.whole[axis] = true
        cut.notes.append(Note("neuron.last_token"))
    else:
        return
    if not rows.numel():
        cut.tensor = None
        return
    cut.tensor = rows.reshape(-1, tensor.shape[1]) if flat else rows
    for place, count in enumerate(cut.tensor.shape):
        if cut.begin[place] == 0 and cut.whole[place] == tensor.shape[place]:
            cut.whole[place] = int(count)


def _own_tokens(cut: _Cut, asked: Asked, compiled: Compiled, size: int, true: int) -> None:
    axis = 1 if cut.tensor is not None and cut.tensor.ndim > 2 else 0
    cut.placements.append(f"Shard(dim={axis})")
    if asked.first >= size:
        cut.notes.append(Note("neuron.all_padding", size=size))
    else:
        here = min(size, asked.last) - asked.first
        cut.notes.append(Note("neuron.tokens_of_rank", here=here, true=true, tp_degree=compiled.tp_degree))


def _ranks(cut: _Cut, site: Site, compiled: Compiled) -> None:
    tensor, degree = cut.tensor, compiled.tp_degree
    assert tensor is not None
    if degree < 2 or not tensor.ndim:
        return
    if site.role == "output" and site.path.endswith(EXPERTS):
        cut.placements[:] = ["Partial(sum)"]
        cut.notes.append(Note("neuron.summand", degree=degree))
        return
    whole, in_order = _width(site, compiled)
    width, last = int(tensor.shape[-1]), tensor.ndim - 1
    if whole is None or width == whole:
        return
    cut.placements = [text for text in cut.placements if not text.startswith("Slice")] or []
    cut.placements.append(f"Shard(dim={last})")
    in_order = in_order and width == math.ceil(whole / degree)
    cut.begin[last], cut.whole[last] = (0 if in_order else None), whole
    cut.notes.append(Note("neuron.shard", degree=degree, width=width, whole=whole))


def _width(site: Site, compiled: Compiled) -> tuple[int | None, bool]:
    """How wide the whole tensor is, and whether ranks hold it in order; None where that is not known."""
    name, degree = site.path.rpartition(".")[2], compiled.tp_degree
    output = site.role == "output"
    heads, kv_heads, size = compiled.heads, compiled.kv_heads, compiled.head_dim
    queries = (name == "q_proj" and output) or (name == "o_proj" and not output)
    if queries and heads and size:
        # With fewer key heads than ranks, heads are repeated or padded, and rank 0's are not the first ones.
        return heads * size, heads % degree == 0 and (kv_heads or heads) % degree == 0
    if name in ("k_proj", "v_proj") and output and kv_heads and size:
        return kv_heads * size, kv_heads % degree == 0
    if (name in ("gate_proj", "up_proj") and output) or (name == "down_proj" and not output):
        return compiled.intermediate_size, True
    if name == "lm_head" and output:
        return compiled.vocab_size, True
    is_layer = name.isdigit() and site.path.endswith(f"layers.{name}")
    if is_layer or name in _AS_WIDE[site.role]:
        return compiled.hidden_size, True
    return None, True


def split_qkv(tensor: torch.Tensor, compiled: Compiled) -> Sequence[torch.Tensor] | None:
    """Rank 0's queries, keys and values out of the fused projection; None where its width does not add up."""
    heads, kv_heads, size = compiled.heads, compiled.kv_heads, compiled.head_dim
    if not (heads and kv_heads and size):
        return None
    widths = [count * size // compiled.tp_degree for count in (heads, kv_heads, kv_heads)]
    if sum(widths) != tensor.shape[-1] or heads % compiled.tp_degree or kv_heads % compiled.tp_degree:
        return None
    parts: Sequence[torch.Tensor] = tensor.split(widths, dim=-1)
    return parts
