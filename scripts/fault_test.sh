#!/usr/bin/env bash
# Call dev/faults.sh, where this program is now; the old path goes after one release.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../dev/faults.sh" "$@"
