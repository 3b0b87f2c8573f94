# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Train runs. A run is a folder with run.json (its facts), environment.json (commit, versions, hardware), command,
# train.log, probes.jsonl, checkpoints, generated.txt or generated/SUBSET/SRC-TGT.txt, and score.json. `trained` marks a
# training that is over, `diverged` holds the update at which its numbers stopped being finite, `stuck` the update at
# which it was given up, and `disk` the size of its checkpoints.

layers() {  # layers METHOD ENCODER [DECODER]: sets method, layer_flags, and facts, the first members of run.json
    local decoder="${3:-$2}"
    method="$1"
    facts="\"method\": \"$1\", \"encoder_layers\": $2, \"decoder_layers\": $decoder"
    layer_flags=(--encoder-layers "$2" --decoder-layers "$decoder")
}

run_json() {  # run_json FACTS FLAGS...: prints one JSON object
    local facts="$1"
    shift
    echo "{$facts, \"experiment\": \"$experiment\", \"corpus\": \"$corpus\"," \
        "\"paper_corpus\": \"$paper_corpus\", \"seed\": $seed," \
        "\"smoke\": $([ -n "$smoke" ] && echo true || echo false), \"averaged\": ${average:-1}," \
        "\"batch_tokens\": $(batch_of "$@")${paper_batch:+, \"paper_batch_tokens\": $paper_batch}}"
}

# train OUT/EXPERIMENT/NAME, or resume it; FACTS: members of run.json
run_train() {  # run_train NAME FACTS FLAGS...
    local run="$out/$experiment/$1" facts="$2" adam=adam number words chosen ending=("${stuck_flags[@]}")
    shift 2
    case " $* ${extra[*]} " in *" --disable-validation "*) ending=() ;; esac
    of_method "$method"
    [[ "${mixed[*]}" == *memory-efficient* ]] || adam=deepnet_adam  # the same results as fairseq's adam, faster
    read -r -a chosen <<<"${chosen_flags[$experiment/${run##*/}]:-}"
    [ "${RECOMPUTE:-}" != 1 ] || chosen+=(--checkpoint-activations)
    words=("$data" --user-dir deepnet_fairseq "${task[@]}" --arch "$arch" "${criterion[@]}"
        --optimizer "$adam" --adam-betas '(0.9, 0.98)' --adam-eps 1e-8
        --save-dir "$run" --seed "$seed" --log-format json "${mixed[@]}" "${place[@]}" "${schedule[@]}" "$@"
        "${ending[@]}" "${chosen[@]}" "${extra[@]}")
    check_batch "$run" "${words[@]}"
    for number in "${!words[@]}"; do
        [ "${words[number]} ${words[number + 1]:-}" != "--admin-profile auto" ] || words[number + 1]="$run/profile.json"
    done
    if [ -n "$planning" ]; then
        planned "$run" "$facts" "${words[@]}"
        return
    fi
    if [ -n "$dry_run" ]; then
        run_profile "$run" "${words[@]}"
        echo "$(launcher) $(printf '%q ' "${words[@]}")"
        return
    fi
    mkdir -p "$run"
    alone "$run"
    if [ -f "$run/command" ] && [ "$(same "$(cat "$run/command")")" != "$(same "fairseq-train $(printf '%q ' "${words[@]}")")" ]; then
        fail "$run: was trained with other settings (its file command); remove it, take another OUT, or give MAX_TOKENS as there"
    fi
    [ ! -f "$run/trained" ] || return 0
    run_json "$facts" "${words[@]}" >"$run/run.json"
    [ -f "$run/environment.json" ] || deepnet path --environment --json --gpus "$((gpus * nodes))" >"$run/environment.json"
    echo "fairseq-train $(printf '%q ' "${words[@]}")" >"$run/command"
    run_profile "$run" "${words[@]}"
    train "$run" "${words[@]}"
    touch "$run/trained"
}

planned() {  # planned RUN FACTS WORDS...: prints a line for `deepnet plan --rows`
    local done_flag=() kept=1 free="" stuck="${stop_stuck:-10000}"
    [ ! -f "$1/trained" ] || done_flag=(--done)
    [ "$average" -eq 1 ] || kept=2
    [ "$gpus" -eq 0 ] || free="${MAX_TOKENS:-batch},${RECOMPUTE:-recompute}"
    case " ${*:3} " in *" --no-save "*) kept=0 ;; esac
    case " ${*:3} " in *" --disable-validation "*) stuck=0 ;; esac
    printf 'row '
    printf '%q ' "${1#"$out/"}" "${done_flag[@]}" --kept "$kept" --vocab "$(symbols)" --corpus-tokens "$corpus_tokens" \
        --facts "{$2, \"corpus\": \"$paper_corpus\"}" --experiment "$experiment" --stuck "$stuck" --free "$free" \
        --gpu-memory "$gpu_memory" "${@:3}"
    echo
}

symbols() {  # prints the vocabulary's size, that of the data if they exist
    local lines
    lines="$(wc -l "${data%%:*}"/dict.*.txt 2>/dev/null | sort -n | awk '$2 != "total" {lines = $1} END {print lines + 0}')"
    echo $((lines > 0 ? lines + 4 : vocabulary))
}

# prints a command without devices, batch split, --stop-stuck and the place of a user-dir that has moved, which do not
# change the training
same() {  # same COMMAND
    sed -E 's/ --(distributed-world-size|update-freq|stop-stuck) [0-9]+| --(cpu|(memory-efficient-)?(fp16|bf16))\b//g
        s/ --checkpoint-(activations|every [0-9]+)| --zero-sharding os| --optimizer (deepnet_)?adam\b//g
        s# scripts/inverted_gain\b# examples/inverted_gain#' <<<"$1"
}

alone() {  # alone RUN: waits for other processes on the run; a training may outlive a killed script
    exec {lock}>"$1/lock"
    flock -n "$lock" && return
    echo "   another process works on $1; waiting for it"
    flock "$lock"
}

train() {  # train RUN WORDS...: trains; divergence and being stuck are results, and any other failure ends the script
    local run="$1" before status=0 stopped ended
    shift
    rm -f "$run/diverged" "$run/stuck"
    [ -f "$run/checkpoint_last.pt" ] || rm -f "$run/train.log"
    before="$(wc -c 2>/dev/null <"$run/train.log" || echo 0)"
    echo "   training $run (log: $run/train.log)"
    # shellcheck disable=SC2046
    $(launcher) "$@" >>"$run/train.log" 2>&1 || status=$?
    [ "$status" -ne 0 ] || return 0
    # statuses 143 and 138, which torchrun turns into 1: stopped by SIGTERM or SIGUSR1 after a save
    stopped="$(tail -c "+$((before + 1))" "$run/train.log" | sed -n -E 's/.*(stopped by SIG[A-Z0-9]+ after .*)/\1/p' | tail -n 1)"
    if [ -n "$stopped" ] && ! [[ "$stopped" == *could\ not\ be\ saved* ]]; then
        echo "   $stopped" >&2
        case "$stopped" in *SIGUSR1*) exit 138 ;; *) exit 143 ;; esac
    fi
    # statuses 3 and 4, which torchrun turns into 1: diverged or stuck
    ended="$(tail -c "+$((before + 1))" "$run/train.log" |
        sed -n -E 's/.*error: (diverged at update [0-9]+|stuck at update [0-9]+[^;]*).*/\1/p' | tail -n 1)"
    [ -n "$ended" ] || { tail -n 3 "$run/train.log" >&2; fail "training $run failed; whole log: $run/train.log"; }
    echo "$ended" >"$run/${ended%% *}"
    echo "   $run $ended"
}

launcher() {  # prints the words that start fairseq-train
    local torchrun=(torchrun --nproc-per-node "$gpus")
    if [ "$nodes" -gt 1 ]; then
        torchrun+=(--nnodes "$nodes" --rdzv-backend c10d --rdzv-id "${SLURM_JOB_ID:-job}"
            --rdzv-endpoint "$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null | head -n 1):29400")
        echo srun --kill-on-bad-exit=1 --ntasks-per-node=1 "${torchrun[@]}" --no-python fairseq-train
    elif [ "$launch" = torchrun ] && [ "$gpus" -gt 0 ]; then
        echo "${torchrun[@]}" --no-python fairseq-train
    else
        echo fairseq-train
    fi
}

run_profile() {  # run_profile RUN WORDS...: profiles the first batch for Admin, if the training needs it
    local profile words word before=""
    profile="$(last_of --admin-profile "${@:2}")" words=()
    [ -n "$profile" ] && [ ! -f "$profile" ] || return 0
    for word in "${@:2}"; do  # on one process, since a profile holds for any number
        [ "$word" != --admin-profile ] && [ "$before" != --admin-profile ] || { before="$word"; continue; }
        words+=("$word")
        before="$word"
    done
    words+=(--distributed-world-size 1 --out "$profile")
    if [ -n "$dry_run" ]; then
        echo "deepnet profile $(printf '%q ' "${words[@]}")"
        return
    fi
    echo "   profiling $1"
    deepnet profile "${words[@]}" >"$1/profile.log" 2>&1 ||
        { tail -n 3 "$1/profile.log" >&2; fail "profiling $1 failed; whole log: $1/profile.log"; }
}
