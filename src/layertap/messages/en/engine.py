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
    "engine.failed": "{name}: {why} (raised by a Ray worker)",
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
    "engine.not_started": "Ray did not start on {address}: {why}",
    "engine.run_changed": "{name} was written to while it was compared; compare again when nothing writes to it",
    "engine.the_sources": "what the workers need",
    "engine.this_machine": "this machine",
    "engine.unknown": "engine={engine!r} is unknown; known are {known}",
    "engine.unreachable": "no Ray cluster answers at {address} ({why}); `ray status` on its machine shows the address",
    "engine.versions": "layertap is {here} here and {there} on a Ray worker; install the same version on both",
    "engine.workers": "workers={workers}: expected at least 1",
}
