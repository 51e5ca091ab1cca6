"""Serve the model: `python serve.py`, from any folder."""  # noqa: INP001 - a program, beside its package

import os
import sys

from serving.main import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A model that still loads, or a prediction that was given up, must not hold the process.
    os._exit(code)
