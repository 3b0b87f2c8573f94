#!/usr/bin/env bash
# Prepare WMT English-German as fairseq's prepare-wmt14en2de.sh does, which names it wmt17_en_de: archives, tokens, BPE.
#
#   scripts/prepare_wmt17_en_de.sh [DEST] [FLAGS]
#
# DEST defaults to runs/data/wmt17_en_de, where the experiment scripts look. FLAGS are those of `deepnet prepare`:
# --plan prints what would be done; --workers N sets the processes; --from FOLDER takes tokenised text, for example from
# Moses' Perl programs. A second call continues where the first stopped.
#
# Downloads 1.75 GB: Europarl v7, Common Crawl, News Commentary v12 and newstest2014 from statmt.org. DEST takes an
# estimated 9 GB, of which text/ and downloads/ may be deleted when it is whole. The data of WMT are free for research;
# each corpus has its own terms: https://www.statmt.org/wmt17/translation-task.html. For the Admin authors' variant of
# this corpus, run `deepnet prepare corpus wmt14_en_de DEST`.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1:--}" in -*) set -- runs/data/wmt17_en_de "$@" ;; esac
exec deepnet prepare corpus wmt17_en_de "$@"
