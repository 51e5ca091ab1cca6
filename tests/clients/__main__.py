"""`python -m tests.clients [SUBJECT ...]`: build the clients, run them, and print one table.

The exit code is 1 if a verdict is not the expected one. Go is needed, and some minutes for the first time.
"""

import sys
import tempfile
from pathlib import Path

from tests.clients import changes, signatures

SUBJECTS = {"signatures": signatures.rows, "changes": changes.rows}


def main(names: list[str]) -> int:
    failed = False
    print("|client|what|verdict|\n|---|---|---|", flush=True)
    for name in names or SUBJECTS:
        with tempfile.TemporaryDirectory(prefix="envbuild-clients-") as folder:
            for row in SUBJECTS[name](Path(folder)):
                failed |= not row.is_expected
                mark = "" if row.is_expected else " (not expected)"
                print(f"|{row.client}|{row.what}|{row.verdict}{mark}|", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
