"""English: the messages of layertap.engine."""

MESSAGES = {
    "engine.address": "address={address!r} is for engine='ray' (--engine ray); give both, or neither",
    "engine.already": (
        "address={address!r}: this program is connected to a Ray already; call ray.shutdown() first, or leave the "
        "address out to use that one"
    ),
    "engine.bad_address": "{address!r} is not the address of a Ray cluster; expected HOST:PORT, or auto",
    "engine.cannot_run": (
        "{name}: a Ray worker cannot run it: {why}; the workers need the same layertap and torch as this program"
    ),
    "engine.closed": "this engine is not open; use it in a with block: with RayEngine() as engine: ...",
    "engine.device": (
        "the model is on {device}, and Ray workers compute on the processor; move it there, or leave engine= out"
    ),
    "engine.failed": "{name}: {why} (raised by a Ray worker)",
    "engine.fingerprints": "fingerprints are taken in this process; leave --engine out",
    "engine.in_memory": (
        "{name} is in memory, where Ray workers cannot read it; give its folder or file, or leave engine= out"
    ),
    "engine.in_worker": "{name}, in a Ray worker:\n{trace}",
    "engine.live_weights": (
        "{name} is in this process, where Ray workers cannot read it; save it and give its path, or leave engine= out"
    ),
    "engine.lost": "{name}: the Ray workers that worked on it were lost, {retries} retries included: {kind}: {why}",
    "engine.needs_ray": "engine='ray' needs Ray; install it with: pip install 'layertap[ray]'",
    "engine.not_sent": "{name} cannot be sent to a Ray worker: {why}",
    "engine.not_shared": (
        "{folder}: {name}, which a Ray worker wrote there, is not here; the workers need the same folder"
    ),
    "engine.not_started": "Ray did not start on {address}: {why}",
    "engine.other_model": (
        "the model that a Ray worker made is not this one: {count} tensors differ, {name} among them; build= must give "
        "the same weights each time"
    ),
    "engine.run_changed": "{name} was written to while it was compared; compare again when nothing writes to it",
    "engine.scan": "--engine is for --scan; a model is pruned in this process",
    "engine.the_sources": "what the workers need",
    "engine.this_machine": "this machine",
    "engine.trainings": "two watched trainings are compared by their statistics in this process; leave --engine out",
    "engine.unknown": "engine={engine!r} is unknown; known are {known}",
    "engine.unreachable": "no Ray cluster answers at {address} ({why}); `ray status` on its machine shows the address",
    "engine.versions": "layertap is {here} here and {there} on a Ray worker; install the same version on both",
    "engine.workers": "workers={workers}: expected at least 1",
}
