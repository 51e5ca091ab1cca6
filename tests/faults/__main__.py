"""Faults on purpose: `.venv/bin/python -m tests.faults [--runs 200] [--kills 100] [--seed 0]`.

Each run pushes an image to a real registry through a proxy in which things go wrong, as its seed decides; each kill ends
a build at a random moment. What must not happen ends the program with its seed.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from tests.e2e.services import running_registry
from tests.faults import kills, pushes
from tests.faults.site import Site, make_site


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=0, help="pushes through the proxy")
    parser.add_argument("--kills", type=int, default=0, help="builds that are killed")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="envbuild-faults-") as name, running_registry() as registry:
        site = make_site(Path(name))
        push(site.image(), Reference(registry.host, pushes.MOUNTED, "v1"), retry=pushes.RETRY)
        began = time.monotonic()
        if options.runs:
            _pushes(range(options.seed, options.seed + options.runs), site, registry.host)
        if options.kills:
            _kills(options.seed, options.kills, site, registry.host)
        print(f"{time.monotonic() - began:.0f} s, and nothing happened that must not")
    return 0


def _pushes(seeds: range, site: Site, host: str) -> None:
    ended = []
    for seed in seeds:
        ended.append(pushes.run(seed, site, host))
        if len(ended) % 25 == 0:
            print(f"{len(ended)} of {len(seeds)} pushes", flush=True)
    kinds = Counter(fault.partition(":")[0] for it in ended for fault in it.faults)
    right, late = sum(it.right for it in ended), sum(it.late for it in ended)
    print(f"{len(ended)} pushes: {right} right, {len(ended) - right} with a clear error ({late} of them tagged right)")
    print(f"{sum(it.by == 'command' for it in ended)} by the command line; {sum(kinds.values())} faults: {dict(kinds)}")


def _kills(first: int, wanted: int, site: Site, host: str) -> None:
    """Go on until so many were killed: one that ends before its moment comes does not count."""
    killed: list[kills.Killed] = []
    seeds, within = itertools.count(first), kills.typical(site)
    while sum(not it.finished for it in killed) < wanted:
        killed.append(kills.run(next(seeds), site, host, within))
        within = min(within, killed[-1].next_took)
        if len(killed) % 25 == 0:
            print(f"{len(killed)} builds", flush=True)
    checked, ended = sum(it.checked for it in killed), sum(it.finished for it in killed)
    print(f"{wanted} builds killed, {ended} more had ended before; {checked} files of caches held against their names")


if __name__ == "__main__":
    sys.exit(main())
