#!/usr/bin/env bash
# IWSLT-14 German-English, as fairseq's prepare-iwslt14.sh makes it: the published archive -> tokens -> BPE -> binarised.
#
#   scripts/prepare_iwslt14_de_en.sh [DEST] [FLAGS]
#
# DEST is runs/data/iwslt14_de_en unless named, which is where the experiment scripts look. FLAGS are those of
# `deepnet prepare`: --plan says what would be done, --from FOLDER takes text that is tokenised already (by Moses' Perl
# programs, say). Called again, it goes on where it stopped.
#
# From dl.fbaipublicfiles.com, the address in fairseq's script: 20 MB; DEST takes an estimated 300 MB. TED talks by WIT3,
# https://wit3.fbk.eu: CC BY-NC-ND 4.0.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/prepare_iwslt14_de_en.sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1:--}" in -*) set -- runs/data/iwslt14_de_en "$@" ;; esac
exec deepnet prepare corpus iwslt14_de_en "$@"
