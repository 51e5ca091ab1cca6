#!/usr/bin/env bash
# From nothing to an image and a stamped model: sets envbuild up, trains a small model with TensorFlow, captures the
# training environment, builds its image (no Docker, no registry, no cloud account) and stamps the digest on the model.
# Everything lands in .work; a second run reuses what is there. Progress on stderr; the last line of stdout is the digest.
set -euo pipefail
cd "$(dirname "$0")/.."

work=.work
said=0

say() { printf '%s\n' "$*" >&2; }

step() {
  said=$((said + 1))
  say ""
  say "[$said/5] $*"
}

# The base's interpreter and the run's have to be of one minor version, so the machine's Python decides the suite.
choose() {
  python=$(find_python 3.11) && tensorflow=2.15.1 suite=bookworm && return
  python=$(find_python 3.13) && tensorflow=2.20.0 suite=trixie && return
  say "a CPython 3.11 (Debian 12) or 3.13 (Debian 13) is needed to train with; as root: apt-get install python3"
  exit 17
}

find_python() {
  if [ -x "/usr/bin/python$1" ]; then
    echo "/usr/bin/python$1"
  else
    .venv/bin/uv python find -q --no-python-downloads --system "cpython@$1" 2>/dev/null
  fi
}

make_environment() {
  local wanted="$python tensorflow-cpu==$tensorflow"
  if [ "$(cat "$work/train/.made-of" 2>/dev/null)" = "$wanted" ]; then return; fi
  rm -rf "$work/train"
  .venv/bin/uv venv -q --no-python-downloads --python "$python" "$work/train"
  .venv/bin/uv pip install -q --python "$work/train/bin/python" "tensorflow-cpu==$tensorflow" pip >&2
  printf '%s\n' "$wanted" >"$work/train/.made-of"
}

# The expected predictions are written last: where they are, training came to its end.
train() {
  local done="$work/model-expected.json"
  if [ "$done" -nt "$work/train/.made-of" ] && [ "$done" -nt examples/train.py ]; then return; fi
  rm -rf "$work/model" "$done"
  "$work/train/bin/python" examples/train.py "$work/model" >&2
}

# A manifest belongs to one run: a model that was not trained again keeps its own.
capture() {
  if [ "$work/manifest.json" -nt "$work/model-expected.json" ]; then return; fi
  .venv/bin/envbuild capture --python "$work/train/bin/python" --model "$work/model" \
    --golden "$work/model-expected.npz" --out "$work/manifest.json" >&2
}

step "Setting envbuild up in .venv"
bash tests/setup.sh run >&2
choose

step "Making the training environment in $work/train: TensorFlow $tensorflow (300 MB to download), $python"
make_environment

step "Training a small model, in $work/model"
train

step "Capturing the training environment: $work/manifest.json"
capture

step "Building its image from debian:$suite in $work/image, and stamping the model"
image=$(.venv/bin/envbuild from-manifest "$work/manifest.json" --base "debian:$suite" --out "$work/image" --stamp "$work/model")

say ""
say "The model now says which environment it needs, in $work/model/envbuild/pointer.json:"
say "$(cat "$work/model/envbuild/pointer.json")"
say ""
say "Done in $SECONDS s. What to try next:"
say "  .venv/bin/envbuild from-manifest $work/manifest.json --base debian:$suite --dry-run  # each decision and its reason"
say "  .venv/bin/envbuild from-manifest $work/manifest.json --base debian:$suite --push HOST/REPO/IMAGE --stamp $work/model"
say "  .venv/bin/envbuild local $work/model --venv $work/env --golden  # the same environment here, and its predictions compared"
say "  .venv/bin/envbuild serve $work/model --server fastapi --embed-model --out $work/serving  # the image that serves it"
say "  $work/train/bin/python examples/predict.py $work/model     # the same predictions, to the last bit"
printf '%s\n' "$image"
