# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Functions shared by the scripts of language models and small experiments, which source this file from the root. Each
# function is one step, which is skipped if it is done already.
#
# Settings from the environment:
#   SMOKE=1       trains a miniature in minutes on 2 CPU cores: narrow models on data generated in the corpus's format;
#                 without it, the paper's setting
#   METHODS=...   methods of `deepnet methods`; DEPTHS=... layers; SEEDS=... seeds of the trainings: separated by blanks
#   DATA=DIR      binarised data; without it the corpus's recipe downloads and prepares it in OUT/data
#   OUT=DIR       folder of runs, reports and pictures (default runs, with SMOKE=1 runs-smoke); one for each setting
#   GPUS=N        GPUs of each training on a machine; NODES=N machines (SLURM). An update has the paper's batch on any
#                 number, by gradient accumulation
#   GPU_MEMORY=N  GiB of each GPU (default: as nvidia-smi reports, 80 without it). `deepnet plan` chooses a GPU's
#                 batch and recomputation so that a tenth of it stays free; MAX_TOKENS=N and RECOMPUTE=1 or 0
#                 override that. TFLOPS=N of each GPU, for the printed hours
#   PRECISION=... fp16 (default on a GPU), bf16 or fp32
#   LAUNCH=...    spawn (default: fairseq starts the processes), torchrun, or slurm: one sbatch job a row, requeued and
#                 resumed when its time is over; sbatch reads SBATCH_PARTITION, SBATCH_TIMELIMIT and so on
#   STOP_STUCK=K  ends a training that for K updates has validated hardly better than word frequencies allow; its cell
#                 reads "stuck" (default: 10000 for cells that diverged in the paper, else 0, never; with SMOKE=1 200)
#   JOBS=N        trainings at a time (default: as many as the GPUs hold; without a GPU, one for each core)
#   PLAN=0        skips the plan that is made first, and its choices: the batch has the paper's tokens
#   KEEP=all      keeps all checkpoints of a scored run; without it, only the weights of the averaged and the last model
# Options: --dry-run prints the plan, --dry-run=commands every command; all other options go to fairseq-train.

# shellcheck source=scripts/lib/entry.sh
source scripts/lib/entry.sh
# shellcheck source=scripts/lib/batch.sh
source scripts/lib/batch.sh
# shellcheck source=scripts/lib/settings.sh
source scripts/lib/settings.sh
# shellcheck source=scripts/lib/training.sh
source scripts/lib/training.sh
# shellcheck source=scripts/lib/afterwards.sh
source scripts/lib/afterwards.sh
# shellcheck source=scripts/lib/language_model.sh
source scripts/lib/language_model.sh
# shellcheck source=scripts/lib/queue.sh
source scripts/lib/queue.sh
# shellcheck source=scripts/lib/made_language.sh
source scripts/lib/made_language.sh

fail() { echo "$(basename "${SCRIPT:-$0}"): $*" >&2; exit 1; }
step() { [ -n "$dry_run" ] || { echo; echo "== $*"; }; }

begin() {  # begin EXPERIMENT GPUS "$@": environment, options and folders; GPUS: the paper's number, at most
    local word start="$OLDPWD"  # the user's folder
    local words=("${@:3}")
    experiment="$1" paper_gpus="$2" dry_run="" extra=() slots=() planning=""
    shift 2
    [ "${PLAN:-}" != words ] || planning=1
    for word in "$@"; do
        case "$word" in
            -h | --help) usage; exit ;;
            --dry-run) dry_run=table ;;
            --dry-run=commands) dry_run=commands ;;
            --dry-run=*) fail "$word: give --dry-run or --dry-run=commands" ;;
            --*=*) extra+=("${word%%=*}" "${word#*=}") ;;
            *) extra+=("$word") ;;
        esac
    done
    [ -z "$planning" ] || dry_run=commands
    environment ${dry_run:+--dry-run}
    smoke="${SMOKE:-}" seeds="${SEEDS:-${SEED:-1}}"
    [ "$smoke" != 0 ] || smoke=""
    seeds_are_numbers
    stuck_flags=() stop_stuck="${STOP_STUCK:-${smoke:+200}}"
    [[ "$stop_stuck" =~ ^[0-9]*$ ]] || fail "STOP_STUCK=$stop_stuck: give a number of updates"
    [[ "$stop_stuck" =~ ^0*$ ]] || stuck_flags=(--stop-stuck "$stop_stuck")
    out="$(cd "$start" && realpath -m -- "${OUT:-$start/runs${smoke:+-smoke}}")"
    [ -z "${DATA:-}" ] || DATA="$(cd "$start" && tr : '\n' <<<"$DATA" | xargs -d '\n' realpath -m -- | paste -sd:)"
    [ -z "${TEXT:-}" ] || TEXT="$(cd "$start" && xargs -n 1 realpath -m -- <<<"$TEXT" | sed 's/.*/"&"/' | paste -sd' ')"
    case "${ORDER:=deepest}" in deepest | shallowest | given) ;; *) fail "ORDER=$ORDER: choose deepest, shallowest or given" ;; esac
    [[ "${RECOMPUTE:-}" =~ ^[01]?$ ]] || fail "RECOMPUTE=$RECOMPUTE: choose 1 or 0"
    case "${KEEP:=weights}" in weights | all) ;; *) fail "KEEP=$KEEP: choose all, or leave it out" ;; esac
    hardware
    plan "$start" "${words[@]}"
    failed="$(mktemp -u)"  # written by a failed row; outside the runs, so that a killed script leaves none there
    [ -n "$dry_run" ] || mkdir -p "$out/$experiment"
    trap stop_queued EXIT
    trap 'stopped_by 130' INT
    trap 'stopped_by 143' TERM
}

stopped_by() {  # stopped_by STATUS: ends after a signal; the trap of EXIT lets the trainings save
    [ -n "$dry_run" ] || echo "$(basename "$0"): stopping; the same command resumes" >&2
    exit "$1"
}

plan() {  # plan FOLDER "$@": runs this script in FOLDER as a plan; sets chosen_flags, with which each row fits
    local rows script name flags picked
    declare -gA chosen_flags=()
    script="$PWD/scripts/$(basename "$0")"
    [ -z "$planning" ] && [ "${PLAN:-}" != 0 ] || return 0
    rows="$(cd "$1" && PLAN=words bash "$script" "${@:2}" | sed -n 's/^row //p')" || exit $?
    [ -n "$rows" ] || return 0
    picked="$(mktemp)"
    [ "$dry_run" != commands ] || exec 4>&1 >/dev/null
    echo "== plan"
    deepnet plan --rows - --side-by-side "$jobs" --chosen "$picked" ${TFLOPS:+--flops "$TFLOPS"} <<<"$rows"
    [ "$dry_run" != commands ] || exec >&4
    while IFS=$'\t' read -r name flags; do chosen_flags[$name]="$flags"; done <"$picked"
    rm "$picked"
    if [ "$dry_run" = table ]; then exit; fi
    [[ -n "$dry_run" || " ${chosen_flags[*]} " != *" ! "* ]] ||
        fail "GPU_MEMORY=$gpu_memory: a row with ! does not fit; leave it out, or try with PLAN=0"
}

usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${SCRIPT:-$0}"
    sed -n '5,/^# Options/s/^# \{0,1\}//p' scripts/lib/common.sh
}

numbers() {  # numbers NAME "WORDS": checks that each word is a whole number above 0
    local word
    for word in $2; do
        [[ "$word" =~ ^[1-9][0-9]*$ ]] || fail "$1: $word is no whole number above 0"
    done
}

seeds_are_numbers() {
    local word
    seed="${seeds%% *}"
    for word in $seeds; do
        [[ "$word" =~ ^[0-9]+$ ]] || fail "SEEDS: $word is no number"
    done
}

hardware() {  # sets precision, world (processes of a training), jobs, gpu_memory, and devices to train and translate on
    local threads
    nodes="${NODES:-1}" launch="${LAUNCH:-spawn}" precision="${PRECISION:-fp16}" decoding=()
    numbers NODES "$nodes"
    case "$launch" in spawn | torchrun | slurm) ;; *) fail "LAUNCH=$launch: choose spawn, torchrun or slurm" ;; esac
    [ "$launch" != slurm ] || [ -n "$dry_run${SLURM_JOB_ID:-}" ] || command -v sbatch >/dev/null ||
        fail "LAUNCH=slurm: there is no sbatch here; start this on a login node of the cluster, or leave it out"
    case "$precision" in fp16 | bf16 | fp32) ;; *) fail "PRECISION=$precision: choose fp16, bf16 or fp32" ;; esac
    [ "$nodes" -eq 1 ] || [ "$launch" = slurm ] || [ -n "${SLURM_JOB_ID:-}" ] ||
        fail "NODES=$nodes: several machines are started by SLURM; add LAUNCH=slurm"
    # shellcheck disable=SC2031  # queue sets it for the trainings
    IFS=, read -r -a visible <<<"${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader \
        2>/dev/null | paste -sd,)}"
    devices="${#visible[@]}" here="${#visible[@]}"
    gpu_memory="${GPU_MEMORY:-$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null |
        sort -n | awk '$1 > 0 {printf "%.1f", $1 / 1024; exit}' || true)}"
    gpu_memory="${gpu_memory:-80}"  # GiB
    if [ "$launch" = slurm ] || { [ "$devices" -eq 0 ] && [ -n "$dry_run" ] && [ -z "$smoke" ]; }; then
        here="${GPUS:-$paper_gpus}"  # GPUs of the job's machines, or of the machine that a dry run assumes
    fi
    if [ "$here" -eq 0 ] || { [ -n "$smoke" ] && [ -z "${GPUS:-}" ]; }; then
        [ -z "${GPUS:-}" ] || [ "$GPUS" = 1 ] || fail "GPUS=$GPUS: this machine has none; leave it out to train on the CPU"
        # of models of width 64, as all that these scripts train on a CPU; 1000: more rows than there are cores
        read -r jobs threads < <(python -m deepnet_fairseq.threads 64 1000)
        export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$threads}"
        gpus=0 devices=0 world=1 precision="${PRECISION:-fp32}" place=(--cpu) decoding=(--cpu)
    else
        gpus="${GPUS:-$((paper_gpus < here ? paper_gpus : here))}"
        numbers GPUS "$gpus"
        [ "$gpus" -le "$here" ] || fail "GPUS=$gpus: this machine has $here"
        world=$((gpus * nodes)) place=(--distributed-world-size "$((gpus * nodes))") jobs=$((here / gpus))
        [ "$precision" = fp32 ] || decoding=("--$precision")
    fi
    numbers JOBS "${JOBS:-$jobs}"
    [ "$gpus" -eq 0 ] || [ "${JOBS:-$jobs}" -le "$jobs" ] ||
        fail "JOBS=$JOBS: $here GPUs are enough for $jobs trainings on $gpus"
    jobs="${JOBS:-$jobs}"
}

chosen() {  # chosen "METHODS" "DEPTHS": checks the rows before anything is downloaded; sets method_flags
    local names
    read -r -a names <<<"$1"
    numbers DEPTHS "$2"
    method_flags="$(deepnet methods --flags "$(IFS=,; echo "${names[*]}")")"
}

finish() {  # finish figure N | table NAME: waits for queued trainings, then draws the figure or reports the table
    wait
    [ -z "$dry_run" ] || return 0
    [ ! -e "$failed" ] || exit 1
    if [ "$launch" = slurm ] && [ -z "${SLURM_JOB_ID:-}" ]; then
        local flag=--table
        [ "$1" = table ] || flag=--figures
        echo "submitted; when the jobs are over: deepnet report $(printf %q "$out") $flag $2"
        return
    fi
    step "$1 $2"
    "finish_$1" "$2"
}

finish_figure() { deepnet report "$out" --figures "$1" --out "$out"; }

finish_table() {  # prints the table, and writes it as a page beside the runs
    deepnet report "$out" --table "$1" --out "$out/$experiment.md"
    cat "$out/$experiment.md"
}
