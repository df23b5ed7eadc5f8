"""Where the work of an analysis is done: in this process, or by the workers of a Ray cluster.

engine     `Engine`: a function over many items, in order, in this process; `open_engine`, which chooses one
over_ray   `RayEngine`: the same with Ray core tasks; the only file that knows Ray
"""

from layertap.engine.engine import IN_PROCESS, Engine, EngineChoice, Recipe, open_engine

__all__ = ["IN_PROCESS", "Engine", "EngineChoice", "Recipe", "open_engine"]
