#!/usr/bin/env bash
# Prepare IWSLT-14 German-English as fairseq's prepare-iwslt14.sh does: the published archive, tokenised, BPE,
# binarised.
#
#   scripts/prepare_iwslt14_de_en.sh [DEST] [FLAGS]
#
# DEST defaults to runs/data/iwslt14_de_en, where the experiment scripts look. FLAGS are those of
# `deepnet prepare`: --plan prints what would be done; --from FOLDER takes tokenised text, for example from Moses'
# Perl programs. A second call continues where the first stopped.
#
# Downloads 20 MB from dl.fbaipublicfiles.com, the address in fairseq's script; DEST takes an estimated 300 MB. The text
# is TED talks by WIT3, https://wit3.fbk.eu: CC BY-NC-ND 4.0.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1:--}" in -*) set -- runs/data/iwslt14_de_en "$@" ;; esac
exec deepnet prepare corpus iwslt14_de_en "$@"
