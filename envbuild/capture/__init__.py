"""Capture: the running interpreter's environment as a training manifest.

Standard library only, on Python 3.7 and later, since `script()` joins these modules to the one file that runs anywhere.
"""

from envbuild.capture.record import capture
from envbuild.capture.script import script

__all__ = ["capture", "script"]
