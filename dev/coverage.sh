#!/usr/bin/env bash
# Report the share of the package's statements that tests have run since coverage/data was begun: a table by room, and
# coverage/xml and coverage/html/index.html for other tools. Remove coverage/data to begin anew.
#   COVERAGE=1 scripts/test.sh && dev/coverage.sh
# Programs that tests start are counted, except those that a test kills. Counting takes half as long again.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"  # if run by sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
[ -f coverage/data ] || compgen -G 'coverage/data.*' >/dev/null || {
    echo "coverage: nothing counted yet; run COVERAGE=1 scripts/test.sh first" >&2
    exit 1
}
# a killed process leaves an unreadable file
! compgen -G 'coverage/data.*' >/dev/null || coverage combine --quiet --append || [ -f coverage/data ]
coverage xml --quiet
[ -n "${CI:-}" ] || coverage html --quiet  # CI does not use the HTML report
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
