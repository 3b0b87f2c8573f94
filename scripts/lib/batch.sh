# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Set the paper's batch on any number of GPUs: GPUS x NODES x max-tokens x update-freq tokens an update.

batch() {  # batch TOKENS COUNT: sets batch_flags for updates of COUNT batches of TOKENS tokens
    local tokens="${MAX_TOKENS:-$1}" all
    numbers MAX_TOKENS "$tokens"
    paper_batch=$(($1 * $2)) all=$((world * tokens))
    if [ $((paper_batch % all)) -ne 0 ]; then
        [ -n "${MAX_TOKENS:-}" ] || fail "GPUS=$((world / nodes)): must divide $2, the batches of an update${NODES:+, NODES=$nodes times}; or choose a MAX_TOKENS that times $world divides $paper_batch"
        fail "MAX_TOKENS=$tokens: $world x $tokens tokens do not divide the paper's batch of $paper_batch"
    fi
    batch_flags=(--max-tokens "$tokens" --update-freq $((paper_batch / all)))
}

last_of() {  # last_of FLAG WORDS...: prints the last value of FLAG, which is the one that counts
    local flag="$1" word before="" value=""
    shift
    for word in "$@"; do
        [ "$before" != "$flag" ] || value="$word"
        before="$word"
    done
    echo "$value"
}

batch_of() {  # batch_of FLAGS...: prints the largest number of tokens of an update
    local tokens freq
    tokens="$(last_of --max-tokens "$@")" freq="$(last_of --update-freq "$@")"
    echo $((world * ${tokens:-0} * ${freq:-1}))
}

check_batch() {  # check_batch NAME FLAGS...: reports an update that differs from the paper's
    local name="$1" tokens
    shift
    tokens="$(batch_of "$@")"
    [ -n "$smoke" ] || [ -z "${paper_batch:-}" ] || [ "$tokens" -eq "$paper_batch" ] ||
        echo "$(basename "${SCRIPT:-$0}"): $name: an update has $tokens tokens, the paper's $paper_batch; the report says so" >&2
}
