#!/usr/bin/env bash
# Reproduce NormFormer (Shleifer et al. 2021): Pre-LN and NormFormer as causal language models of 125M to 2.7B
# parameters over a grid of learning rates, an ablation of its parts at 125M, and masked language models of RoBERTa's
# base size. Ends with the perplexities beside the published ones, each row at its best learning rate.
#
#   scripts/normformer_lm.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/normformer_lm.sh      four layers of width 64 on generated text
#   DATA=DIR from `deepnet prepare lm --bpe gpt2`, or TEXT="TRAIN VALID TEST" to prepare; the paper's text is not public
#   PARTS="clm ablation mlm" SIZES="125m 355m" METHODS="pre_ln normformer+scale_residual" LRS="1e-3 3e-3" SEEDS="1 2"
#   METHODS: methods, with options after plus signs and a learning rate of their own after @, as post_ln@1e-3
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/common.sh
begin normformer_clm 8 "$@"

declare -A part_sizes=([clm]="125m 355m 1.3b 2.7b" [ablation]=125m [mlm]=base)
parts="${PARTS:-clm ablation mlm}"
[ -z "$smoke" ] || part_sizes[clm]=125m
[ -z "${SIZES:-}" ] || part_sizes[clm]="$SIZES"
for part in $parts; do
    [ -n "${part_sizes[$part]:-}" ] || fail "PARTS: $part is none of clm, ablation, mlm"
    for size in ${part_sizes[$part]}; do "${part}_setting" "$size"; done  # refuses settings that cannot be trained
done
text
read -r -a methods <<<"${METHODS:-pre_ln normformer post_ln}"
chosen "${methods[*]%%[+@]*}" 1
prepare_text
save_every 1000

for part in $parts; do
    experiment="normformer_$part" sizes="${part_sizes[$part]}"
    [ -n "$dry_run" ] || mkdir -p "$out/$experiment"
    lm_rows "$part"
done
for part in $parts; do
    experiment="normformer_$part"
    finish table "$experiment"
    [ "$part" != clm ] || lm_figures
done
