"""Values from outside are read in any thread."""

import subprocess
import sys

FIRST_READ_BY_EIGHT_THREADS = """
import sys, threading
from dataclasses import make_dataclass
from envbuild.validation import read_values
sys.setswitchinterval(1e-6)
options = {"frozen": True, "slots": True, "kw_only": True}
value = {f"b{at}": [{f"a{at}": "x" for at in range(12)}] for at in range(12)}
right = []
for number in range(60):
    inner = make_dataclass(f"Inner{number}", [(f"a{at}", str | None, None) for at in range(12)], **options)
    outer = make_dataclass(f"Outer{number}", [(f"b{at}", tuple[inner, ...], ()) for at in range(12)], **options)
    start = threading.Barrier(8)
    def read(kind=outer):
        start.wait()
        right.append(read_values(value, kind).b3[0].a5 == "x")
    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
sys.exit(0 if right == [True] * 480 else 1)
"""


def test_a_type_that_several_threads_read_first_is_read_by_all():
    """Without the lock msgspec 0.22.0 ends the process by a segmentation fault: `deploy-check` in 1 of 50 runs."""
    done = subprocess.run([sys.executable, "-c", FIRST_READ_BY_EIGHT_THREADS], check=False)
    assert done.returncode == 0
