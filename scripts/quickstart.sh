#!/usr/bin/env bash
# The main job on the embedded corpus: the same deep model trained twice, with DeepNorm and as vanilla Post-LN, on the
# same data with the same seed, budget and hyper-parameters; then translated, scored with sacreBLEU and compared.
#
#   scripts/quickstart.sh [--methods deepnorm,post_ln] [--depth 18] [--updates N] [--seed 1] [--out quickstart]
#
# Any methods, with commas between; `deepnet methods` lists them. One that learns no more than how often each word occurs
# is stopped after a third of the updates.
# Hardware: 2 CPU cores. Time: under 10 minutes after set-up. A second call skips what is done and resumes what is not.
# Ends with a table and OUT/loss.png.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/quickstart.sh
set -euo pipefail
start="$PWD"
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."

methods=deepnorm,post_ln depth=18 updates=1200 seed=1 out=quickstart
usage() { sed -n '2,10s/^# \{0,1\}//p' scripts/quickstart.sh; }
while [ $# -gt 0 ]; do
    case "$1" in
        --methods | --depth | --updates | --seed | --out)
            [ $# -ge 2 ] || { echo "quickstart: $1 needs a value" >&2; exit 2; }
            printf -v "${1#--}" %s "$2"
            [ "$1" != --out ] || out="$(cd "$start" && realpath -m -- "$out")"
            shift 2 ;;
        -h | --help) usage; exit ;;
        *) echo "quickstart: unknown option $1; --help lists them" >&2; exit 2 ;;
    esac
done

[[ "$updates" =~ ^[0-9]+$ && "$updates" -ge 25 ]] ||
    { echo "quickstart: --updates $updates: give at least 25, the log has a line every 25" >&2; exit 2; }
[[ "$start" -ef . || "$out" == /* ]] || out="$PWD/$out"  # shown to somebody who is elsewhere
source scripts/setup.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(nproc)}"
data="$out/data" runs=()
method_flags="$(deepnet methods --flags "$methods")"
mkdir -p "$out" 2>/dev/null && [ -w "$out" ] ||
    { echo "quickstart: --out $out: not yours to write; name another folder" >&2; exit 1; }

step() { echo; echo "== $*"; }

if [ ! -f "$data/dict.qaa.txt" ]; then
    step "corpus: 20,000 sentence pairs of an artificial language"
    deepnet corpus "$out/text" --nouns 60 --verbs 30
    deepnet prepare-text qaa qab "$out/text/train" "$out/text/valid" "$out/text/test" "$data" --vocab 1000
fi

train() {  # train RUN METHOD_FLAGS...: resumes from RUN/checkpoint_last.pt if there is one
    local run="$1"
    shift
    fairseq-train "$data" --user-dir deepnet_fairseq \
        --arch deepnet_transformer_18_18 --encoder-layers "$depth" --decoder-layers "$depth" \
        --encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-attention-heads 2 \
        "$@" --share-all-embeddings --dropout 0.0 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' \
        --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 200 --warmup-init-lr 1e-7 \
        --max-tokens 1000 --max-update "$updates" --seed "$seed" \
        --save-dir "$run" --no-epoch-checkpoints --save-interval-updates 200 --keep-interval-updates 1 \
        --validate-interval 999 --validate-interval-updates 100 --max-tokens-valid 4000 --stop-stuck 300 \
        --num-workers 0 --log-format json --log-interval 25 --cpu 2>&1 |
        tee -a "$run/train.log" | progress
}

progress() {  # one line a hundred updates, and errors
    local line pattern='"loss": "([0-9.]+)".*"num_updates": "([0-9]+00)"'
    while IFS= read -r line; do
        if [[ "$line" == *"| train_inner |"* && "$line" =~ $pattern ]]; then
            echo "   update ${BASH_REMATCH[2]} of $updates, loss ${BASH_REMATCH[1]}"
        elif [[ "$line" == *"error: "* || "$line" == *"Error: "* ]]; then
            echo "   $line"
        fi
    done
}

while read -r -u 3 _ method more; do  # "--method NAME" and what else its training needs
    run="$out/${depth}L-${depth}L-$updates-updates-seed$seed/$method"
    runs+=("$run")
    mkdir -p "$run"
    if [ ! -f "$run/trained" ]; then
        step "training $depth-$depth $method, $updates updates"
        [ -f "$run/checkpoint_last.pt" ] || rm -f "$run/train.log"
        [ -f "$run/environment.json" ] || deepnet environment --gpus 0 >"$run/environment.json"
        echo "{\"method\": \"$method\", \"encoder_layers\": $depth, \"decoder_layers\": $depth, \"seed\": $seed," \
            "\"experiment\": \"quickstart\"}" >"$run/run.json"
        echo "scripts/quickstart.sh --methods $method --depth $depth --updates $updates --seed $seed" >"$run/command"
        # shellcheck disable=SC2086
        if ! train "$run" --method "$method" $more; then
            ended="$(sed -n -E 's/.*error: ((diverged|stuck) at update [0-9]+).*/\1/p' "$run/train.log" | tail -n 1)"
            [ -n "$ended" ] || { tail -n 5 "$run/train.log" >&2; exit 1; }
            echo "$ended" >"$run/${ended%% *}"  # a result; if diverged, what was saved last is translated and scored
        fi
        touch "$run/trained"
    fi
    if [ -f "$run/checkpoint_last.pt" ] && [ ! -f "$run/stuck" ] && [ ! -f "$run/generated.txt" ]; then
        step "translating the test set with $method"
        fairseq-generate "$data" --user-dir deepnet_fairseq --path "$run/checkpoint_last.pt" \
            --beam 4 --lenpen 0.6 --max-len-a 1.5 --max-len-b 10 --remove-bpe sentencepiece \
            --max-tokens 6000 --cpu >"$run/generated.part" 2>"$run/generate.log" ||
            { tail -n 5 "$run/generate.log" >&2; exit 1; }
        mv "$run/generated.part" "$run/generated.txt"
    fi
done 3<<<"$method_flags"

step "result ($depth-$depth, seed $seed)"
python - "$out/loss.png" "$out/text/test.qab" "${runs[@]}" <<'END' | tee "$out/result.txt"
import json
import sys
from pathlib import Path

from sacrebleu.metrics import BLEU

from deepnet_fairseq.study.figures import depth
from deepnet_fairseq.study.runs import RecordedRun
from deepnet_fairseq.study.scoring.generated import read_generated
from deepnet_fairseq.text_table import render

plot, reference, *folders = map(Path, sys.argv[1:])
sentences, metric = reference.read_text(encoding="utf-8").split("\n")[:-1], BLEU(force=True)
for folder in folders:  # one that diverged before its first checkpoint has nothing to score
    if (folder / "generated.txt").exists():
        found = metric.corpus_score(read_generated(folder / "generated.txt").translations, [sentences])
        score = {"bleu": round(found.score, 2), "kind": "sacrebleu", "signature": str(metric.get_signature())}
        (folder / "score.json").write_text(json.dumps(score) + "\n")
runs = [RecordedRun(folder) for folder in folders]
depth(runs, plot)
rows = [["method", "updates", "final loss", "BLEU", "train time"]]
for run in runs:
    ended = "stuck" if run.stuck else "diverged" if run.log.diverged else ""
    loss = f"{run.log.final_loss():.2f}" + (f" ({ended})" if ended else "")
    bleu = f"{run.score['bleu']:.2f}" if run.score else "-"
    rows.append([run.name, str(run.log.updates[-1]), loss, bleu, f"{run.log.seconds:.0f} s"])
print(render(rows), "", sep="\n")
signatures = {run.score["signature"] for run in runs if run.score}
print("loss: bits per token, label-smoothed, mean of the last intervals;", *signatures)
if any(run.stuck for run in runs):
    print("stuck: stopped after 300 updates hardly better than guessing by how often each word occurs")
END
echo "loss curves: $out/loss.png"
