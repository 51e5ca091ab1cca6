"""The command line of the standalone file."""

from __future__ import annotations

import argparse
import sys

from envbuild.capture.reading import manifest_text
from envbuild.capture.record import capture


def main(arguments: list[str] | None = None) -> int:
    """Print the manifest, or write it to --out."""
    parser = argparse.ArgumentParser(description="Record this Python environment as a training manifest (JSON).")
    parser.add_argument("--out", metavar="FILE", help="write the manifest here instead of printing it")
    parser.add_argument("--model", metavar="URI", help="where the trained model lies")
    parser.add_argument(
        "--variable", metavar="NAME", action="append", default=[], help="also record this environment variable"
    )
    options = parser.parse_args(arguments)
    try:
        manifest = capture(options.model, options.out, options.variable, process="fresh")
    except OSError as error:
        sys.stderr.write("capture: the manifest cannot be written: %s\n" % error)
        return 1
    if options.out is None:
        sys.stdout.write(manifest_text(manifest))
    return 0
