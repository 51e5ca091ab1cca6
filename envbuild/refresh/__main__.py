"""`python -m envbuild.refresh > profiles/tensorflow.toml`."""

import sys

from envbuild.errors import EnvbuildError
from envbuild.lock.settings import read_settings
from envbuild.refresh.index import Index
from envbuild.refresh.tensorflow import refresh_tensorflow


def main() -> int:
    """Write the profile to stdout, or what went wrong to stderr."""
    try:
        with Index.open(read_settings()) as index:
            text = refresh_tensorflow(index, report=lambda line: sys.stderr.write(f"{line}\n"))
            sys.stdout.write(text)
    except EnvbuildError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
