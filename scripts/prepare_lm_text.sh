#!/usr/bin/env bash
# Prepare plain text for language models: SentencePiece or GPT-2's byte BPE, binarised (docs/language_models.md).
#
#   scripts/prepare_lm_text.sh TRAIN VALID TEST DEST [--bpe sentencepiece|gpt2] [--vocab N] [--workers N] ...
#
# The files are UTF-8, one sentence or paragraph a line, an empty line between documents. VALID and TEST may be several,
# separated by commas (fairseq then calls them test, test1, ...). DEST must not exist.
#
#   scripts/prepare_lm_text.sh wiki.train wiki.valid wiki.test data-bin/wiki --vocab 32000
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec deepnet prepare lm "$@"
