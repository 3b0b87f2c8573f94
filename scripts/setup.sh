#!/usr/bin/env bash
# Makes .venv with the pinned versions of scripts/constraints.txt; does nothing when that is done already.
# Source it (quickstart.sh and test.sh do) to have the environment active afterwards.
#   PYTHON=python3.12 scripts/setup.sh    another interpreter (3.11 or 3.12)
#   TORCH_CUDA=1 scripts/setup.sh         the CUDA build of torch even where no GPU is seen

deepnet_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
deepnet_venv="$deepnet_root/.venv"
deepnet_log="$deepnet_venv/setup.log"

setup_fail() { echo "setup: $*" >&2; return 1; }

setup_python() {  # the interpreter to use: $PYTHON, or the first of these that is 3.11 or 3.12
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    setup_fail "no Python 3.11 or 3.12 found; name one: PYTHON=/path/to/python3.11 scripts/setup.sh"
}

setup_step() {  # setup_step "what it does" command...: a dot every five seconds, the end of the log on failure
    local message="$1" dots start=$SECONDS status=0
    shift
    printf 'setup: %s ' "$message"
    (while sleep 5 && kill -0 $$ 2>/dev/null; do printf .; done) &
    dots=$!
    # in the foreground, and ended by Ctrl-C as a whole: pip exits by itself then, and bash would try the next command
    (trap 'trap - INT; kill -INT $BASHPID' INT; "$@") >>"$deepnet_log" 2>&1 || status=$?
    kill "$dots" 2>/dev/null
    wait "$dots" 2>/dev/null
    printf ' %d s\n' $((SECONDS - start))
    [ "$status" -eq 0 ] || { tail -n 15 "$deepnet_log" >&2; setup_fail "that step failed; whole log: $deepnet_log"; }
}

setup_torch() {  # the build for this machine: CPU where no NVIDIA driver answers
    local pin
    pin="$(grep '^torch==' "$deepnet_root/scripts/constraints.txt")"
    if [ -n "${TORCH_CUDA:-}" ] || nvidia-smi >/dev/null 2>&1; then
        "$deepnet_venv/bin/pip" install "$pin"
        return
    fi
    # from the indexes pip is set up with, else PyTorch's own of CPU builds, else the default build (some GB, runs too)
    "$deepnet_venv/bin/pip" install "$pin+cpu" ||
        "$deepnet_venv/bin/pip" install "$pin+cpu" --extra-index-url https://download.pytorch.org/whl/cpu ||
        "$deepnet_venv/bin/pip" install "$pin"
}

setup_fairseq() {  # builds against the torch just installed; CUDA_HOME would make it look for sources it lacks
    env -u CUDA_HOME "$deepnet_venv/bin/pip" install --no-build-isolation \
        -c "$deepnet_root/scripts/constraints.txt" fairseq-fixed
}

setup_main() {
    local stamp python
    stamp="$(cat "$deepnet_root/setup.py" "$deepnet_root/scripts/constraints.txt" | cksum) $deepnet_root"
    if [ "$(cat "$deepnet_venv/complete" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    python="$(setup_python)" || return
    command -v c++ >/dev/null || command -v g++ >/dev/null ||
        setup_fail "fairseq compiles on installation; install a C++ compiler first (Debian: apt install g++)" || return
    echo "setup: making $deepnet_venv with $("$python" --version) (about 4 minutes the first time)"
    rm -rf "$deepnet_venv" && "$python" -m venv "$deepnet_venv" || return
    local pip=("$deepnet_venv/bin/pip" install -c "$deepnet_root/scripts/constraints.txt")
    setup_step "torch" setup_torch &&
        setup_step "build tools" "${pip[@]}" numpy cython setuptools wheel &&
        setup_step "fairseq (compiles for about two minutes)" setup_fairseq &&
        setup_step "deepnet_fairseq and its tools" "${pip[@]}" --no-build-isolation -e "${deepnet_root}[dev]" &&
        printf '%s' "$stamp" >"$deepnet_venv/complete"
}

if setup_main; then
    # shellcheck disable=SC1091
    source "$deepnet_venv/bin/activate"
else
    [ "${BASH_SOURCE[0]}" = "$0" ] && exit 1
    return 1
fi
