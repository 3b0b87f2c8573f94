#!/usr/bin/env bash
exec bash "$(dirname "$(dirname "$(realpath "$0")")")/dev/gpu_minutes.sh" "$@"  # its old name
