"""What a pickle says of itself: protocol, classes, versions. Its opcodes are read, and nothing of it is ever run."""

from __future__ import annotations

import importlib
import re
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Set

from envbuild.capture.formats import UBJSON_TAIL, ubjson_version
from envbuild.capture.gcs import Unread
from envbuild.capture.places import LONGEST_TEXT, RangeReader, short_text

LZ4 = b"\x04\x22\x4d\x18"
"""How a stream of LZ4 begins; the standard library cannot unpack it."""
_MOST_OPCODES = 3000000
_MOST_KEPT = 1000000
_MOST_CLASSES = 200
_MOST_NESTED = 10
_MOST_BYTES = 1 << 30
_PIECE = 1 << 16
_ARRAYS = ("joblib.numpy_pickle.NumpyArrayWrapper", "sklearn.externals.joblib.numpy_pickle.NumpyArrayWrapper")
"""After the state of such an object joblib writes the array's own bytes (joblib/numpy_pickle.py)."""
_DTYPE = re.compile(r"[<>|=]?([A-Za-z])(\d+)")
_LIBRARIES = {"_sklearn_version": "scikit-learn"}
"""Attributes in which a library's objects keep the version that wrote them."""

_SINCE = {
    ("joblib.numpy_pickle.NumpyArrayWrapper", "numpy_array_alignment_bytes"): ("joblib", "1.2"),
    ("lightgbm.basic.Booster", "_handle"): ("lightgbm", "4.0"),
}
"""From which release of its library on a class has an attribute; older ones do not load what has it."""
_CODE = {15: "<3.8", 16: ">=3.8,<3.11", 18: ">=3.11"}
"""Of which Python code objects with so many arguments are, as cloudpickle writes them; others do not load them."""


class PickleFacts(NamedTuple):
    """What the opcodes say."""

    protocol: int
    classes: List[str]
    """Classes and functions by their full name, sorted."""
    versions: Dict[str, str]
    """The version of each library that its objects state."""
    details: Dict[str, str]
    """The lowest release of a library that has the attributes of its objects; `python`: that of code objects.

    `columns` is `named` where a ColumnTransformer was fitted on a table.
    """
    unread: Optional[str] = None
    """Why it was not read to its end."""


def read_pickle(source: RangeReader) -> PickleFacts:
    """Read the opcodes of a pickle, of joblib's too, compressed or not; Unread for other data."""
    reader, unread = _Opcodes(_PickleBytes(source)), None
    try:
        reader.read()
    except Unread as error:
        if not reader.classes:
            raise
        unread = str(error)
    return PickleFacts(reader.protocol, sorted(reader.classes), reader.versions, reader.details, unread)


class _PickleBytes:
    """The bytes of a pickle, one after the other, unpacked where joblib has compressed them."""

    def __init__(self, source: RangeReader) -> None:
        self._source, self._at, self._left = source, 0, _MOST_BYTES
        self._data, self._start = b"", 0
        self._unpack: Any = _decompressor(source.head(6))

    def read(self, length: int) -> bytes:
        """Return exactly these bytes; Unread where there are fewer."""
        while len(self._data) - self._start < length:
            self._data, self._start = self._data[self._start :] + self._next(), 0
        self._start += length
        return self._data[self._start - length : self._start]

    def line(self) -> bytes:
        """Return what stands before the next line feed."""
        while self._data.find(b"\n", self._start) < 0:
            if len(self._data) - self._start > _PIECE:
                raise Unread("a line in it is too long")
            self._data, self._start = self._data[self._start :] + self._next(), 0
        return self.read(self._data.index(b"\n", self._start) + 1 - self._start)[:-1]

    def skip(self, length: int) -> None:
        """Go on behind these bytes, without reading them where they are not compressed."""
        while length > len(self._data) - self._start:
            length -= len(self._data) - self._start
            self._data, self._start = b"", 0
            if self._unpack is None:
                self._at, length = self._at + length, 0
                if self._at > self._source.size:
                    raise Unread("it is cut short")
            else:
                self._data = self._next()
        self._start += length

    def _next(self) -> bytes:
        data = b""
        while not data:
            if self._unpack is not None and self._unpack.eof:
                raise Unread("it is cut short")
            length = min(_PIECE, self._source.size - self._at)
            waits = self._unpack is None or getattr(self._unpack, "needs_input", True)
            if waits and not length:
                raise Unread("it is cut short")
            piece = self._source.at(self._at, length) if waits else b""
            self._at += len(piece)
            if self._unpack is None:
                return piece
            try:
                data = self._unpack.decompress(piece, _PIECE * 16)
            except Exception:  # each library has errors of its own
                raise Unread("its compression is damaged") from None
            self._left -= len(data)
            if self._left < 0:
                raise Unread("it unpacks to more than %d MiB" % (_MOST_BYTES >> 20))
        return data


class _Inflate:
    """zlib's decompressor with the interface of those of bz2 and lzma."""

    def __init__(self) -> None:
        self._zlib, self.eof, self.needs_input = zlib.decompressobj(zlib.MAX_WBITS | 32), False, True

    def decompress(self, data: bytes, limit: int) -> bytes:
        """Unpack at most `limit` bytes."""
        found = self._zlib.decompress(self._zlib.unconsumed_tail + data, limit)
        self.eof, self.needs_input = self._zlib.eof, not self._zlib.unconsumed_tail
        return found


def _decompressor(head: bytes) -> Any:
    """Return what unpacks a stream that begins so (joblib/compressor.py); None where it is not compressed."""
    if head.startswith(b"\x1f\x8b") or re.match(rb"x[\x01\x5e\x9c\xda]", head):
        return _Inflate()
    try:
        if head.startswith(b"BZ"):
            return importlib.import_module("bz2").BZ2Decompressor()
        if head.startswith((b"\xfd7zXZ", b"\x5d\x00")):
            return importlib.import_module("lzma").LZMADecompressor()
    except ImportError as error:  # of a Python that was built without the library
        raise Unread("it is compressed, and this Python cannot unpack it: %s" % error) from None
    return None


class _Object:
    """A value that is no text, number or tuple: of which class it is, and its state where that is a dict."""

    def __init__(self, name: str = "", arguments: Any = None) -> None:
        self.name, self.arguments = name, arguments
        self.state: Dict[str, Any] = {}


_MARK = _Object("mark")
_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"}


class _Opcodes:
    """A machine that follows the opcodes with stand-ins for all objects; see Lib/pickletools.py for their meaning."""

    def __init__(self, stream: _PickleBytes, nested: int = 0) -> None:
        self._stream, self._nested = stream, nested
        self._stack: List[Any] = []
        self._memo: Dict[int, Any] = {}
        self._count = 0
        # Imported here, as few captures meet a pickle.
        self._tools = importlib.import_module("pickletools")
        self._opcodes = {opcode.code: opcode for opcode in self._tools.opcodes}
        self.protocol = 0
        self.classes: Set[str] = set()
        self.versions: Dict[str, str] = {}
        self.details: Dict[str, str] = {}

    def read(self) -> None:
        """Follow the opcodes up to the end of the pickle; Unread for what is none."""
        while True:
            opcode = self._opcodes.get(self._stream.read(1).decode("latin-1"))
            self._count += 1
            if opcode is None:
                raise Unread("it is not a pickle, or damaged")
            if self._count > _MOST_OPCODES or len(self._stack) + len(self._memo) > _MOST_KEPT:
                raise Unread("it has more objects than are read here")
            if opcode.name == "STOP":
                return
            try:
                self._follow(opcode, self._argument(opcode))
            except (IndexError, KeyError, ValueError, UnicodeDecodeError):
                raise Unread("it is not a pickle, or damaged") from None

    def _argument(self, opcode: Any) -> Any:
        """Read an opcode's argument: a number or a text; other bytes are passed over."""
        if opcode.arg is None:
            return None
        length, stream = opcode.arg.n, self._stream
        if length == self._tools.UP_TO_NEWLINE:
            line = stream.line().decode("utf-8", "replace")
            return (line, stream.line().decode("utf-8", "replace")) if opcode.name in ("GLOBAL", "INST") else line
        if length >= 0:
            data = stream.read(length)
            return int.from_bytes(data, "little", signed=opcode.name == "BININT")
        width = {self._tools.TAKEN_FROM_ARGUMENT1: 1, self._tools.TAKEN_FROM_ARGUMENT8U: 8}.get(length, 4)
        length = int.from_bytes(stream.read(width), "little")
        if length > LONGEST_TEXT or "BYTE" in opcode.name:
            stream.skip(max(0, length - UBJSON_TAIL))
            self._look(stream.read(min(length, UBJSON_TAIL)))
            return None
        data = stream.read(length)
        return int.from_bytes(data, "little", signed=True) if "LONG" in opcode.name else data.decode("utf-8", "replace")

    def _look(self, tail: bytes) -> None:
        """Look for the version at the end of XGBoost's own format, which its Booster keeps as bytes."""
        version = ubjson_version(tail)
        if version:
            self.versions.setdefault("xgboost", version)

    def _follow(self, opcode: Any, argument: Any) -> None:
        name, stack = opcode.name, self._stack
        if name in _TEXTS:
            stack.append(argument if name != "STRING" else argument.strip("'\""))
        elif name in _NUMBERS:
            stack.append(int(argument.rstrip("L")) if isinstance(argument, str) else argument)
        elif name in ("PROTO", "FRAME"):
            self.protocol = max(self.protocol, argument) if name == "PROTO" else self.protocol
        elif "PUT" in name or name == "MEMOIZE":
            self._memo[len(self._memo) if argument is None else int(argument)] = stack[-1]
        elif "GET" in name:
            stack.append(self._memo[int(argument)])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            self._change(opcode, argument)

    def _change(self, opcode: Any, argument: Any) -> None:
        """Follow an opcode that takes values off the stack."""
        name, stack = opcode.name, self._stack
        taken = self._take(opcode)
        if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            path = argument or taken[:2]
            if not all(isinstance(it, str) for it in path):
                raise ValueError
            stack.append(self._class(".".join(path)))
        elif "TUPLE" in name:
            stack.append(tuple(taken))
        elif name in ("REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ"):
            instance = taken[0] if taken and isinstance(taken[0], _Object) else _Object()
            arguments = taken[1] if len(taken) > 1 else None
            if instance.name.endswith("._builtin_type") and isinstance(arguments, tuple) and len(arguments) in _CODE:
                self.details["python"] = _CODE[len(arguments)]
            stack.append(_Object(instance.name, arguments))
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            items = taken if name == "DICT" else taken[1:]
            found = _Object() if name == "DICT" else taken[0]
            pairs = ((items[at], items[at + 1]) for at in range(0, len(items) - 1, 2))
            self._set(found, {key: value for key, value in pairs if isinstance(key, str)})
            stack.append(found)
        elif name == "BUILD":
            instance, state = taken
            if isinstance(instance, _Object) and isinstance(state, _Object):
                self._set(instance, state.state)
            stack.append(instance)
            if isinstance(instance, _Object) and instance.name in _ARRAYS:
                self._pass_array(instance.state)
        else:
            kept = taken[:1] if name in ("APPEND", "APPENDS", "ADDITEMS") else []
            stack.extend(kept or [_Object() for _ in opcode.stack_after])

    def _take(self, opcode: Any) -> List[Any]:
        """Take off the stack what the opcode needs, without the mark."""
        before, stack = opcode.stack_before, self._stack
        if self._tools.markobject not in before:
            if len(stack) < len(before):
                raise IndexError
            taken = stack[len(stack) - len(before) :] if before else []
            del stack[len(stack) - len(taken) :]
            return taken
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError
        first = before.index(self._tools.markobject)
        taken = stack[at - first : at] + stack[at + 1 :]
        del stack[at - first :]
        return taken

    def _class(self, name: str) -> _Object:
        if len(self.classes) < _MOST_CLASSES:
            self.classes.add(short_text(name) or "")
        return _Object(name)

    def _set(self, found: Any, items: Dict[str, Any]) -> None:
        """Give a stand-in the attributes that matter here."""
        for key, value in items.items():
            if key in _LIBRARIES and isinstance(value, str):
                self.versions.setdefault(_LIBRARIES[key], short_text(value) or "")
            if isinstance(found, _Object) and len(found.state) < 100:
                found.state[key] = value
                self.details.update([_SINCE[found.name, key]] if (found.name, key) in _SINCE else [])
                if key == "feature_names_in_" and found.name.endswith(".ColumnTransformer"):
                    self.details["columns"] = "named"

    def _pass_array(self, state: Dict[str, Any]) -> None:
        """Go on behind an array: bytes behind a padding, or, of objects, a pickle of its own."""
        dtype, shape = state.get("dtype"), state.get("shape")
        arguments = dtype.arguments if isinstance(dtype, _Object) else None
        code = arguments[0] if isinstance(arguments, tuple) and arguments else None
        kind = _DTYPE.fullmatch(code) if isinstance(code, str) else None
        if kind is None or not isinstance(shape, tuple) or not all(isinstance(it, int) and it >= 0 for it in shape):
            raise Unread("it has an array of a kind that is not read here")
        if kind.group(1) == "O":
            if self._nested == _MOST_NESTED:
                raise Unread("its arrays lie too deep in each other")
            inner = _Opcodes(self._stream, self._nested + 1)
            inner.read()
            self.classes |= inner.classes
            self.versions = dict(inner.versions, **self.versions)
            return
        size = int(kind.group(2)) * (4 if kind.group(1) == "U" else 1)
        for length in shape:
            size *= length
        if isinstance(state.get("numpy_array_alignment_bytes"), int):
            self._stream.skip(self._stream.read(1)[0])
        self._stream.skip(size)
