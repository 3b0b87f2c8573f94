# shellcheck shell=bash
# Start `deepnet reproduce` for the scripts of tables and figures, in the active environment or in this checkout's.
# Variables stand for flags, by the table in deepnet_fairseq/cli/reproduce.py: METHODS="deepnorm pre_ln" is
# --methods deepnorm,pre_ln. docs/experiments.md#settings explains each, and `deepnet reproduce --help` the flags. All
# words but --dry-run[=commands] and --help go to fairseq-train.

checkout="$(dirname "$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")")"

# Takes the active environment if it has this package and fairseq; otherwise sets up .venv. An active .venv of this
# checkout is set up again, because its packages may be older than a pull. A dry run takes an active environment as it is,
# and makes no .venv where there is none.
environment() {  # environment "$@": of the script
    local dry_run=""
    [[ " $* " != *" --dry-run"* ]] || dry_run=1
    if command -v deepnet >/dev/null && command -v fairseq-train >/dev/null &&
        { [ -n "$dry_run" ] || [ "$(command -v deepnet)" != "$checkout/.venv/bin/deepnet" ]; }; then
        return
    fi
    if [ -n "$dry_run" ] && [ ! -f "$checkout/.venv/complete" ]; then
        echo "$(basename "$0"): --dry-run: activate an environment with deepnet_fairseq, or make one by scripts/setup.sh" >&2
        exit 1
    fi
    # shellcheck source=scripts/setup.sh
    source "$checkout/scripts/setup.sh"
}

help_if_asked() {  # help_if_asked "$@": prints the script's help and ends it, if a word asks for it
    case " $* " in
        *" --help "* | *" -h "*)
            sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
            echo; sed -n '3,6s/^# //p' "${BASH_SOURCE[0]}"
            exit
            ;;
    esac
}

reproduce() {  # reproduce EXPERIMENT "$@": the script's help, or the experiment
    help_if_asked "${@:2}"
    environment "${@:2}"
    exec deepnet reproduce "$1" --variables "${@:2}"
}
