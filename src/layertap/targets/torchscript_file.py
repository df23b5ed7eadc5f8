"""The archive of a TorchScript file, for the one thing that torch's own writer gets wrong."""

from __future__ import annotations

import io
import re
from pathlib import Path

import torch

from layertap.errors import TargetError
from layertap.messages import tr


def with_output_type(archive: bytes, path: Path, qualified_name: str, output: str) -> None:
    """Writes an archive whose root `forward` returns `output`, and says so.

    A method's return type is kept beside its graph and written from there: a graph that was given another output is
    saved with the old annotation, and does not load. Only that annotation is changed.
    """
    reader = torch._C.PyTorchFileReader(io.BytesIO(archive))
    *package, name = qualified_name.split(".")
    code = f"code/{'/'.join(package)}.py"
    # Positions in that file's source, for error messages; they are off by the length of the annotation.
    dropped = f"{code}.debug_pkl"
    writer = torch._C.PyTorchFileWriter(str(path))
    for record in reader.get_all_records():
        if record == dropped or record in ("version", "byteorder") or record.startswith(".data/"):
            continue
        data = reader.get_record(record)
        if record == code:
            data = _annotated(data.decode(), name, output).encode()
        writer.write_record(record, data, len(data))
    writer.write_end_of_file()


def _annotated(source: str, name: str, output: str) -> str:
    """The source with another return type of that class's `forward`.

    >>> print(_annotated("class Net(Module):\\n  def forward(self: Net,\\n    x: Tensor) -> Tensor:\\n", "Net", "int"))
    class Net(Module):
      def forward(self: Net,
        x: Tensor) -> int:
    """
    start = re.search(rf"^class {re.escape(name)}\(", source, re.MULTILINE)
    found = start and re.compile(r"(^  def forward\(.*?\) -> )(.+?)(:$)", re.MULTILINE | re.DOTALL).search(
        source, start.end()
    )
    if not found:
        raise TargetError(tr("script.no_forward", name=name))
    return source[: found.start()] + found[1] + output + found[3] + source[found.end() :]
