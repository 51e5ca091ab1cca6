"""Capture: the running interpreter's environment as a training manifest.

Standard library only, on Python 3.7 and later, since `script()` joins these modules to one file that runs anywhere.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from envbuild.capture.script import script

__all__ = ["capture", "golden_sample", "keras_callback", "script"]

if TYPE_CHECKING:
    from envbuild.capture.golden import golden_sample
    from envbuild.capture.record import capture, keras_callback
else:

    def _lazy(module: str, name: str) -> Any:
        """Return a function whose module is imported at the first call: every command imports this, few capture."""

        def call(*args: Any, **options: Any) -> Any:
            return getattr(import_module(module), name)(*args, **options)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = "Call `%s.%s`, which documents the arguments." % (module, name)
        return call

    capture = _lazy("envbuild.capture.record", "capture")
    golden_sample = _lazy("envbuild.capture.golden", "golden_sample")
    keras_callback = _lazy("envbuild.capture.record", "keras_callback")
