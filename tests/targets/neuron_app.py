"""A stand-in for an app of NxD Inference, since no Neuron device can be had here.

What is real: each `.models[i].model` is a ScriptModule that was traced, saved and loaded again, returns a flat tuple,
and runs on padded buckets of 16 tokens. What is imitated, from the public source: the classes of the configuration, the
wrappers and the order of calls inside `forward`, the adapter that keeps `forward`, the hook, the order of the captures,
the logits of the last token alone, placeholders of one zero, NaN padding, and what rank 0 holds.
"""

import copy
import types

import torch
from torch import nn

from targets.artefacts import quiet

BUCKET = 16
HEADS, KV_HEADS, SIZE, WIDTH, EXPERTS, VOCABULARY = 4, 2, 2, 8, 32, 64
CONTEXT, TOKEN = "context_encoding_model", "token_generation_model"


class TensorCaptureConfig:
    def __init__(self, **kwargs):
        self.modules_to_capture = kwargs.pop("modules_to_capture", [])
        self.max_intermediate_tensors = kwargs.pop("max_intermediate_tensors", None)
        self.capture_inputs = kwargs.pop("capture_inputs", False)

    def get_offset(self):
        modules = len(self.modules_to_capture) * (2 if self.capture_inputs else 1)
        return modules + (self.max_intermediate_tensors or 0)


class OnDeviceSamplingConfig:
    pass


CLASSES = types.SimpleNamespace(TensorCaptureConfig=TensorCaptureConfig, OnDeviceSamplingConfig=OnDeviceSamplingConfig)


class NeuronConfig:
    def __init__(self, tp_degree=1, **options):
        self.tp_degree = tp_degree
        self.tensor_capture_config = None
        self.output_logits = False
        self.on_device_sampling_config = None
        self.enable_bucketing = self.async_mode = self.sequence_parallel_enabled = self.fused_qkv = False
        self.qkv_kernel_fuse_residual_add = self.tile_cc = False
        self.cp_degree = self.attention_dp_degree = self.mlp_cp_degree = 1
        self.padding_side = "right"
        self.buckets = [BUCKET]
        self.__dict__.update(options)


class Decoder(nn.Module):
    """The eager model, named as Hugging Face names it."""

    def __init__(self, layers=4, experts=False):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.model.layers = nn.ModuleList([Block(experts) for _ in range(layers)])
        self.model.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, attention_mask=None, position_ids=None, past=None):
        x = self.model.embed_tokens(input_ids)
        for number, layer in enumerate(self.model.layers):
            x = layer(x, None if past is None else past[number])
        return types.SimpleNamespace(logits=self.lm_head(self.model.norm(x)))


class Attention(nn.Module):
    """Linear attention: a token sees the sum of those before it, and `past` carries that sum."""

    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * SIZE)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * SIZE)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * SIZE)
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH)

    def forward(self, x, past=None):
        q, kv = self.q_proj(x), self.k_proj(x) * self.v_proj(x)
        seen = kv.cumsum(1) if past is None else past["sum"] + kv.cumsum(1)
        if past is not None:
            past["sum"] = seen[:, -1:]
        return self.o_proj(q * seen.repeat(1, 1, HEADS // KV_HEADS).tanh())


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH) / 4)

    def forward(self, x, scores):
        return x * (scores @ self.weight)


class Sparse(nn.Module):
    """Every expert, weighed by the router: tokens of all sequences in one row, as Hugging Face does it."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = Experts()

    def forward(self, x):
        flat = x.reshape(-1, WIDTH)
        return self.experts(flat, self.gate(flat).softmax(-1)).reshape(x.shape)


class Block(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.self_attn = Attention()
        self.mlp = Sparse() if experts else nn.Linear(WIDTH, WIDTH)

    def forward(self, x, past=None):
        x = x + self.self_attn(x, past)
        return x + self.mlp(x).tanh() if isinstance(self.mlp, nn.Linear) else x + self.mlp(x)


def decoder(layers=4, experts=False):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Decoder(layers, experts).eval()


def device_names(path):
    """Where a module's output can be captured on the device, as the public source names it."""
    path = path.removeprefix("model.")
    for ours, theirs in {
        "mlp.gate": ("mlp.router.linear_router", "mlp.router"),
        "mlp.experts": ("mlp.expert_mlps",),
        "self_attn.o_proj": ("self_attn.o_proj.o_proj", "self_attn.o_proj"),
        "self_attn.q_proj": ("self_attn.qkv_proj.q_proj", "self_attn.qkv_proj"),
        "self_attn.k_proj": ("self_attn.qkv_proj.k_proj",),
        "self_attn.v_proj": ("self_attn.qkv_proj.v_proj",),
    }.items():
        if path.endswith(ours):
            return [path.removesuffix(ours) + name for name in theirs]
    return [path]


class _Device(nn.Module):
    """What the compiler makes of it: tokens, logits, captures as further outputs, and the state of the cache."""

    def __init__(self, model, config):
        super().__init__()
        self.model, self.config = model, config
        capture = config.tensor_capture_config
        self.modules_ = [] if capture is None else capture.modules_to_capture
        self.padding = (capture.max_intermediate_tensors or 0) if capture is not None else 0

    def forward(self, input_ids, attention_mask, position_ids, state):
        prefill = self.config.is_prefill_stage
        seen, handles = {}, []

        def hook(path):
            return lambda module, args, out: seen.__setitem__(path, out)

        handles = [module.register_forward_hook(hook(path)) for path, module in self.model.named_modules() if path]
        ends = position_ids.argmax(1) if prefill else torch.zeros(len(input_ids), dtype=torch.long)
        inner = self.model.model
        past = [{"sum": part} for part in state]
        x = inner.embed_tokens(input_ids)
        for number, layer in enumerate(inner.layers):
            x = layer(x, None if prefill else past[number])
            if prefill:
                kv = seen[f"model.layers.{number}.self_attn.k_proj"] * seen[f"model.layers.{number}.self_attn.v_proj"]
                true = (kv * attention_mask.unsqueeze(-1)).sum(1, keepdim=True)
                past[number]["sum"] = true
        normed = inner.norm(x)
        last = normed.gather(1, ends.reshape(-1, 1, 1).expand(-1, 1, WIDTH))
        logits = self.model.lm_head(last)
        for handle in handles:
            handle.remove()
        captured = [self.capture(name, seen) for name in self.modules_]
        nan = [torch.full((1,), float("nan")) for _ in range(self.padding)]
        return (logits.argmax(-1)[:, -1], logits, *captured, *nan, *(part["sum"] for part in past))

    def capture(self, name, seen):
        config, degree = self.config, self.config.tp_degree
        stage = "cte_" if config.is_prefill_stage else "tkg_"
        twice = config.cp_degree > 1
        plain = name.replace(stage, "") if twice else name
        owner, _, last = plain.rpartition(".")
        if last == "Wqkv":
            parts = [seen[f"model.{owner.removesuffix('.qkv_proj')}.{part}_proj"] for part in "qkv"]
            return torch.cat([part[..., : part.shape[-1] // degree] for part in parts], dim=-1).clone()
        path = next((path for path in seen if plain in device_names(path)), None)
        if path is None or (twice and "_proj" in name and stage not in name):
            return torch.zeros(1, dtype=torch.bfloat16)
        tensor = seen[path]
        if config.qkv_kernel_fuse_residual_add and config.is_prefill_stage and last.isdigit():
            tensor = seen[f"{path}.mlp"]
            tensor = tensor.tanh() if isinstance(self.model.get_submodule(f"{path}.mlp"), nn.Linear) else tensor
        if plain.endswith("router.linear_router"):
            tensor = tensor.reshape(-1, BUCKET if config.is_prefill_stage else 1, EXPERTS)
        return self.rank_0(plain, path, tensor, degree).clone()

    def rank_0(self, name, path, tensor, degree):
        config, end = self.config, path.rpartition(".")[2]
        if degree < 2:
            return tensor
        if name.endswith("expert_mlps"):
            return tensor / degree  # a summand, whatever it is
        if end in ("q_proj", "k_proj", "v_proj") or (end == "lm_head" and config.on_device_sampling_config is not None):
            return tensor[..., : tensor.shape[-1] // degree]
        sharded = config.sequence_parallel_enabled and config.is_prefill_stage and end != "lm_head"
        if sharded and name.endswith("mlp.router"):
            return tensor[: len(tensor) // degree]
        return tensor[:, : tensor.shape[1] // degree] if sharded else tensor


class ModelWrapper(nn.Module):
    """One compiled model; it pads to its bucket."""

    def __init__(self, tag, model, config, folder):
        super().__init__()
        self.tag, self.neuron_config = tag, copy.copy(config)
        self.neuron_config.is_prefill_stage = tag == CONTEXT
        self.neuron_config.sequence_parallel_enabled = tag == CONTEXT and config.sequence_parallel_enabled
        tokens = BUCKET if tag == CONTEXT else 1
        given = (
            torch.zeros(1, tokens, dtype=torch.long),
            torch.ones(1, BUCKET, dtype=torch.long),
            torch.arange(tokens).reshape(1, -1),
            torch.zeros(len(model.model.layers), 1, 1, KV_HEADS * SIZE),
        )
        with quiet():
            device = _Device(model, self.neuron_config)
            torch.jit.trace(device, given, check_trace=False).save(folder / f"{tag}.pt")
            self.model = torch.jit.load(folder / f"{tag}.pt")

    def forward(self, input_ids, attention_mask, position_ids, seq_ids, sampling_params, state):
        if self.tag == CONTEXT:
            pads = zip((input_ids, attention_mask, position_ids), (0, 0, 1), strict=True)
            missing = BUCKET - input_ids.shape[1]
            input_ids, attention_mask, position_ids = (nn.functional.pad(x, (0, missing), value=v) for x, v in pads)
        else:
            attention_mask = nn.functional.pad(attention_mask, (0, BUCKET - attention_mask.shape[1]))
        return list(self.model(input_ids, attention_mask, position_ids, state))


class NeuronTinyForCausalLM(nn.Module):
    def __init__(self, model, neuron_config, folder):
        super().__init__()
        self.neuron_config = neuron_config
        self.config = types.SimpleNamespace(
            num_hidden_layers=len(model.model.layers),
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=SIZE,
            vocab_size=VOCABULARY,
            neuron_config=neuron_config,
        )
        self.kv_cache_populated = False
        self._state = torch.zeros(len(model.model.layers), 1, 1, KV_HEADS * SIZE)
        self.context_encoding_model = ModelWrapper(CONTEXT, model, neuron_config, folder)
        self.token_generation_model = ModelWrapper(TOKEN, model, neuron_config, folder)
        self.models = [self.context_encoding_model, self.token_generation_model]

    def reset(self):
        self.kv_cache_populated = False

    def forward(
        self, input_ids=None, seq_ids=None, attention_mask=None, position_ids=None, tensor_capture_hook=None, **unused
    ):
        if attention_mask is None:
            attention_mask = (torch.arange(int(position_ids.max()) + 1) <= position_ids.amax(1, keepdim=True)).long()
        if seq_ids is None:
            seq_ids = torch.arange(input_ids.shape[0])
        outputs, is_run_on_neuron = self._get_model_outputs(input_ids, attention_mask, position_ids, seq_ids)
        constructed_outputs = self._get_constructed_outputs(outputs, is_run_on_neuron)
        if tensor_capture_hook and constructed_outputs.captured_tensors:
            tensor_capture_hook(self, constructed_outputs.captured_tensors)
        return constructed_outputs

    def _get_model_outputs(self, input_ids, attention_mask, position_ids, seq_ids):
        prefill = position_ids.min().item() == 0
        model = self.context_encoding_model if prefill else self.token_generation_model
        outputs = model(input_ids, attention_mask, position_ids, seq_ids, None, self._state)
        self._state = torch.stack(outputs[-len(self._state) :])
        self.kv_cache_populated |= prefill
        return outputs, True

    def _get_constructed_outputs(self, outputs, is_run_on_neuron):
        config, captured, logits = self.neuron_config, None, None
        if config.on_device_sampling_config is not None and config.output_logits:
            logits = outputs[1]
            offset = config.tensor_capture_config.get_offset() if config.tensor_capture_config else 0
            captured = outputs[2 : 2 + offset] if offset else None
        return CausalLMOutputWithPast(logits, outputs[0], captured)


class CausalLMOutputWithPast(dict):
    """Like transformers': what is set on it later is no item of it."""

    def __init__(self, logits, tokens, captured_tensors):
        super().__init__({} if logits is None else {"logits": logits})
        self.logits, self.tokens, self.captured_tensors = logits, tokens, captured_tensors


class HuggingFaceGenerationAdapter(nn.Module):
    """Keeps the app's `forward` when it is made, and calls that."""

    def __init__(self, model):
        super().__init__()
        self.__dict__["neuron_model"] = model
        self.forward = model.forward

    def generate(self, input_ids, attention_mask, max_new_tokens):
        self.neuron_model.reset()
        for _ in range(max_new_tokens):
            positions = attention_mask.cumsum(-1) - 1
            given = input_ids
            if self.neuron_model.kv_cache_populated:
                given, positions = input_ids[:, -1:], positions.amax(1, keepdim=True) + 1
                attention_mask = torch.cat([attention_mask.new_ones((len(input_ids), 1)), attention_mask], dim=-1)
            output = self(
                input_ids=given, attention_mask=attention_mask, position_ids=positions, tensor_capture_hook=None
            )
            input_ids = torch.cat([input_ids, output.tokens[:, None]], dim=-1)
        return input_ids


def ids(seed, length=11):
    return torch.randint(1, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def prompt(seed, length=11):
    """What an app is called with for a prompt."""
    return {
        "input_ids": ids(seed, length),
        "attention_mask": torch.ones(1, length, dtype=torch.long),
        "position_ids": torch.arange(length).reshape(1, -1),
    }
