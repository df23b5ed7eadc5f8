"""`make docs`: the API reference, from the docstrings of the public packages, into build/docs."""

import importlib
import pkgutil
import warnings
from pathlib import Path

import pdoc

import layertap

MODULES = [
    layertap,
    *(importlib.import_module(f"layertap.{info.name}") for info in pkgutil.iter_modules(layertap.__path__)),
]
PUBLIC = [module for module in MODULES if not module.__name__.startswith("layertap._")]

for module in PUBLIC:
    for name in getattr(module, "__all__", ()):
        setattr(module, name, getattr(module, name))  # some import a name when it is first used; pdoc only looks

warnings.simplefilter("error")  # a name that does not resolve, a link that leads nowhere
pdoc.render.configure(docformat="markdown", show_source=False)
pdoc.pdoc(*(module.__name__ for module in PUBLIC), output_directory=Path("build/docs"))
