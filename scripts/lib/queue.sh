# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Run trainings in parallel, each on its own GPUs, or as jobs of SLURM.

queue() {  # queue COMMAND...: starts a command beside at most JOBS - 1 others; a failure of any ends the script
    local slot=0
    [ "$launch" != slurm ] || [ -n "${SLURM_JOB_ID:-}$planning" ] || fail "LAUNCH=slurm: trains here; leave LAUNCH out"
    if [ -n "$dry_run" ]; then
        ("$@")
        return
    fi
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n || true
    done
    [ ! -e "$failed" ] || exit 1
    while [ -n "${slots[slot]:-}" ] && kill -0 "${slots[slot]}" 2>/dev/null; do
        slot=$((slot + 1))
    done
    set -m  # gives each a process group, so that none outlives the script
    (
        trap '[ $? -eq 0 ] || touch "$failed"' EXIT
        if [ "$devices" -gt 0 ] && [ "$nodes" -eq 1 ]; then
            CUDA_VISIBLE_DEVICES="$(IFS=,; echo "${visible[*]:slot * gpus:gpus}")"
            export CUDA_VISIBLE_DEVICES
        fi
        "$@"
    ) &
    slots[slot]=$!
    set +m
}

stop_queued() {  # ends running commands by process group, with SIGKILL if they do not stop
    local group tenths running=()
    for group in "${slots[@]}"; do
        kill -- "-$group" 2>/dev/null && running+=("$group")
    done
    for ((tenths = 0; tenths < 100 && ${#running[@]} > 0; tenths++)); do
        sleep 0.1
        for group in "${!running[@]}"; do
            kill -0 -- "-${running[group]}" 2>/dev/null || unset "running[group]"
        done
    done
    for group in "${running[@]}"; do
        kill -KILL -- "-$group" 2>/dev/null || true
    done
    [ -n "$dry_run" ] || rm -f "$failed"
}

submit() {  # submit NAME SETTINGS...: submits a job that runs this script for the row, and resumes when requeued
    local name="$experiment-$1-seed$seed" job
    job="$(job_script "$@")"
    if [ -n "$dry_run" ]; then
        echo "sbatch <<'JOB'"
        echo "$job"
        echo JOB
    else
        sbatch --parsable --output "$out/$experiment/$name.log" <<<"$job" | sed "s/^/$name: job /"
    fi
}

job_script() {  # job_script NAME SETTINGS...: prints the text of a job
    local setting
    cat <<JOB
#!/usr/bin/env bash
#SBATCH --job-name=$experiment-$1-seed$seed
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=$gpus
#SBATCH --cpus-per-task=$((4 * gpus))
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@180
cd $(printf %q "$PWD")
JOB
    for setting in "${@:2}" SEEDS="$seed" DATA="$data_folder" OUT="$out" GPUS="$gpus" NODES="$nodes" JOBS=1 \
        PRECISION="$precision" LAUNCH=torchrun; do
        echo "export ${setting%%=*}=$(printf %q "${setting#*=}")"
    done
    for setting in MAX_TOKENS RECOMPUTE GPU_MEMORY TFLOPS PLAN SMOKE KEEP STOP_STUCK GENERATE AVERAGE SHARE_EMBEDDINGS WARMUP RECIPE; do
        [ -z "${!setting:-}" ] || echo "export $setting=$(printf %q "${!setting}")"
    done
    cat <<JOB
trap 'scontrol requeue "\$SLURM_JOB_ID"' USR1  # sent when the time is nearly over
bash $(printf '%q ' "scripts/$(basename "$0")" "${extra[@]}")&
wait \$!
JOB
}
