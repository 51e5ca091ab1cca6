"""The kinds of values that a manifest holds, with what msgspec checks and writes into the JSON Schema."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta
from packaging.version import VERSION_PATTERN

_ONE_LINE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*"
"""No control characters, line ends or halves of characters (Cc, Zl, Zp, Cs)."""

AnyText = Annotated[str, Meta(pattern=r"\A[^\x00\ud800-\udfff]*\Z", title="Unicode text")]
"""Whatever a variable can hold: line ends too."""
Line = Annotated[str, Meta(pattern=rf"\A{_ONE_LINE}\Z", title="line without control characters")]
"""One line without control characters."""
Address = Annotated[
    str,
    # A capture cuts passwords; whoever wrote one by hand must not find it copied beside the model.
    Meta(
        pattern=rf"\A(?!.*://[^/\s:]*:[^/]*@){_ONE_LINE}\Z",
        title="URL or path on one line without a password",
        extra={"secret": True},
    ),
]
"""A URL or remote without a password."""
Name = Annotated[
    str,
    Meta(pattern=r"\A[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z", max_length=200, title="distribution name"),
]
"""A distribution's name."""
Version = Annotated[str, Meta(pattern=rf"(?aix)\A{VERSION_PATTERN}\Z", max_length=200, title="version (PEP 440)")]
"""A version (PEP 440), the local label kept."""
VariantLabel = Annotated[str, Meta(pattern=r"\A[0-9a-z_.]+\Z", title="label of a wheel variant (PEP 825)")]
"""What distinguishes the wheel variants of a release: `cu128`."""
PythonVersion = Annotated[
    str,
    Meta(
        pattern=r"\A[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}((a|b|rc)[0-9]{1,4})?\+?\Z",
        title="exact Python version such as 3.11.7",
    ),
]
"""An interpreter's exact version."""
Numbers = Annotated[str, Meta(pattern=r"\A[0-9]+(\.[0-9]+)*\Z", title="version in numbers with dots")]
"""Numbers with dots: `12.5.1`."""
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""RFC 3339, with a time zone; `read_manifest` checks it."""
VariableName = Annotated[
    str, Meta(pattern=r"\A[^= \x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+\Z", title="name of a variable")
]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", title="SHA-256 digest")]
Sha1 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{40}\Z", title="SHA-1 digest")]
Base64 = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9+/]*={0,2}\Z", title="base64 text")]
SchemaVersion = Annotated[str, Meta(pattern=r"\A1\.[0-9]{1,9}\Z", title="schema version")]
Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, le=1.7976931348623157e308)]
"""A finite number that is not negative, kept as it is written: 0 or 0.0."""

if TYPE_CHECKING:
    Pairs = tuple[tuple[str, str], ...]
else:

    class Pairs(tuple):
        """Names and texts: an object in JSON, and sorted pairs in memory."""

        __slots__ = ()
        json_type = dict[VariableName, AnyText]
