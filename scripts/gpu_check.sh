#!/usr/bin/env bash
# What no CPU can prove: the tests marked gpu, then 100L-100L base width (736 M parameters), 200 updates each, in fp16 and
# bf16 and with compiled layers: finite losses, and tokens/s.
#
#   scripts/gpu_check.sh DATA [OUT]     DATA: binarised text, e.g. of scripts/prepare_text.sh; OUT: default gpu_check
#
# Hardware: one GPU with 40 GB (less with MAX_TOKENS=1024); with two, training on several is tested too. Needs an
# environment with a CUDA build of torch (scripts/setup.sh makes one where it finds a GPU); an active environment with
# fairseq is used as it is.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/gpu_check.sh
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
data="$(realpath "$1")" out="$(realpath "${2:-gpu_check}")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v fairseq-train >/dev/null || source scripts/setup.sh
python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    { echo "gpu_check: torch sees no GPU here" >&2; exit 1; }
mkdir -p "$out"

echo "== tests on the GPU"
python -m pytest -m gpu tests/test_gpu.py

train() {  # NAME FLAGS...
    local name=$1 && shift
    echo "== 100L-100L base, $*"
    fairseq-train "$data" --user-dir deepnet_fairseq --arch deepnet_transformer_100_100 --share-all-embeddings \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 \
        --warmup-init-lr 1e-7 --max-tokens "${MAX_TOKENS:-4096}" --max-update 200 --no-save --disable-validation \
        --log-format json --log-interval 20 "$@" >"$out/$name.log" 2>&1 ||
        { tail -n 5 "$out/$name.log" >&2; exit 1; }
    python - "$out/$name.log" <<'PY'
import json, math, re, statistics, sys

import torch

rows = [json.loads(row) for row in re.findall(r"train_inner \| (\{.*\})", open(sys.argv[1]).read())]
losses = [float(row["loss"]) for row in rows]
speed = statistics.median(float(row["wps"]) for row in rows[1:])
assert rows[-1]["num_updates"] == "200" and all(map(math.isfinite, losses)), losses
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: loss {losses[0]:.2f} -> {losses[-1]:.2f}, "
      f"{speed:,.0f} target tokens/s (median)")
PY
}

for precision in fp16 bf16; do
    train "$precision" "--$precision"
done
train compiled --bf16 --compile-layers
