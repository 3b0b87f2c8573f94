#!/usr/bin/env bash
# The main job on the embedded corpus: the same deep model trained twice, with DeepNorm and as vanilla Post-LN, on the
# same data; then translated, scored with sacreBLEU and compared. This is `deepnet quickstart` of a clone, set up first.
#
#   scripts/quickstart.sh [--methods deepnorm,post_ln] [--depth 18] [--updates N] [--seed 1] [--out quickstart]
#
# Hardware: 2 CPU cores. Time: under 10 minutes after set-up. A second call skips what is done and resumes what is not.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/quickstart.sh
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit ;; esac
clone="$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")"
source "$clone/scripts/setup.sh"
out=quickstart
[ "$clone" -ef . ] || out="$clone/quickstart"
exec deepnet quickstart --out "$out" "$@"
