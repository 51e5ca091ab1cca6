"""Capture: the running interpreter's environment as a training manifest.

Standard library only, on Python 3.7 and later, since `script()` joins these modules to the one file that runs anywhere.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from envbuild.capture.script import script

__all__ = ["capture", "golden_sample", "keras_callback", "script"]

if TYPE_CHECKING:
    from envbuild.capture.callback import keras_callback
    from envbuild.capture.golden import golden_sample
    from envbuild.capture.record import capture
else:

    def _late(module: str, name: str) -> Any:
        """Return a function that is imported when it is called: every command imports this, and few capture."""

        def late(*args: Any, **options: Any) -> Any:
            return getattr(import_module(module), name)(*args, **options)

        late.__name__ = late.__qualname__ = name
        late.__doc__ = "Call `%s.%s`, where its arguments are described." % (module, name)
        return late

    capture = _late("envbuild.capture.record", "capture")
    golden_sample = _late("envbuild.capture.golden", "golden_sample")
    keras_callback = _late("envbuild.capture.callback", "keras_callback")
