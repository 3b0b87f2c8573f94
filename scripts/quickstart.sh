#!/usr/bin/env bash
# Train the same deep model twice on a generated language, with DeepNorm and as vanilla Post-LN, then translate, score
# with sacreBLEU and compare. This sets up a clone and runs `deepnet quickstart`.
#
#   scripts/quickstart.sh [--methods deepnorm,post_ln] [--depth 18] [--updates N] [--seed 1] [--out quickstart]
#
# Hardware: 2 CPU cores. Time after set-up: 5 to 10 minutes on idle cores, by machine. A second call skips finished steps
# and resumes the rest.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit ;; esac
clone="$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")"
source "$clone/scripts/setup.sh"
out=quickstart
[ "$clone" -ef . ] || out="$clone/quickstart"
exec deepnet quickstart --out "$out" "$@"
