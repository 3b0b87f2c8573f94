#!/usr/bin/env bash
# Call dev/coverage.sh, where this program is now; the old path goes after one release.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../dev/coverage.sh" "$@"
