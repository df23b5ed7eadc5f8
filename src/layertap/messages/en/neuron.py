"""English: the messages of layertap.neuron."""

MESSAGES = {
    "neuron.all_padding": "rank 0 has the first {size} positions of the bucket, which are all padding",
    "neuron.async_mode": "async_mode: captures cannot be assigned to calls; layertap refuses such an app",
    "neuron.async_on": (
        "async_mode is on: a call starts the next one in advance, so captures cannot be assigned to "
        "calls; compile with async_mode=False"
    ),
    "neuron.bucketing": "bucketing is on: only the first bucket's captures are real, the others are placeholders",
    "neuron.by_hand": "{count} tensors were registered by hand in the model's source; they have no site",
    "neuron.captures_nothing": "{name} was not compiled to capture anything",
    "neuron.experts": (
        "experts: under tensor parallelism their output is rank 0's summand; capture the block around them instead"
    ),
    "neuron.first_output": (
        "Neuron: only a module's first output tensor is captured; what else it returned cannot be seen"
    ),
    "neuron.fixed": "what an app captures is fixed when it is compiled: neuron.prepare(neuron_config, sites) first",
    "neuron.fused_kernels": (
        "fused kernels are on: a module whose weights a kernel uses is not called and gives a placeholder"
    ),
    "neuron.fused_residual": (
        "qkv_kernel_fuse_residual_add: of a prompt, a layer's capture is its MLP's output, not the hidden states"
    ),
    "neuron.hidden_states": (
        "{count} of the {count2} hidden states were not captured: {missing}; the captured ones are in "
        "neuron.run(app, inputs).run, by name. All are captured with prepare(…, "
        "record_layer_outputs=True)"
    ),
    "neuron.its_input": "its input",
    "neuron.its_output": "its output",
    "neuron.last_token": "the last token only: the device computes no other here",
    "neuron.later": (
        "qkv_kernel_fuse_residual_add moves a layer's last addition to the next layer's kernel, so the "
        "device never has {what} in one tensor; compile without it to capture the hidden states"
    ),
    "neuron.layer_outputs": "record_layer_outputs=True needs num_layers=, the number of decoder layers",
    "neuron.lm_head": "lm_head: of a prompt, the device computes only the last token",
    "neuron.needs_layers": "sites: {text!r} needs num_layers= (or model=, a Hugging Face model)",
    "neuron.needs_nxdi": (
        "prepare needs NxD Inference (neuronx-distributed-inference), from Neuron's own package index: "
        "pip install neuronx-distributed-inference --extra-index-url with the address that AWS's setup "
        "guide gives"
    ),
    "neuron.no_call": (
        "no call of an app has been observed yet: call layertap.targets.neuron.open_app(app) once, then run it"
    ),
    "neuron.no_hooks": (
        "{name}.models[0].model is a {name2} without layers: it accepts no hooks, and only its outputs are visible"
    ),
    "neuron.no_logits": (
        "logits: None. With sampling on the device the model returns tokens, and logits only if it was "
        "compiled with output_logits=True together with an OnDeviceSamplingConfig; "
        "layertap.targets.neuron.prepare sets both"
    ),
    "neuron.no_tensor": "no tensor came for it: the compiled model captures fewer modules than are listed",
    "neuron.none_ran": "{name} was called, but none of its compiled models ran",
    "neuron.not_an_app": (
        "{name} is not an app of NxD Inference: expected models, a list of ModelWrapper, and {ENDS}; "
        "every call passes through them, and without them a capture could belong to an earlier call"
    ),
    "neuron.not_asked": "not requested",
    "neuron.nothing": (
        "the device returned no captures. They are None, without any error, unless the model was "
        "compiled with tensor_capture_config, output_logits=True and an on_device_sampling_config "
        "together: layertap.targets.neuron.prepare(neuron_config, sites) sets all three; then compile "
        "again"
    ),
    "neuron.one_binary": (
        "the compiled model is one binary (a ScriptModule without layers); only what it was configured "
        "to capture is visible"
    ),
    "neuron.only_lists": "sites: {text!r}: without model= only lists of numbers are understood, as [0,30,61]",
    "neuron.other_models": (
        "{name} has other compiled models than when it was opened, and their calls were not seen: "
        "neuron.release(app), then open it again"
    ),
    "neuron.padded": "padded to {size} tokens, cut to the true {true}",
    "neuron.padding": "NaN padding: nothing was captured at this position",
    "neuron.placeholder": (
        "a placeholder, zeros(1): the module was not called (is its name right? does a fused kernel use "
        "its weights?), or this bucket was compiled after the first, and only the first has captures"
    ),
    "neuron.plan": "{count} modules will be captured; compile now: they are part of the compiled model",
    "neuron.plan_nothing": "nothing to capture: the configuration is as it was, and costs nothing",
    "neuron.qkv": "queries, keys and values in one tensor, whose widths are not known",
    "neuron.sampling_on": "on-device sampling was off; it was turned on, since captures are None without it",
    "neuron.sequence_parallel": (
        "sequence_parallel_enabled: of a prompt, only rank 0's tokens are captured in the residual stream"
    ),
    "neuron.shape_nothing": "{shape}. {nothing}",
    "neuron.shard": "rank 0's shard, 1 of {degree} along the last axis: {width} of {whole}",
    "neuron.summand": "rank 0's summand, 1 of {degree}: the experts' outputs are added up after this module",
    "neuron.tokens_of_rank": "rank 0's {here} of the {true} tokens, 1 of {tp_degree} (sequence parallelism)",
    "neuron.tp": "tp_degree is {degree}: a capture of a sharded tensor is rank 0's shard",
    "neuron.true_unknown": "{size} positions; which {true} of them are tokens is unknown",
    "neuron.unfinished": (
        "the app's last call did not end, so there are no captures of it; those of earlier calls are discarded"
    ),
}
