#!/usr/bin/env bash
# Make .venv with the pinned versions of scripts/constraints.txt; do nothing if it is complete. After an interruption or
# a network failure, the next call continues. Source this file, as quickstart.sh and test.sh do, to leave the
# environment active.
#   PYTHON=python3.12 scripts/setup.sh    another interpreter (3.11 or 3.12)
#   TORCH_CUDA=1 scripts/setup.sh         installs the CUDA build of torch even where no GPU is found

# shellcheck disable=SC1091,SC2317
if [ -z "${BASH_VERSION:-}" ]; then  # run by sh, or sourced by zsh, where $0 is this file
    bash "$0" && . "$(dirname "$(dirname "$(realpath "$0")")")/.venv/bin/activate"
    return 2>/dev/null || exit
fi

deepnet_root="$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")"
deepnet_venv="$deepnet_root/.venv"
deepnet_log="$deepnet_venv/setup.log"

setup_fail() { echo "setup: $*" >&2; return 1; }

setup_python() {  # prints the interpreter to use: $PYTHON, or the first of these that is 3.11 or 3.12
    local candidate candidates=(python3.11 python3.12 python3 python) without_venv=""
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
        without_venv="$candidate"
    done
    [ -z "$without_venv" ] ||
        setup_fail "$without_venv makes no environments; install its module venv (Debian: apt install python3-venv)" ||
        return
    setup_fail "${PYTHON:+PYTHON=$PYTHON: }no Python 3.11 or 3.12 found;" \
        "name one: PYTHON=/path/to/python3.11 scripts/setup.sh"
}

setup_as_asked() {  # succeeds if .venv has the interpreter and torch build of $PYTHON and $TORCH_CUDA, if set
    local wanted
    [ -z "${TORCH_CUDA:-}" ] || ! setup_has 'torch-*+cpu' || return
    [ -n "${PYTHON:-}" ] || return 0
    wanted="$("$PYTHON" -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null)"
    [ -d "$deepnet_venv/lib/$wanted" ]
}

setup_holds() {  # setup_holds FILE TEXT: succeeds if .venv's file holds just that text, and .venv has a Python
    [ "$(cat "$deepnet_venv/$1" 2>/dev/null)" = "$2" ] && [ -x "$deepnet_venv/bin/python" ]
}

setup_has() { compgen -G "$deepnet_venv/lib/python*/site-packages/$1.dist-info" >/dev/null; }  # is it installed?

setup_forget_halves() {  # removes packages whose installation was killed; pip writes INSTALLER last but one
    local package
    for package in "$deepnet_venv"/lib/python*/site-packages/*.dist-info; do
        [ -e "$package/INSTALLER" ] || rm -rf "$package"
    done
}

setup_step() {  # setup_step "description" command...: prints a dot every five seconds, and the reason of a failure
    local message="$1" dots start=$SECONDS seconds=0 status=0 logged
    shift
    printf 'setup: %s ' "$message"
    logged="$(cat "$deepnet_log" 2>/dev/null | wc -c)"
    (while sleep 1 >/dev/null && kill -0 $$ 2>/dev/null; do ((++seconds % 5)) || printf .; done) 9<&- &
    dots=$!
    # runs in the foreground and dies with Ctrl-C: pip exits by itself then, and bash would try the next command
    (trap 'trap - INT; kill -INT $BASHPID' INT; "$@") >>"$deepnet_log" 2>&1 || status=$?
    kill "$dots" 2>/dev/null
    wait "$dots" 2>/dev/null
    printf ' %d s\n' $((SECONDS - start))
    [ "$status" -eq 0 ] || setup_explain "$(tail -c "+$((logged + 1))" "$deepnet_log")"
}

setup_explain() {  # prints the known cause of a failed step, or the end of its log
    local offline='Failed to establish a new connection|Temporary failure in name resolution|Read timed out|ProxyError'
    if grep -Eq "$offline|ConnectTimeout|SSLError|RemoteDisconnected|ConnectionResetError" <<<"$1"; then
        setup_fail "a package index does not answer (\`pip config list\` and PIP_INDEX_URL say which is asked);" \
            "run the same command again when it does, it goes on from here; log: $deepnet_log"
    elif grep -q "No space left on device" <<<"$1"; then
        setup_fail "the disk is full: make room (the CUDA build of torch takes 7 GB) and run the same command again"
    else
        tail -n 15 <<<"$1" >&2
        setup_fail "that step failed; whole log: $deepnet_log"
    fi
}

setup_torch() {  # installs the build for this machine: CPU where no NVIDIA driver answers
    local pin="$1"
    ! setup_has "torch-${pin#*==}*" || return 0
    if [ -n "${TORCH_CUDA:-}" ] || nvidia-smi >/dev/null 2>&1; then
        "$deepnet_venv/bin/pip" install "$pin"
        return
    fi
    # tries pip's configured indexes, then PyTorch's index of CPU builds, then the default build (some GB, also works)
    "$deepnet_venv/bin/pip" install "$pin+cpu" ||
        "$deepnet_venv/bin/pip" install "$pin+cpu" --extra-index-url https://download.pytorch.org/whl/cpu ||
        "$deepnet_venv/bin/pip" install "$pin"
}

setup_compiler() {  # checks for a C++ compiler and Python's headers, unless fairseq has a wheel for this Python
    local compiler headers
    headers="$("$deepnet_venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    compiler="$(command -v c++ || command -v g++)"
    if [ -n "$compiler" ] && "$compiler" -x c++ -fsyntax-only -I"$headers" - <<<'#include <Python.h>' 2>/dev/null ||
        setup_has 'fairseq*' ||
        setup_pip install --dry-run --retries 0 --no-deps --only-binary :all: fairseq-fixed >/dev/null 2>&1; then
        return
    fi
    [ -n "$compiler" ] ||
        setup_fail "fairseq compiles on installation; install a C++ compiler first (Debian: apt install g++)" || return
    setup_fail "fairseq compiles on installation, and $headers has no Python.h that $compiler can compile;" \
        "install Python's headers (Debian: apt install python3-dev)"
}

setup_pip() {  # setup_pip install ...: installs the pinned versions
    (cd "$deepnet_root" && exec "$deepnet_venv/bin/pip" "$@" -c scripts/constraints.txt)
}

# Build against the torch just installed; with CUDA_HOME the build would look for sources that are not there. setup.py
# lists all of fairseq's requirements but torchaudio, which translation does not need and which breaks transformers'
# imports.
setup_fairseq() {
    (unset CUDA_HOME; setup_pip install --no-build-isolation --no-deps fairseq-fixed)
}

setup_main() {  # setup_main STAMP: sets up under a lock on the folder, file descriptor 9
    local torch made python
    local -x PYTHONPATH="" PYTHONHOME="" PIP_TARGET="" PIP_PREFIX="" PIP_USER=0  # ignores packages outside .venv
    [ -w "$deepnet_root" ] && { [ ! -e "$deepnet_venv" ] || [ -w "$deepnet_venv" ]; } ||
        setup_fail "no finished .venv that you can use is in $deepnet_root, which is not yours to write;" \
            "let its owner run scripts/setup.sh, or clone into a folder of your own" || return
    if command -v flock >/dev/null && ! flock -n 9; then
        echo "setup: another set-up is at work here; waiting for it"
        flock 9
    fi
    torch="$(grep '^torch==' "$deepnet_root/scripts/constraints.txt")"
    made="$torch $deepnet_root"
    if setup_holds made "$made" && setup_as_asked; then
        ! setup_holds complete "$1" || return 0
        echo "setup: going on with $deepnet_venv"
        rm -f "$deepnet_venv/complete"
        setup_forget_halves
    else
        python="$(setup_python)" || return
        echo "setup: making $deepnet_venv with $("$python" --version) (about 4 minutes the first time)"
        rm -rf "$deepnet_venv" && mkdir "$deepnet_venv" &&
            setup_step "environment" "$python" -m venv "$deepnet_venv" &&
            printf %s "$made" >"$deepnet_venv/made" || return
    fi
    setup_compiler &&
        setup_step "torch" setup_torch "$torch" &&
        setup_step "build tools" setup_pip install numpy cython setuptools wheel &&
        setup_step "fairseq (about two minutes where it is compiled)" setup_fairseq &&
        setup_step "deepnet_fairseq and its tools" setup_pip install --no-build-isolation -e ".[dev]" &&
        printf %s "$1" >"$deepnet_venv/complete"
}

deepnet_stamp="$(cat "$deepnet_root/setup.py" "$deepnet_root/scripts/constraints.txt" | cksum) $deepnet_root"
# shellcheck disable=SC1091
if { setup_holds complete "$deepnet_stamp" && setup_as_asked; } || setup_main "$deepnet_stamp" 9<"$deepnet_root"; then
    source "$deepnet_venv/bin/activate"
else
    [ "${BASH_SOURCE[0]}" = "$0" ] && exit 1
    return 1
fi
