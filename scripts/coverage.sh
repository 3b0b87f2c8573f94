#!/usr/bin/env bash
exec bash "$(dirname "${BASH_SOURCE[0]}")/../dev/coverage.sh" "$@"  # where this program is now; the old path goes next
