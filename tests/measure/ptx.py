"""What the kernels' lines of PTX do, by numpy: triton's interpreter knows none.

A thread is a row of the tensors that go in, thirty-two rows are a warp, and the columns are instances of the assembly:
the layout that the kernels count on, and tests/measure/test_gpu_compile.py finds in what triton makes of them.
"""

from __future__ import annotations

import ctypes
import re

import numpy as np

WIDE = np.uint64


def teach(interpreter):
    """Has triton's interpreter run inline assembly. Returns a list, which grows by what has been run."""
    done = []

    def create_inline_asm(builder, text, constraints, values, types, pure, pack):
        done.append(text)
        return _Run(interpreter.TensorHandle, text, constraints, values, types, pack)

    interpreter.InterpreterBuilder.create_inline_asm = create_inline_asm
    return done


def quicken(interpreter):
    """Has triton's interpreter reduce several tensors at once by halves; it goes through them one by one."""

    def reduce_by_halves(self, given):
        parts = [one.handle.data for one in given]
        kinds = [one.handle.dtype for one in given]
        assert self.axis == 0
        assert all(part.ndim == 1 for part in parts)
        while len(parts[0]) > 1:
            half = len(parts[0]) // 2
            sides = [
                self.to_tensor(part[at : at + half], kind)
                for at in (0, half)
                for part, kind in zip(parts, kinds, strict=True)
            ]
            parts = [one.handle.data for one in self.combine_fn.fn(*sides)]
        return [self.to_tensor(part[0], kind) for part, kind in zip(parts, kinds, strict=True)]

    interpreter.ReduceOps.generic_reduce = reduce_by_halves


class _Run:
    def __init__(self, handle, text, constraints, values, types, pack):
        shape = np.broadcast_shapes(*(value.data.shape for value in values))
        self.shape = shape
        instances = shape[1] // pack if len(shape) > 1 else 1
        registers = {}
        number = len(types) * pack
        for at, value in enumerate(values):
            data = np.ascontiguousarray(np.broadcast_to(value.data, shape)).reshape(shape[0], instances, pack)
            for part in range(pack):
                bits = data[:, :, part].view(f"u{data.itemsize}").reshape(-1, 32, instances)
                registers[f"${number + at * pack + part}"] = bits
        _execute(text, registers)
        self.results = []
        for at, kind in enumerate(types):
            parts = [registers[f"${at * pack + part}"].reshape(shape[0], instances) for part in range(pack)]
            size = np.dtype(np.uint64 if constraints.split(",")[at * pack] == "=l" else np.uint32)
            whole = np.stack([part.astype(size, copy=False) for part in parts], axis=-1).reshape(shape)
            self.results.append(_as(handle, whole, kind))

    def get_result(self, at):
        return self.results[at]


def _as(handle, bits, kind):
    while hasattr(kind, "element_ty"):
        kind = kind.element_ty
    names = {"fp32": np.float32, "int32": np.int32, "uint32": np.uint32, "uint64": np.uint64}
    return handle(np.ascontiguousarray(bits).view(names[str(kind)]), kind)


def _execute(text, registers):
    text = text.strip()
    if text.startswith("{ .reg"):
        text = text[1 : text.rindex("}")]
    for line in filter(None, map(str.strip, text.split(";"))):
        if not line.startswith(".reg"):
            opcode, rest = line.split(" ", 1)
            if opcode.startswith("ld."):
                targets, address = re.fullmatch(r"\{(.*)\}, \[(.*)\]", rest).groups()
                _load(targets.split(", "), registers[address], registers)
                continue
            _step(opcode, [_operand(word) for word in re.findall(r"\{[^}]*\}|[^,\s]+", rest)], registers)


readable = range(0)
"""The addresses that inline assembly may read: of the tensor that is measured."""


def _load(targets, addresses, registers):
    """Reads as many neighbouring words of four bytes as there are targets, at once, as a chip does."""
    size = 4 * len(targets)
    assert not (addresses % np.uint64(size)).any(), "misaligned"
    assert int(addresses.min()) in readable, "read before the tensor"
    assert int(addresses.max()) + size - 1 in readable, "read behind the tensor"
    for at, target in enumerate(targets):
        words = [ctypes.c_uint32.from_address(int(address) + 4 * at).value for address in addresses.flat]
        registers[target] = np.array(words, np.uint32).reshape(addresses.shape)


def _operand(word):
    return [part.strip() for part in word.strip("{}").split(",")] if word[0] == "{" else word


def _step(opcode, operands, registers):
    def get(word):
        if isinstance(word, list):
            return [get(part) for part in word]
        if word in registers:
            return registers[word]
        if word == "%laneid":
            return np.arange(32, dtype=np.uint32)[None, :, None]
        return np.uint32(int(word.replace("0f", "0x"), 16) if word.startswith(("0x", "0f")) else int(word) % 2**32)

    target, *sources = operands
    name, *kinds = opcode.split(".")
    given = [get(word) for word in sources]
    if name == "mov" and isinstance(target, list):
        size = 16 if kinds == ["b32"] else 32
        made = [(given[0] >> given[0].dtype.type(size * i)).astype(f"u{size // 8}") for i in range(2)]
    elif name == "mov" and kinds == ["b64"]:
        made = given[0][0].astype(WIDE) | given[0][1].astype(WIDE) << WIDE(32)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            made = _PLAIN[name](kinds, given, registers)
    for word, value in zip(target, made, strict=True) if isinstance(target, list) else [(target, made)]:
        registers[word] = value


def _mad(kinds, given, registers):
    a, b, c = (np.asarray(one).astype(WIDE) for one in given)
    if "cc" in kinds:
        total = ((a * b) & WIDE(0xFFFFFFFF)) + c
        registers["carry"] = total >> WIDE(32)
        return total.astype(np.uint32)
    return (((a * b) >> WIDE(32)) + c + registers["carry"]).astype(np.uint32)


def _lop3(kinds, given, registers):
    *given, table = given
    made = np.uint32(0)
    for case in range(8):
        if int(table) >> case & 1:
            term = np.uint32(0xFFFFFFFF)
            for bit, one in zip((4, 2, 1), given, strict=True):
                term = term & (one if case & bit else ~one)
            made = made | term
    return made


def _prmt(kinds, given, registers):
    a, b, select = given
    both = np.asarray(a).astype(WIDE) | np.asarray(b).astype(WIDE) << WIDE(32)
    made = WIDE(0)
    for at in range(4):
        nibble = int(select) >> 4 * at & 15
        byte = both >> WIDE(8 * (nibble & 7)) & WIDE(255)
        made = made | (byte >> WIDE(7)) * WIDE(255 if nibble & 8 else 0) << WIDE(8 * at)
        made = made | (WIDE(0) if nibble & 8 else byte) << WIDE(8 * at)
    return made.astype(np.uint32)


def _shfl(kinds, given, registers):
    value, source, _, _ = given
    source = np.broadcast_to(source, value.shape).astype(np.int64)
    return np.take_along_axis(value, source, axis=1)


def _halves(bits, kind):
    """Both numbers of a register, the lower first."""
    bits = np.asarray(bits)
    parts = [(bits & np.uint32(0xFFFF)).astype(np.uint16), (bits >> np.uint32(16)).astype(np.uint16)]
    if kind in ("s16x2", "u16x2"):
        return [part.view(np.int16) if kind == "s16x2" else part for part in parts]
    if kind.startswith("bf16"):
        return [(part.astype(np.uint32) << np.uint32(16)).view(np.float32) for part in parts]
    return [part.view(np.float16).astype(np.float32) for part in parts]


def _packed(parts, kind):
    if kind.startswith("bf16"):
        found = [(part.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16) for part in parts]
    elif kind.startswith("f16"):
        found = [part.astype(np.float16).view(np.uint16) for part in parts]
    else:
        found = [part.view(np.uint16) for part in parts]
    return found[0].astype(np.uint32) | found[1].astype(np.uint32) << np.uint32(16)


def _pairwise(function):
    """Bits for the larger or smaller of each half: min and max pass a number over where the other is NaN."""

    def made(kinds, given, registers):
        kind = kinds[-1]
        pairs = zip(*(_halves(one, kind) for one in given), strict=True)
        return _packed([function(*pair) for pair in pairs], kind)

    return made


def _is_equal(kinds, given, registers):
    """All ones in each half where the two are equal."""
    assert kinds[:2] == ["eq", "u32"]
    lower, upper = (a == b for a, b in zip(*(_halves(one, kinds[2]) for one in given), strict=True))
    return np.where(lower, np.uint32(0xFFFF), np.uint32(0)) | np.where(upper, np.uint32(0xFFFF0000), np.uint32(0))


def _dp4a(kinds, given, registers):
    *factors, total = given
    parts = [
        np.ascontiguousarray(np.broadcast_to(one, total.shape)).view("i1" if kind == "s32" else "u1").astype(np.int64)
        for one, kind in zip(factors, kinds, strict=True)
    ]
    products = (parts[0] * parts[1]).reshape(*total.shape, 4).sum(axis=-1)
    return (total.astype(np.int64) + products).astype(np.uint32)


def _dp2a(kinds, given, registers):
    """Two of sixteen bits times two of eight, the lower or the upper two of the four."""
    pairs, bytes_, total = given
    made = total.astype(WIDE)
    for at in range(2):
        place = at + (2 if kinds[0] == "hi" else 0)
        one = pairs >> np.uint32(16 * at) & np.uint32(0xFFFF)
        made = made + one.astype(WIDE) * (bytes_ >> np.uint32(8 * place) & np.uint32(0xFF)).astype(WIDE)
    return made.astype(np.uint32)


def _vabsdiff4(kinds, given, registers):
    one, other, total = given
    parts = [
        np.ascontiguousarray(np.broadcast_to(each, total.shape)).view("i1").astype(np.int64) for each in (one, other)
    ]
    assert kinds[1:] == ["s32", "s32", "add"]
    return (total + np.abs(parts[0] - parts[1]).reshape(*total.shape, 4).sum(axis=-1)).astype(np.uint32)


def _float8(kinds, given, registers):
    parts = [given[0] & np.uint16(255), given[0] >> np.uint16(8)]
    if kinds[-1] == "e5m2x2":
        return _packed([(part << np.uint16(8)).view(np.float16) for part in parts], "f16x2")
    found = []
    for part in parts:
        half = ((part & np.uint16(0x80)) << np.uint16(8)) | ((part & np.uint16(0x7F)) << np.uint16(7))
        value = half.view(np.float16).astype(np.float32) * np.float32(256)
        found.append(np.where(part & np.uint16(0x7F) == 0x7F, np.float32("nan"), value))
    return _packed(found, "f16x2")


_PLAIN = {
    "mov": lambda kinds, given, registers: given[0],
    "add": lambda kinds, given, registers: (
        (given[0] + given[1]).astype(np.uint32) if kinds == ["u32"] else _pairwise(np.add)(kinds, given, registers)
    ),
    "and": lambda kinds, given, registers: given[0] & given[1],
    "xor": lambda kinds, given, registers: given[0] ^ given[1],
    "shl": lambda kinds, given, registers: given[0] << given[1],
    "shr": lambda kinds, given, registers: given[0] >> given[1],
    "setp": lambda kinds, given, registers: given[0] != given[1],
    "selp": lambda kinds, given, registers: np.where(given[2], given[0], given[1]),
    "set": _is_equal,
    "min": _pairwise(np.fmin),
    "max": _pairwise(np.fmax),
    "mad": _mad,
    "madc": _mad,
    "lop3": _lop3,
    "prmt": _prmt,
    "shfl": _shfl,
    "dp4a": _dp4a,
    "dp2a": _dp2a,
    "vabsdiff4": _vabsdiff4,
    "abs": lambda kinds, given, registers: given[0] & np.uint32(0x7FFF7FFF),
    "cvt": lambda kinds, given, registers: (
        given[0].view(np.float16).astype(np.float32).view(np.uint32)
        if kinds == ["f32", "f16"]
        else _float8(kinds, given, registers)
    ),
}
