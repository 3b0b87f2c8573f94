#!/usr/bin/env bash
# Says which share of the package's statements the tests have run since the last call: a table by room, and
# coverage/xml and coverage/html/index.html for what reads them.
#   COVERAGE=1 scripts/test.sh && scripts/coverage.sh
# Programs that tests start count too; not those that a test kills. Counting takes half as long again.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # sh scripts/coverage.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
[ -f coverage/data ] || compgen -G 'coverage/data.*' >/dev/null || {
    echo "coverage: nothing counted yet; run COVERAGE=1 scripts/test.sh first" >&2
    exit 1
}
# a process that was killed leaves a file that is none
! compgen -G 'coverage/data.*' >/dev/null || coverage combine --quiet --append || [ -f coverage/data ]
coverage xml --quiet
[ -n "${CI:-}" ] || coverage html --quiet  # nobody reads CI's
coverage report | awk '
    function share(room) { return statements[room] ? 100 * (1 - missed[room] / statements[room]) : 100 }
    $1 ~ /^deepnet_fairseq\// {
        split($1, part, "/")
        room = part[3] == "" ? "(no room)" : part[2]
        statements[room] += $2; missed[room] += $3
        statements["TOTAL"] += $2; missed["TOTAL"] += $3
    }
    END {
        for (room in statements)
            printf "%s%-16s %6d statements  %5.1f%% run\n", room == "TOTAL" ? "~" : "", room, statements[room], share(room)
    }' | sort | sed 's/^~//'
