#!/usr/bin/env bash
# OPUS-100 v1.0 (Zhang et al. 2020), 99 language pairs with English: published archives -> pieces -> binarised.
#
#   scripts/prepare_opus100.sh [DEST] [FLAGS]
#
# DEST is runs/data/opus100 unless named, which is where the experiment scripts look. FLAGS are those of
# `deepnet prepare`: --plan says what would be done, --pairs de-en,en-fr takes these pairs only (others can be added to
# the same DEST later), --vocab 64000 the vocabulary of Zhang et al. instead of 250,000 pieces, --spm FILE one made
# already, --shards N parts of which fairseq reads one an epoch. Called again, it goes on where it stopped.
#
# From object.pouta.csc.fi, the address on OPUS' page, an archive for each pair: 2.6 GB; DEST takes an estimated 13 GB. Each
# corpus in OPUS has its own terms: https://opus.nlpl.eu.
#
# What cannot be done: the DeepNet paper states neither its vocabulary nor its temperature nor its language tags on
# OPUS-100. docs/corpora.md says what is taken instead, and why.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/prepare_opus100.sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1:--}" in -*) set -- runs/data/opus100 "$@" ;; esac
exec deepnet prepare corpus opus100 "$@"
