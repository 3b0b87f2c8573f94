#!/usr/bin/env bash
# The corpus of 102 languages (DeepNet, section 6), pair by pair: CCMatrix, CCAligned, OPUS-100 and Tatoeba.
#
#   scripts/prepare_m2m102.sh [DEST] --pairs de-en,de-fr,... [FLAGS]
#
# DEST is runs/data/m2m102 unless named, which is where the experiment scripts look. FLAGS are those of
# `deepnet prepare`: --plan says what would be done, --spm FILE takes a SentencePiece model (without it, one is trained on
# the pairs of the first call), --shards N parts of which fairseq reads one an epoch, --from FOLDER test sets beside
# Flores-101, WMT's and the zero-shot sets of OPUS-100. Called again, it goes on where it stopped; pairs can be added.
#
# The whole has 12 billion sentence pairs in 1,932 directions: larger than any one machine. So pairs are named; each is
# downloaded from object.pouta.csc.fi, cleaned, binarised, and its archives are removed before the next one comes. Room
# is needed for the archives of one pair (they say how large they are when they are asked for) and for all that is
# binarised. Each corpus in OPUS has its own terms: https://opus.nlpl.eu.
#
# What cannot be done: the paper's list of pairs and its vocabulary were never published; nor were M2M-100's filters of
# mined text all made again; TED's test set is to be brought along (docs/corpora.md).
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/prepare_m2m102.sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1:--}" in -*) set -- runs/data/m2m102 "$@" ;; esac
exec deepnet prepare corpus m2m102 "$@"
