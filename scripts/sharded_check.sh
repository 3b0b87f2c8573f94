#!/usr/bin/env bash
# A deep model in shards, from training to a translation: 2 processes, --ddp-backend fully_sharded, activation
# checkpointing, a checkpoint in files of both; the weights each file holds; resumed on 1 process to its end; exported to
# fairseq's own transformer; translated from the export. Prints a line a step, ends with 1 at the first that fails.
#
#   scripts/sharded_check.sh [DEPTH] [OUT]     default 500 layers in each stack, width 64, in ./sharded_check
#
# Hardware: 2 CPU cores and 8 GB of memory. Time: about ten minutes at 500 layers, a minute at 6.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/sharded_check.sh
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit ;; esac
depth="${1:-500}" out="$(realpath -m -- "${2:-sharded_check}")"
[[ "$depth" =~ ^[1-9][0-9]*$ ]] || { echo "sharded_check: DEPTH $depth is no whole number above 0" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
export OMP_NUM_THREADS=1
mkdir -p "$out"
[ -f "$out/data/dict.qaa.txt" ] || {
    deepnet corpus "$out/text" --nouns 20 --verbs 10 >"$out/data.log"
    deepnet prepare-text qaa qab "$out/text/train" "$out/text/valid" "$out/text/test" "$out/data" --vocab 200 >>"$out/data.log"
}

train() {  # train NAME FLAGS...
    local name="$1" begun="$SECONDS"
    shift
    fairseq-train "$out/data" --user-dir deepnet_fairseq --cpu --arch deepnet_transformer_tiny \
        --encoder-layers "$depth" --decoder-layers "$depth" --share-all-embeddings --dropout 0.0 --checkpoint-activations \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' \
        --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 10 --warmup-init-lr 1e-7 --max-tokens 300 \
        --save-dir "$out/run" --no-epoch-checkpoints --disable-validation --num-workers 0 --log-format json \
        --log-interval 1 "$@" >"$out/$name.log" 2>&1 || { tail -n 3 "$out/$name.log" >&2; exit 1; }
    python - "$out/$name.log" "$name" $((SECONDS - begun)) <<'PY'
import json, re, sys

rows = [json.loads(row) for row in re.findall(r"train_inner \| (\{.*\})", open(sys.argv[1]).read())]
print(f"{sys.argv[2]}: updates {rows[0]['num_updates']} to {rows[-1]['num_updates']}, loss {rows[0]['loss']} to "
      f"{rows[-1]['loss']}, {sys.argv[3]} s")
PY
}

rm -rf "$out/run"
train trained_by_two --distributed-world-size 2 --ddp-backend fully_sharded --use-sharded-state --max-update 10
for file in "$out"/run/shards_10/*.pt; do
    echo "$(basename "$file"): $(du -k "$file" | cut -f 1) kB of weights and Adam's state"
done
train resumed_on_one --update-freq 2 --max-update 14
deepnet export "$out/run/checkpoint_last.pt" --to transformer --out "$out/plain.pt" >"$out/export.log"
echo "exported: $(du -k "$out/plain.pt" | cut -f 1) kB"
head -n 4 "$out/text/test.qaa" | fairseq-interactive "$out/data" --path "$out/plain.pt" --cpu --beam 2 --max-len-b 10 \
    --user-dir deepnet_fairseq >"$out/translated.log" 2>"$out/translated.err" || { tail -n 3 "$out/translated.err" >&2; exit 1; }
echo "translated: $(grep -c '^H-' "$out/translated.log") sentences"
