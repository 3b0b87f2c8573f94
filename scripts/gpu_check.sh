#!/usr/bin/env bash
# What no CPU can prove: the tests marked gpu; 100L-100L of base width (736 M parameters) trained in fp16 and bf16, with
# deepnet_adam and adam; and the speed of a training step beside stock fairseq's.
#
#   scripts/gpu_check.sh [DATA] [OUT]   DATA: binarised text, e.g. of scripts/prepare_text.sh (default: an artificial
#                                       language); OUT: default gpu_check, where logs and tables lie afterwards
#   ONLY=bench scripts/gpu_check.sh     one of tests, train, bench: each is meant to take less than ten minutes
#
# Settings from the environment: MAX_TOKENS=4096 a batch, UPDATES=300, of which the first 100 do not count.
# Hardware: one GPU with 40 GB (less with MAX_TOKENS=1024); with two, training on several is tested too. Needs an
# environment with a CUDA build of torch (scripts/setup.sh makes one where it finds a GPU); an active environment with
# fairseq is used as it is. None of this has run on a GPU yet: docs/speed.md.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/gpu_check.sh
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit ;; esac
[[ "${ONLY:=tests train bench}" =~ ^(tests|train|bench)(\ (tests|train|bench))*$ ]] ||
    { echo "gpu_check: ONLY=$ONLY: there are tests, train, bench" >&2; exit 2; }
data="${1:+$(realpath "$1")}" out="$(realpath -m -- "${2:-gpu_check}")"
updates="${UPDATES:-300}"
[[ "$updates" =~ ^[0-9]+$ && "$updates" -ge 200 ]] ||
    { echo "gpu_check: UPDATES=$updates: give at least 200, the first 100 are for warming up" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v fairseq-train >/dev/null || source scripts/setup.sh
python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    { echo "gpu_check: torch sees no GPU here" >&2; exit 1; }
mkdir -p "$out"
wanted() { [[ " $ONLY " == *" $1 "* ]]; }

if wanted tests; then
    echo "== tests on the GPU"
    grep -lE "mark\.gpu" tests/test_*.py | xargs python -m pytest -m gpu
fi

train() {  # NAME FLAGS...
    local name=$1 && shift
    echo "== 100L-100L base, $*"
    fairseq-train "$data" --user-dir deepnet_fairseq --arch deepnet_transformer_100_100 --share-all-embeddings \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1 \
        --adam-betas '(0.9, 0.98)' --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 \
        --warmup-init-lr 1e-7 --max-tokens "${MAX_TOKENS:-4096}" --max-update "$updates" \
        --no-save --disable-validation \
        --log-format json --log-interval 20 "$@" >"$out/$name.log" 2>&1 ||
        { tail -n 5 "$out/$name.log" >&2; exit 1; }
    python - "$out/$name.log" "$updates" <<'PY'
import json, math, re, statistics, sys

import torch

rows = [json.loads(row) for row in re.findall(r"train_inner \| (\{.*\})", open(sys.argv[1]).read())]
losses = [float(row["loss"]) for row in rows]
speed = statistics.median(float(row["wps"]) for row in rows if int(row["num_updates"]) > 100)
assert int(rows[-1]["num_updates"]) > int(sys.argv[2]) - 20 and all(map(math.isfinite, losses)), losses
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: loss {losses[0]:.2f} -> {losses[-1]:.2f}, "
      f"{speed:,.0f} target tokens/s (median after 100 updates)")
PY
}

if wanted train; then
    if [ -z "$data" ]; then
        data="$out/data"
        if [ ! -f "$data/dict.qaa.txt" ]; then
            echo "== 20,000 sentence pairs of an artificial language"
            deepnet prepare language "$out/text"
            deepnet prepare text qaa qab "$out/text/train" "$out/text/valid" "$out/text/test" "$data" --vocab 1000
        fi
    fi
    train fp16 --fp16 --optimizer deepnet_adam
    train fp16-adam --fp16 --optimizer adam
    train bf16 --bf16 --optimizer deepnet_adam
fi

if wanted bench; then
    echo "== a training step beside stock fairseq's"
    python -m benchmarks speed --device cuda --precision fp16 --max-tokens 4096 --depths 18-18,100-100 --widths base \
        --only train --candidates ours,stock --variant adam="--optimizer adam" | tee "$out/bench.md"
fi
