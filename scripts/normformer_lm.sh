#!/usr/bin/env bash
# Reproduce NormFormer (Shleifer et al. 2021): Pre-LN and NormFormer as causal language models of 125M to 2.7B
# parameters over a grid of learning rates, an ablation of its parts at 125M, and masked language models of RoBERTa's
# base size. Each part ends with the perplexities beside the published ones, each row at its best learning rate.
#
#   scripts/normformer_lm.sh [--dry-run] [flags of fairseq-train]
#   SMOKE=1 scripts/normformer_lm.sh      four layers of width 64 on generated text
#   DATA=DIR from `deepnet prepare lm --bpe gpt2`, or TEXT="TRAIN VALID TEST" to prepare; the paper's text is not public
#   PARTS="clm ablation mlm" SIZES="125m 355m" METHODS="pre_ln normformer+scale_residual" LRS="1e-3 3e-3" SEEDS="1 2"
#   METHODS: methods, with options after plus signs and a learning rate of their own after @, as post_ln@1e-3
#   SIZES: sizes of the models of the part clm; the other parts have one
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/lib/entry.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/entry.sh"
help_if_asked "$@"
parts="${PARTS:-clm ablation mlm}" sizes="${SIZES:-}"
for part in $parts; do
    case "$part" in clm | ablation | mlm) ;; *) echo "PARTS: $part is none of clm, ablation, mlm" >&2; exit 2 ;; esac
done
for part in $parts; do
    unset SIZES
    if [ "$part" = clm ]; then export SIZES="$sizes"; fi
    (reproduce "normformer_$part" "$@")
done
