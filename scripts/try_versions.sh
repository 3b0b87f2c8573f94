#!/usr/bin/env bash
exec bash "$(dirname "${BASH_SOURCE[0]}")/../dev/versions.sh" "$@"  # where this program is now; the old path goes next
