"""Capture: the running interpreter's environment as a training manifest.

Standard library only, on Python 3.7 and later, since `script()` joins these modules to the one file that runs anywhere.
"""

from envbuild.capture.callback import keras_callback
from envbuild.capture.golden import golden_sample
from envbuild.capture.record import capture
from envbuild.capture.script import script

__all__ = ["capture", "golden_sample", "keras_callback", "script"]
