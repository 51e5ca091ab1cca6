#!/usr/bin/env bash
# Writes uv.lock anew. The index that uv used is replaced by a neutral name, as the lock must serve every mirror:
# tests/setup.sh takes names, versions and hashes from it, and the index from the machine's own settings.
set -euo pipefail
cd "$(dirname "$0")/../.."
uv lock "$@"
sed -i -E 's#registry = "https?://[^"]+"#registry = "https://index.invalid/simple"#; s#url = "https?://[^/"]+/#url = "https://files.invalid/#' uv.lock
