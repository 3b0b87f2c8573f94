#!/usr/bin/env bash
# Prepare parallel text for fairseq-train: joint SentencePiece BPE, binarised.
#
#   scripts/prepare_text.sh SRC TGT TRAIN_PREFIX VALID_PREFIX TEST_PREFIX DEST [--vocab N] [--drop-empty]
#
# A prefix P stands for the files P.SRC and P.TGT, UTF-8, one sentence a line. VALID_PREFIX and TEST_PREFIX may be
# several, separated by commas (fairseq then calls them test, test1, ...). DEST must not exist.
#
#   scripts/prepare_text.sh de en corpus/train corpus/valid corpus/test data-bin/de-en --vocab 10000
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/setup.sh"
exec deepnet prepare text "$@"
