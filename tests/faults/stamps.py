"""Stamps under faults: `.venv/bin/python -m tests.faults.stamps [--schedules 1000] [--seed 0] [--jobs 8]`.

Each schedule lets up to eight stampers write on one model in a bucket, through Google's own client, while its seed
decides who goes on next, what goes wrong, and what others do to the model meanwhile. What must not be ends the program
with the schedule's seed.
"""

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.faults import stamped, stampers


def main() -> int:
    """Run schedules, and say what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--jobs", type=int, default=8, help="schedules at a time")
    options = parser.parse_args()
    os.environ.update(stampers.ENVIRONMENT)
    began, words, met = time.monotonic(), Counter[str](), Counter[str]()
    with ThreadPoolExecutor(options.jobs) as pool:
        seeds = range(options.seed, options.seed + options.schedules)
        for number, (site, ended) in enumerate(
            pool.map(lambda seed: stamped.check(seed, *stampers.run(seed)), seeds), 1
        ):
            words.update(it.word for it in ended)
            met.update(it.kind for it in site.gcs.met)
            if number % 100 == 0:
                print(f"{number} of {options.schedules} schedules", flush=True)
    print(f"{options.schedules} schedules, {sum(words.values())} stamps: {dict(words.most_common())}")
    print(f"{sum(met.values())} faults: {dict(met.most_common())}")
    print(f"{time.monotonic() - began:.0f} s, and nothing happened that must not")
    return 0


if __name__ == "__main__":
    sys.exit(main())
