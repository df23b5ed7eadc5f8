"""Do taps survive the compiler? Every route from a model to something compiled, tried with baked taps.

    python -m benchmarks.routes [--model qwen3] [--only inductor,onnx]

routes.py builds each artefact, fresh.py runs it in a process of its own (without torch where the format allows it),
__main__.py prints the table.
"""
