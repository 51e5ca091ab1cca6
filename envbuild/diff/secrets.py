"""That two values differ, said without the secrets in them: images and records of other tools hold some."""

from collections.abc import Mapping
from typing import Any

from envbuild.capture.redact import REDACTED, hides_secret, scrub, scrub_command

SECRET, ANOTHER = "(secret)", "(another secret)"


class Hidden(str):
    """A text that is a secret whatever it looks like, as what follows `--password` in a command."""

    __slots__ = ()


def without_secrets(name: str, before: Any, after: Any, *, sure: bool) -> tuple[Any, Any]:
    """Return both values of what goes by a name as they may be shown, in which what differs differs still.

    `sure` is whether names such as `key` are of secrets, as those of variables are.
    """
    one, other = (redacted(name, it, sure=sure) for it in (before, after))
    if before == after or one != other:
        return _marked(one), _marked(other)
    # Without their secrets they are the same.
    first = SECRET if one != before or isinstance(before, Hidden) else one
    second = other if other == after and not isinstance(after, Hidden) else ANOTHER if first == SECRET else SECRET
    return first, second


def is_cut(name: str, before: Any, after: Any, *, sure: bool) -> bool:
    """Whether a secret was cut out of one of them when it was recorded, and nothing else tells them apart."""
    if not any(isinstance(it, str) and REDACTED in it for it in (before, after)):
        return False
    return bool(redacted(name, before, sure=sure) == redacted(name, after, sure=sure))


def redacted(name: str, value: Any, *, sure: bool) -> Any:
    """Return a value of JSON without its secrets; `name` is what it goes by, and tells whether it is one itself."""
    if isinstance(value, str):
        return REDACTED if isinstance(value, Hidden) or hides_secret(name, value, sure=sure) else scrub(value)
    if isinstance(value, Mapping):
        return {scrub(str(key)): redacted(str(key), inner, sure=sure) for key, inner in value.items()}
    if isinstance(value, list):
        words = all(isinstance(it, str) for it in value)
        return scrub_command(value) if words else [redacted(name, it, sure=sure) for it in value]
    return value


def _marked(value: Any) -> Any:
    return SECRET if value == REDACTED else value
