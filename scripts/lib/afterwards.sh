# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Do what follows a training: remove checkpoints that nothing reads, write the output of a program whole or not at all.

tidy() {  # tidy RUN: keeps only the last weights and the averaged ones of a finished run, unless KEEP=all
    local run="$1" left
    [ -f "$run/trained" ] && [ ! -f "$run/disk" ] && compgen -G "$run/*.pt" >/dev/null || return 0
    if [ "$KEEP" != all ]; then
        if [ -f "$run/checkpoint_last.pt" ]; then
            deepnet average "$run/checkpoint_last.pt" --out "$run/last_weights.pt" >/dev/null
            [ ! "$run/averaged.pt" -ef "$run/checkpoint_last.pt" ] || ln -f "$run/last_weights.pt" "$run/averaged.pt"
            mv "$run/last_weights.pt" "$run/checkpoint_last.pt"
        fi
        rm -f "$run"/checkpoint_[0-9]*.pt "$run"/checkpoint[0-9]*.pt "$run"/weights[0-9]*.pt "$run"/checkpoint_{previous,best}.pt
    fi
    left="$(find "$run" -name '*.pt' -printf '%i %s\n' | sort -u | awk '{bytes += $2} END {print bytes + 0}')"
    echo "checkpoints: $(numfmt --to=si "$left")B kept" >"$run/disk"
    echo "   $run $(cat "$run/disk")"
}

do_once() {  # do_once WHAT RESULT LOG COMMAND...: writes the command's output to RESULT, whole or not at all
    if [ -n "$dry_run" ]; then
        printf '%q ' "${@:4}"
        echo
        return
    fi
    [ ! -f "$2" ] || return 0
    echo "   $1"
    "${@:4}" >"$2.part" 2>"$3" || { tail -n 3 "$3" >&2; fail "$1 failed; whole log: $3"; }
    mv "$2.part" "$2"
}
