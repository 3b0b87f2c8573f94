#!/usr/bin/env bash
# WMT English-German, as fairseq's prepare-wmt14en2de.sh makes it and calls it wmt17_en_de: archives -> tokens -> BPE.
#
#   scripts/prepare_wmt17_en_de.sh [DEST] [FLAGS]
#
# DEST is runs/data/wmt17_en_de unless named, which is where the experiment scripts look. FLAGS are those of
# `deepnet prepare`: --plan says what would be done, --workers N so many processes, --from FOLDER takes text that is
# tokenised already (by Moses' Perl programs, say). Called again, it goes on where it stopped.
#
# Europarl v7, Common Crawl, News Commentary v12 and newstest2014 from statmt.org: 1.75 GB; DEST takes an estimated 9 GB, of
# which text/ and downloads/ may go when it is whole. The data of WMT are free for research; each corpus has its own
# terms: https://www.statmt.org/wmt17/translation-task.html. For the Admin authors' variant of this corpus:
# `deepnet prepare corpus wmt14_en_de DEST`.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/prepare_wmt17_en_de.sh
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1:--}" in -*) set -- runs/data/wmt17_en_de "$@" ;; esac
exec deepnet prepare corpus wmt17_en_de "$@"
