"""Golden samples: a few inputs and the model's outputs for them, which a later environment has to reproduce."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import math
import os
import re
import sys
from array import array
from typing import Any, List, Mapping, Tuple

from envbuild.capture.files import Facts
from envbuild.capture.formats import zip_content, zip_members
from envbuild.capture.gcs import Unread
from envbuild.capture.places import local_source
from envbuild.capture.redact import scrub_line

LARGEST_ARRAY = 1 << 20
"""Bytes of one array."""
MOST_ARRAYS = 1024
NPZ_MEMBER = re.compile(r"(?:inputs|outputs)(?:/.+)?\.npy")
NUMERIC = re.compile(r"bool|u?int\d+|b?float\d+\w*|complex\d+")
"""Types of numbers as NumPy and ml_dtypes name them."""
NPY_TYPE = re.compile(r"([<>|=]?)(?:([biufc])(\d{1,2})|U([1-9]\d{0,6}))")
"""`<f4`: byte order, kind and bytes, as .npy files have them; `<U3`: text of three characters."""
KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
PLAIN = (str, bool, int, float)
CONVERT = "convert it to text, numbers or booleans, in training too"
WIDE = "convert it to float or text, in training too"
EncodedArray = Tuple[str, List[int], bytes]
"""Type, shape, and the elements in C order: numbers in little endian, all else as a JSON list."""


def golden_sample(inputs: Any, outputs: Any, rtol: float = 1e-5, atol: float = 1e-6) -> Facts:
    """Encode a small batch of inputs and the model's outputs: each an array, or a dict or list of arrays.

    Arrays are NumPy's and what becomes one (tensors of TensorFlow, PyTorch and JAX), or lists, of numbers or text. The
    inputs may be a DataFrame of pandas, whose columns keep their names and types. Another environment agrees where
    |a - b| <= atol + rtol * |b|, and where text is equal. ValueError for other values and large arrays.
    """
    if not all(math.isfinite(value) and value >= 0 for value in (rtol, atol)):
        raise ValueError("golden sample: rtol and atol must be numbers from 0 on")
    columns = _columns(inputs)
    arrays = {"inputs": columns or _named_arrays("input", inputs), "outputs": _named_arrays("output", outputs)}
    _check_rows(**arrays)
    return dict(arrays, rtol=float(rtol), atol=float(atol), **{"table": True} if columns else {})


def golden_facts(golden: Any) -> Facts | None:
    """Take the golden sample of `capture(golden=...)` and `--golden`; ValueError for anything else."""
    if golden is None:
        return None
    if isinstance(golden, (str, os.PathLike)):
        return _from_npz(os.fspath(golden))
    if isinstance(golden, tuple) and len(golden) == 2:
        return golden_sample(*golden)
    if not isinstance(golden, Mapping) or not {"inputs", "outputs", "rtol", "atol"} <= set(golden):
        what = "give the result of golden_sample(), a pair (inputs, outputs), or the path of a .npz file"
        raise ValueError("golden sample: " + what)
    return dict(golden)


def _named_arrays(side: str, values: Any) -> list[Facts]:
    if isinstance(values, Mapping):
        items = sorted((str(name), value) for name, value in values.items())
    elif isinstance(values, (list, tuple)) and values and all(getattr(value, "shape", ()) for value in values):
        items = [(str(index), value) for index, value in enumerate(values)]
    else:
        items = [("", values)]
    _check_count(len(items))
    return [
        _array_facts(name, *_encoded("%s %r" % (side, name) if name else "the %ss" % side, value))
        for name, value in items
    ]


def _check_rows(inputs: list[Facts], outputs: list[Facts]) -> None:
    """Refuse the outputs of one row where each input has several; other models have rows of their own."""
    taken, given = ({it["shape"][0] if it["shape"] else 0 for it in those} for those in (inputs, outputs))
    rows = taken.pop()
    if rows > 1 and not taken and given == {1}:
        shapes = ", ".join(str(it["shape"]) for it in outputs[:5])
        what = "the inputs have %d rows, and the outputs the shape %s" % (rows, shapes)
        todo = "give the model's outputs for just these inputs; a single example is a batch of one: x[None]"
        raise ValueError("golden sample: %s: %s" % (what, todo))


def _check_count(count: int) -> None:
    if not 0 < count <= MOST_ARRAYS:
        raise ValueError("golden sample: inputs and outputs take 1 to %d arrays each" % MOST_ARRAYS)


def _columns(table: Any) -> list[Facts]:
    """Encode the columns of a DataFrame; none for anything else, and for numbers in columns without names."""
    pandas: Any = sys.modules.get("pandas")
    kind: Any = getattr(pandas, "DataFrame", ())
    if not isinstance(table, kind):
        return []
    names = list(table.columns)
    _check_count(len(names))
    if not all(isinstance(name, str) for name in names):
        if all(NUMERIC.fullmatch(str(dtype)) for dtype in table.dtypes):
            return []
        raise ValueError("golden sample: a table with text needs columns with names; name them, in training too")
    for name in names:
        if names.count(name) > 1:
            raise ValueError("golden sample: %d columns are named %r: rename them" % (names.count(name), name))
    return [_column_facts(pandas, name, table[name]) for name in names]


def _column_facts(pandas: Any, name: str, column: Any) -> Facts:
    """Encode a column with its type; what pandas would not read again as the same is refused."""
    what, dtype = "column %r" % name, str(column.dtype)
    if NUMERIC.fullmatch(dtype):
        return _array_facts(name, *_encoded(what, column))
    values, kind = _plain_values(what, dtype, column.tolist()), column.dtype
    facts = _array_facts(name, dtype, [len(values)], _json_list(what, values))
    if dtype == "category":
        kind = column.cat.categories
        dtype = "%scategory of %s" % ("ordered " if column.cat.ordered else "", kind.dtype)
        categories = _plain_values(what, dtype, kind.tolist())
        facts["categories"] = base64.b64encode(_json_list(what, categories)).decode("ascii")
        kind = pandas.CategoricalDtype(categories)
    try:  # as `table_of` of the golden check makes it
        again = pandas.Series(values, index=column.index, dtype=kind)
        same = again.equals(column)
    except (ValueError, TypeError):
        same = False
    if not same:
        raise ValueError("golden sample: %s has type %s, which cannot be recorded: %s" % (what, dtype, CONVERT))
    return facts


def _plain_values(what: str, dtype: str, items: list[Any]) -> list[Any]:
    """Return values of one kind as JSON has them, dates as text; ValueError for others, and for several kinds."""
    _check_size(what, 2 * len(items))
    values = []
    for item in items:
        value = item.item() if hasattr(item, "item") else item
        if type(value).__name__ in ("NAType", "NaTType"):
            value = None
        elif hasattr(value, "isoformat"):
            value = value.isoformat()
        elif isinstance(value, bytes):
            try:
                value = value.decode("utf-8")
            except UnicodeDecodeError:
                advice = "give numbers (uint8) or base64 text, in training too"
                raise ValueError("golden sample: %s holds bytes that are not UTF-8: %s" % (what, advice)) from None
        values.append(value)
    kinds = {type(value) for value in values if value is not None and value == value}  # noqa: PLR0124 - NaN is no kind
    names = sorted(kind.__name__ for kind in kinds)
    if not kinds <= set(PLAIN) or len(kinds) > 1:
        raise ValueError("golden sample: %s has type %s and holds %s: %s" % (what, dtype, ", ".join(names), CONVERT))
    if int in kinds and any(isinstance(value, int) and value.bit_length() > 64 for value in values):
        raise ValueError("golden sample: %s holds a number that takes more than 64 bits: %s" % (what, WIDE))
    return values


def _json_list(what: str, values: list[Any]) -> bytes:
    """Encode values; NaN is in it as Python reads and writes it."""
    data = json.dumps(values, separators=(",", ":")).encode("ascii")
    _check_size(what, len(data))
    return data


def _array_facts(name: str, dtype: str, shape: list[int], data: bytes) -> Facts:
    clean = scrub_line(name)
    if clean != name:
        what = "the name that begins with %r would be recorded as %s: rename it, in training too" % (name[:4], clean)
        raise ValueError("golden sample: " + what)
    return {
        "name": name,
        "dtype": dtype,
        "shape": shape,
        "data": base64.b64encode(data).decode("ascii"),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _encoded(what: str, value: Any) -> EncodedArray:
    if hasattr(value, "detach"):
        return _encoded_torch(what, value.detach().cpu())
    if hasattr(value, "numpy"):
        value = value.numpy()
    elif not hasattr(value, "dtype") and hasattr(value, "__array__"):
        value = value.__array__()
    if not hasattr(value, "dtype"):
        return _encoded_list(what, value)
    if not hasattr(value, "tobytes"):
        value = value.__array__()
    shape = [int(length) for length in value.shape]
    if value.dtype.str[1] in "OSTU":
        return "object", shape, _json_list(what, _plain_values(what, str(value.dtype), value.ravel().tolist()))
    _check_size(what, value.size * value.dtype.itemsize)
    if value.dtype.str[0] == ">" or (value.dtype.str[0] == "=" and sys.byteorder == "big"):
        value = value.astype(value.dtype.newbyteorder("<"))
    return _numeric(what, str(value.dtype.name)), shape, value.tobytes()


def _encoded_torch(what: str, tensor: Any) -> EncodedArray:
    dtype = str(tensor.dtype).rpartition(".")[2]
    if dtype == "bfloat16":
        # NumPy has no such type, and PyTorch no other way to its bytes.
        tensor = tensor.contiguous().view(sys.modules["torch"].int16)
    try:
        return (_numeric(what, dtype), *_encoded(what, tensor.numpy())[1:])
    except TypeError:
        raise ValueError("golden sample: %s has type %s, which NumPy does not have" % (what, dtype)) from None


def _encoded_list(what: str, value: Any) -> EncodedArray:
    """Encode nested lists as NumPy would: numbers as bool, int64 or float64."""
    shape: List[int] = []
    level = [value]
    while isinstance(level[0], (list, tuple)):
        lengths = {len(item) if isinstance(item, (list, tuple)) else -1 for item in level}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError("golden sample: %s has rows of different lengths, or none" % what)
        shape.append(lengths.pop())
        level = [item for row in level for item in row]
        _check_size(what, 8 * len(level))
    kinds = {type(item) for item in level}
    if str in kinds:
        return "object", shape, _json_list(what, _plain_values(what, "list", level))
    if kinds == {bool}:
        return "bool", shape, bytes(level)
    if not kinds <= {int, float}:
        raise ValueError("golden sample: %s is not an array of numbers or text" % what)
    try:
        data = array("d" if float in kinds else "q", level)
    except OverflowError:
        raise ValueError("golden sample: %s holds a number that takes more than 64 bits: %s" % (what, WIDE)) from None
    if sys.byteorder == "big":
        data.byteswap()
    return "float64" if float in kinds else "int64", shape, data.tobytes()


def _numeric(what: str, dtype: str) -> str:
    if not NUMERIC.fullmatch(dtype):
        raise ValueError("golden sample: %s has type %s; use numbers, booleans or text" % (what, dtype))
    return dtype


def _check_size(what: str, size: int) -> None:
    if size > LARGEST_ARRAY:
        raise ValueError("golden sample: %s has %d bytes, of at most %d: take fewer rows" % (what, size, LARGEST_ARRAY))


def _from_npz(path: str) -> Facts:
    """Read what numpy.savez wrote: members `inputs` or `inputs/NAME`, and `outputs` likewise."""
    found: dict[str, list[Facts]] = {"inputs": [], "outputs": []}
    try:
        source = local_source(path, path)
        members = {member.name: member for member in zip_members(source) if NPZ_MEMBER.fullmatch(member.name)}
        for name, member in sorted(members.items())[:MOST_ARRAYS]:
            side, _, key = name[: -len(".npy")].partition("/")
            found[side].append(_array_facts(key, *_npy_array(name, zip_content(source, member))))
    except Unread as error:
        raise ValueError("golden sample: %s: %s" % (path, error)) from None
    if not all(found.values()):
        raise ValueError("golden sample: %s needs members inputs or inputs/NAME, and outputs likewise" % path)
    _check_rows(**found)
    return dict(found, rtol=1e-5, atol=1e-6)


def _npy_array(name: str, content: bytes) -> EncodedArray:
    """Decode a .npy file (numpy.lib.format), whose header is a literal; objects are pickles and refused."""
    wide = content[6:7] != b"\1"
    start = 12 if wide else 10
    length = int.from_bytes(content[8:start], "little")
    try:
        header = ast.literal_eval(content[start : start + min(length, 4096)].decode("latin-1").strip())
        kind = NPY_TYPE.fullmatch(str(header["descr"]))
        shape = [int(size) for size in header["shape"]]
        fortran = bool(header["fortran_order"])
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise ValueError("golden sample: %s is not a .npy file" % name) from None
    if kind is None:
        raise ValueError("golden sample: %s has type %s; use numbers, or .astype(str)" % (name, header["descr"]))
    if fortran and len(shape) > 1:
        raise ValueError("golden sample: %s is in Fortran order: save numpy.ascontiguousarray of it" % name)
    data, width = content[start + length :], int(kind.group(3) or 4 * int(kind.group(4)))
    _check_size(name, len(data))
    # math.prod is younger than Python 3.7.
    count = 1
    for size in shape:
        count *= size
    if not content.startswith(b"\x93NUMPY") or min(shape, default=0) < 0 or count * width != len(data):
        raise ValueError("golden sample: %s is not a .npy file" % name)
    if kind.group(4):
        try:
            text = data.decode("utf-32-be" if kind.group(1) == ">" else "utf-32-le")
        except UnicodeDecodeError:
            raise ValueError("golden sample: %s is not a .npy file" % name) from None
        items = [text[at : at + width // 4].rstrip("\0") for at in range(0, len(text), width // 4)]
        return "object", shape, _json_list(name, items)
    dtype = KINDS[kind.group(2)] + (str(8 * width) if kind.group(2) != "b" else "")
    step = width // 2 if kind.group(2) == "c" else width
    if kind.group(1) == ">":
        data = b"".join(data[at : at + step][::-1] for at in range(0, len(data), step))
    return dtype, shape, data
