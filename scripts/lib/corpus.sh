# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Provide the data of an experiment: the user's, or from a recipe of `deepnet prepare`, in miniature with SMOKE=1.

prepare() {  # prepare RECIPE [FLAGS of deepnet prepare]: sets data, task (fairseq's flags), directions if several
    local recipe="$1" dest
    shift
    corpus="$recipe" paper_corpus="$recipe" dest="$out/data/$recipe" task=() directions=() shards=1
    data_folder="${DATA:-$dest/bin}" data="${DATA:-$dest/bin}"
    if [ -n "${DATA:-}" ]; then
        [ -d "${DATA%%:*}" ] || fail "DATA=$DATA: no such folder"
        corpus="$(sed -n 's/.*"recipe": "\([^"]*\)".*/\1/p' "${DATA%%:*}"/{../,../../}recipe.json 2>/dev/null | head -n 1 || true)"
        corpus="${corpus:-of DATA}"
    elif [ -n "$dry_run" ]; then
        echo deepnet prepare corpus "$recipe" "$dest" "${smoke:+--miniature}" "$@" | sed 's/ *$//'
    elif [ -f "$dest/recipe.json" ] && [ -d "$dest/bin" ]; then
        step "corpus $recipe, as it was prepared"  # perhaps with the user's own flags
    else
        step "corpus $recipe${smoke:+ in miniature}"
        deepnet prepare corpus "$recipe" "$dest" ${smoke:+--miniature} "$@"
    fi
    multilingual "$recipe"
    pieces=sentencepiece
    if [ "${#directions[@]}" -eq 0 ] && ! grep -q -s ▁ "${data%%:*}"/dict.*.txt; then
        pieces=subword_nmt
    fi
}

multilingual() {  # sets the task of data with pairs.txt: each source begins with the target language's tag
    local bin="${data%%:*}" shard all="" pairs
    if [ ! -d "$bin" ]; then  # a dry run without data
        case "$1" in opus100 | m2m102) directions=(SRC-TGT TGT-SRC) pairs=SRC-TGT,TGT-SRC ;; *) return ;; esac
    fi
    for shard in "$bin"/shard[0-9]*; do
        [ ! -d "$shard" ] || all+="${all:+:}$shard"
    done
    data="${all:-$data}"
    bin="${data%%:*}" shards="$(tr : '\n' <<<"$data" | wc -l)"
    if [ -f "$bin/pairs.txt" ]; then
        mapfile -t directions <"$bin/pairs.txt"
        pairs="$(paste -sd, "$bin/pairs.txt")"
    fi
    # DeepNet states neither tags nor temperature; 5 is M2M-100's
    [ "${#directions[@]}" -eq 0 ] || task=(--task translation_multi_simple_epoch --lang-dict "$bin/langs.txt"
        --encoder-langtok tgt --lang-pairs "$pairs" --sampling-method temperature --sampling-temperature 5)
}
