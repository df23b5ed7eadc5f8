"""A stand-in for an app of NxD Inference, since no Neuron device can be had here.

What is real: its `.models[0].model` is a ScriptModule that was traced, saved and loaded again, returns a flat tuple,
and runs on padded buckets of 16 tokens. What is imitated, from the public source: the classes of its configuration, the
hook, the order of the captures, placeholders of one zero, NaN padding, rank 0's shards.
"""

import types

import torch
from torch import nn

from layertap.targets.neuron import to_hf
from targets.artefacts import quiet

BUCKET = 16


class TensorCaptureConfig:
    def __init__(self, **kwargs):
        self.modules_to_capture = kwargs.pop("modules_to_capture", [])
        self.max_intermediate_tensors = kwargs.pop("max_intermediate_tensors", None)
        self.capture_inputs = kwargs.pop("capture_inputs", False)


class OnDeviceSamplingConfig:
    pass


CLASSES = types.SimpleNamespace(TensorCaptureConfig=TensorCaptureConfig, OnDeviceSamplingConfig=OnDeviceSamplingConfig)


class NeuronConfig:
    def __init__(self, tp_degree=1, enable_bucketing=False):
        self.tp_degree = tp_degree
        self.enable_bucketing = enable_bucketing
        self.tensor_capture_config = None
        self.output_logits = False
        self.on_device_sampling_config = None


class Decoder(nn.Module):
    """The eager model, named as Hugging Face names it."""

    def __init__(self, layers=4, width=8):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(64, width)
        self.model.layers = nn.ModuleList([Block(width) for _ in range(layers)])
        self.model.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, 64)

    def forward(self, input_ids):
        x = self.model.embed_tokens(input_ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Linear(width, width)

    def forward(self, x):
        # Causal, like attention: a token sees those before it, and never the padding after it.
        past = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device).reshape(1, -1, 1)
        return x + self.mlp(past).tanh()


def decoder(layers=4):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Decoder(layers).eval()


class _Device(nn.Module):
    """What the compiler makes of it: captures are further outputs, by the device's own rules."""

    def __init__(self, model, modules, tp_degree, padding):
        super().__init__()
        self.model, self.modules_, self.tp, self.padding = model, modules, tp_degree, padding

    def forward(self, input_ids):
        seen = {}
        paths = {to_hf(name): name for name in self.modules_}
        handles = [
            module.register_forward_hook(lambda m, args, out, path=path: seen.__setitem__(path, out.clone()))
            for path, module in self.model.named_modules()
            if path in paths
        ]
        logits = self.model(input_ids)
        for handle in handles:
            handle.remove()
        found = []
        for path in paths:
            tensor = seen.get(path, torch.zeros(1, dtype=torch.bfloat16))
            # A layer inside a block is computed in parts, one on each rank.
            found.append(tensor[..., : tensor.shape[-1] // self.tp] if self.tp > 1 and path.endswith("mlp") else tensor)
        return (logits, *found, *(torch.full((1,), float("nan")) for _ in range(self.padding)))


class NeuronTinyForCausalLM(nn.Module):
    def __init__(self, model, neuron_config, folder, padding=2):
        super().__init__()
        self.neuron_config = neuron_config
        self.config = types.SimpleNamespace(num_hidden_layers=len(model.model.layers), hidden_size=8)
        capture = neuron_config.tensor_capture_config
        self._modules_to_capture = [] if capture is None else capture.modules_to_capture
        device = _Device(model, self._modules_to_capture, neuron_config.tp_degree, padding)
        with quiet():
            traced = torch.jit.trace(device, torch.zeros(1, BUCKET, dtype=torch.long), check_trace=False)
            traced.save(folder / "model.pt")
            loaded = torch.jit.load(folder / "model.pt")
        self.models = [types.SimpleNamespace(tag="context_encoding_model", model=loaded)]

    def forward(self, input_ids, attention_mask=None, position_ids=None, tensor_capture_hook=None):
        length = input_ids.shape[1]
        padded = torch.nn.functional.pad(input_ids, (0, BUCKET - length))
        logits, *captured = self.models[0].model(padded)
        config = self.neuron_config
        if config.tensor_capture_config is None or not config.output_logits or config.on_device_sampling_config is None:
            captured = None
        if tensor_capture_hook is not None and captured:
            tensor_capture_hook(self, captured)
        shown = logits[:, :length] if config.output_logits else None
        return types.SimpleNamespace(logits=shown, tokens=logits[:, length - 1].argmax(-1))


def ids(seed, length=11):
    return torch.randint(1, 64, (1, length), generator=torch.Generator().manual_seed(seed))
