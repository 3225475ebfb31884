#!/usr/bin/env bash
# shellcheck disable=SC2329  # Functions are sent to the nodes.
#
# SRL on Slurm: one Ray node per Slurm node, then `srl train` beside the head, on the first of them.
#
#   RUNS=/shared/runs NAME=pong sbatch --nodes 4 --cpus-per-task 32 deploy/slurm.sh ppo --env ALE/Pong-v5
#
# All words go to `srl train`. RUNS and the environment that SRL is installed in must be visible on every node under
# the same path. Submit from a shell in which `srl` and `ray` are found.
#
#   RUNS, NAME  where the run's folder is made (runs), and its name (slurm-JOB)
#   INTERFACE   the network interface that nodes reach each other by, e.g. ib0; if not set, a node's first address
#   WAIT        seconds for the nodes to come up (180)
#   SRL, RAY    the two programs, if they are not on the PATH
#
#SBATCH --job-name=srl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --output=srl-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --no-kill

set -euo pipefail

: "${SLURM_JOB_ID:?start this with sbatch}" "${SLURM_JOB_NUM_NODES:?}" "${SLURM_JOB_NODELIST:?}"
: "${RUNS:=runs}" "${NAME:=slurm-$SLURM_JOB_ID}" "${INTERFACE:=}" "${WAIT:=180}" "${SRL:=srl}" "${RAY:=ray}"

# Ports of this job alone, between those that Ray gives to its workers and those that the system gives to clients.
PORT=$((20000 + SLURM_JOB_ID % 5000))
CLIENT_PORT=$((25000 + SLURM_JOB_ID % 5000))
CPUS=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:?}}
export INTERFACE WAIT RAY PORT CLIENT_PORT CPUS

# Whoever has the token may run anything on the nodes. It is handed on in the environment and never written to a file.
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_ENABLE_UV_RUN_RUNTIME_ENV=0

# A node that dies is noticed within 5 s; one whose link is cut may come back within 50 s.
export RAY_health_check_initial_delay_ms=1000 RAY_health_check_period_ms=500
export RAY_health_check_timeout_ms=10000 RAY_health_check_failure_threshold=10

# The address of the node that this runs on.
address() {
    if [[ -n $INTERFACE ]]; then
        ip -4 -oneline address show dev "$INTERFACE" | awk '{ split($4, part, "/"); print part[1]; exit }'
    else
        hostname -I | awk '{ print $1 }'
    fi
}

# A Ray node, until it is told to end: on SIGTERM Ray ends what it started.
node() {
    local here folder=/tmp/srl-ray-$SLURM_JOB_ID-$SLURM_NODEID role until=$((SECONDS + WAIT))
    here=$(address)
    if [[ $here == "$HEAD" ]]; then
        role=(--head --port="$PORT" --ray-client-server-port="$CLIENT_PORT" --include-dashboard=false)
    else
        role=(--address="$HEAD:$PORT")
        until (exec 3<> "/dev/tcp/$HEAD/$PORT") 2> /dev/null; do
            ((SECONDS < until)) || { echo "$here does not reach $HEAD:$PORT" >&2; exit 1; }
            sleep 0.2
        done
    fi
    "$RAY" start "${role[@]}" --node-ip-address="$here" --num-cpus="$CPUS" --temp-dir="$folder" --disable-usage-stats \
        --block > /dev/null &
    trap 'kill -TERM %1' TERM INT
    # A signal ends `wait` before Ray has ended.
    until wait %1 || ! kill -0 %1 2> /dev/null; do :; done
    rm -rf "$folder"
}

FUNCTIONS=$(declare -f address node)
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
HEAD=$(srun --export=ALL --nodes=1 --ntasks=1 --nodelist="$first" bash -c "$FUNCTIONS; address")
export HEAD
echo "Ray's head is $HEAD:$PORT, on $first"

run=
# A node that fails ends neither the others nor the job. A step gets the CPUs of its tasks only if they are named again.
srun --export=ALL --no-kill --kill-on-bad-exit=0 --wait=0 --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    --cpus-per-task="$CPUS" bash -c "$FUNCTIONS; node" &
nodes=$!
trap 'kill -TERM "$nodes" 2> /dev/null && wait "$nodes"' EXIT
# Slurm says that time is nearly up: the run writes a checkpoint and ends.
trap 'if [[ -n $run ]]; then kill -TERM "$run"; else exit 143; fi' TERM INT

"$(dirname "$(command -v "$RAY")")/python" - "$HEAD" "$PORT" "$SLURM_JOB_NUM_NODES" "$WAIT" <<'PYTHON'
import sys
import time

import ray

head, port, count, seconds = sys.argv[1], *map(int, sys.argv[2:])
until = time.monotonic() + seconds
alive = 0
while alive < count:
    if time.monotonic() > until:
        sys.exit(f"only {alive} of {count} Ray nodes came up within {seconds} s")
    try:
        ray.init(f"{head}:{port}", _node_ip_address=head, log_to_driver=False, ignore_reinit_error=True)
        alive = sum(node["Alive"] for node in ray.nodes())
    except ConnectionError:
        pass
    time.sleep(0.5)
PYTHON
echo "$SLURM_JOB_NUM_NODES nodes are up"

words=("$@" --runs "$RUNS" --launcher ray --address "$HEAD:$PORT")
# A job that Slurm started again goes on with its run.
if [[ ${SLURM_RESTART_COUNT:-0} != 0 && -d $RUNS/$NAME ]]; then
    words+=(--resume "$NAME")
else
    words+=(--name "$NAME")
fi
"$SRL" train "${words[@]}" &
run=$!
status=0
wait "$run" || status=$?
# A signal ends `wait` before the run has ended.
while kill -0 "$run" 2> /dev/null; do
    status=0
    wait "$run" || status=$?
done
exit "$status"
