"""What test_device_way.py runs in a process of its own, on a device that is none: `python … NAME FOLDER`."""

import json
import os
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).parents[1])]
from capture import fake_device  # noqa: E402

LAYERS, STEPS = 20, 100
X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


def model(layers=LAYERS):
    torch.manual_seed(0)
    pairs = ([nn.Linear(64, 64), nn.ReLU(inplace=True)] for _ in range(layers // 2))
    return nn.Sequential(*(layer for pair in pairs for layer in pair)).requires_grad_(False)


def counts(driver, folder):
    """The same work with few layers and with many."""
    from layertap.capture import gathering, sink, writer_thread

    gathering.AGE = sink.AGE = writer_thread.AGE = 3600.0
    return [counted(driver, Path(folder, str(layers)), layers) for layers in (LAYERS, 3 * LAYERS)]


def counted(driver, folder, layers):
    """Python calls, hand-overs, copies and writes of a hundred steps of which every tensor is kept."""
    import layertap as lt

    calls, writes, net = Counter(), Counter(), model(layers)
    own = {name: getattr(os, name) for name in ("write", "writev")}
    for name, write in own.items():
        setattr(os, name, partial(lambda write, *given: writes.update(["all"]) or write(*given), write))

    def seen(frame, event, argument):
        if event == "call" and "/layertap/" in frame.f_code.co_filename:
            calls[threading.current_thread().name] += 1

    def totals():
        return {"records": rec.sink.taken, "handed": rec.sink.hand_overs} | {
            name: fake_device.number(driver, name) for name in ("to_host", "on_device")
        }

    with lt.record(net, folder, sites="*", keep="tensor") as rec:
        net(X)
        rec.step()
        rec.flush()
        before = totals()
        writes.clear()
        rec.after(lambda: sys.setprofile(seen))
        sys.setprofile(seen)
        for _ in range(STEPS):
            net(X)
        sys.setprofile(None)
        calling = calls["MainThread"]
        rec.after(lambda: sys.setprofile(None))
        rec.flush()
        after = totals()
    for name, write in own.items():
        setattr(os, name, write)
    return {name: after[name] - before[name] for name in after} | {
        "calling": calling,
        "writer": calls["layertap-writer"],
        "writes": writes["all"],
        "complete": rec.receipt.complete,
    }


def values(driver, folder):
    """Whether what is recorded is what the modules returned, before the next one overwrote it."""
    import layertap as lt
    from layertap.measure import measure

    net, expected = model(), {}
    x = X
    for name, layer in net.named_children():
        x = layer(x.clone())
        expected[name] = x.clone()
    with lt.record(net, folder, sites="*", keep="tensor") as rec:
        for _ in range(3):
            net(X)
            rec.step()
    run = lt.Run(folder)
    wrong = [
        name
        for name, found in expected.items()
        for one in (run[name].at(step=step) for step in range(3))
        if not torch.equal(one.tensor(), found) or one.record.fingerprint != measure(found).fingerprint
    ]
    return {"wrong": wrong, "sites": len(run.sites), "complete": rec.receipt.complete}


def fetched(driver, folder):
    """Whether bytes arrive whole in every number of halves of the ring, none of which is filled before it is empty."""
    from layertap.capture import cuda

    sizes = (1, 63, 64, 65, 127, 128, 129, 192, 1000, 4096)
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    copier = cuda.HostCopier()
    wrong = [len(tensor) for tensor in 2 * tensors if not torch.equal(copier.fetch(tensor, fake_device.READY), tensor)]
    return {"wrong": wrong, "overwritten": fake_device.number(driver, "overwritten")}


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    torch.set_num_threads(1)
    driver = fake_device.load(folder)
    fake_device.install(chunk=64 if name == "fetched" else 1 << 20)
    print(json.dumps({"counts": counts, "values": values, "fetched": fetched}[name](driver, Path(folder, "run"))))
