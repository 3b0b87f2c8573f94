#!/usr/bin/env bash
# Call dev/versions.sh, where this program is now; the old path goes after one release.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../dev/versions.sh" "$@"
