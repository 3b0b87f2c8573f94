#!/usr/bin/env bash
# Run dev/gpu_minutes.sh, the list for minutes of a GPU, by its earlier name.
exec bash "$(dirname "$(dirname "$(realpath "$0")")")/dev/gpu_minutes.sh" "$@"
