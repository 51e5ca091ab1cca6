"""Capture: the running interpreter's environment as a training manifest."""

from pathlib import Path

from envbuild.capture.capture import capture

SCRIPT = Path(__file__).with_name("capture.py")
"""The same thing as one file that any Python from 3.7 on can run alone."""

__all__ = ["SCRIPT", "capture"]
