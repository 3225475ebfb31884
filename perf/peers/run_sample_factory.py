"""Sample Factory's APPO on a workload: python run_sample_factory.py w2e1 --mode async --workers 2

In serial mode everything happens in turn in one process; in async mode workers play while the learner, a process with
one thread, learns. Processes of the async mode import this module anew, so what they need happens at its top level.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import workloads
from workloads import WORKLOADS, Workload

NAMES = ("w1", "w2", "w2e1", "w3", "w3e1", "w5", "w5e1")
FOREVER = str(10**12)
TRACES = Path(tempfile.gettempdir()) / "sample_factory_peer"
"""Where Sample Factory keeps its logs; each run overwrites those of the run before."""


def telling_learner() -> None:
    """Make the learner tell of each update, in whichever process it is, and keep warnings of high losses quiet."""
    from sample_factory.algo.learning.learner import Learner
    from sample_factory.utils.utils import log

    if "--verbose" not in sys.argv:
        log.setLevel(logging.ERROR)
    learn = Learner.train

    def train(self: Any, batch: Any) -> Any:
        stats = learn(self, batch)
        workloads.report(self.env_steps)
        return stats

    Learner.train = train


def environment(name: str, config: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """One environment, as the signature of Sample Factory wants it."""
    if name == workloads.PONG:
        import games

        return games.pong()
    import gymnasium

    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(name))


def settings(work: Workload, options: Any) -> dict[str, Any]:
    """What differs from Sample Factory's defaults."""
    serial, workers = options.mode == "serial", 1 if options.mode == "serial" else options.workers
    chunk = options.chunk or work.rollout
    return {
        "env": work.env.replace("-v5", "-v4"),
        "experiment": options.workload,
        "train_dir": TRACES,
        "restart_behavior": "overwrite",
        "device": "cpu",
        "seed": 1,
        "serial_mode": serial,
        "async_rl": options.mode == "async",
        "num_workers": workers,
        "num_envs_per_worker": work.envs // workers,
        "worker_num_splits": 1 if serial else options.splits,
        "num_batches_to_accumulate": 1 if serial else options.accumulate,
        "rollout": work.rollout,
        "recurrence": chunk if work.lstm else 1,
        "batch_size": work.minibatch,
        "num_batches_per_epoch": work.minibatches,
        "num_epochs": work.epochs,
        "shuffle_minibatches": True,
        "train_for_env_steps": FOREVER,
        "train_for_seconds": FOREVER,
        "save_every_sec": FOREVER,
        "save_best_every_sec": FOREVER,
        "log_to_file": False,
        "summaries_use_frameskip": False,
        "set_workers_cpu_affinity": False,
        **losses(work),
        **network(work),
    }


def losses(work: Workload) -> dict[str, Any]:
    """The loss and the optimiser."""
    return {
        "gamma": workloads.GAMMA,
        "gae_lambda": workloads.LAMBDA,
        "ppo_clip_ratio": work.clip,
        "ppo_clip_value": 1e6,
        "exploration_loss_coeff": work.entropy,
        "value_loss_coeff": workloads.VALUE,
        "max_grad_norm": workloads.GRAD_NORM,
        "learning_rate": work.learning_rate,
        "adam_eps": 1e-5,
        "with_vtrace": False,
        "normalize_input": False,
        "normalize_returns": False,
    }


def network(work: Workload) -> dict[str, Any]:
    """The network."""
    made: dict[str, Any] = {"use_rnn": bool(work.lstm), "adaptive_stddev": False}
    if work.lstm:
        made |= {"rnn_type": "lstm", "rnn_size": work.lstm}
    if work.pictures:
        return made | {"encoder_conv_architecture": "convnet_atari", "nonlinearity": "relu", "obs_scale": 255.0}
    layers = [workloads.HIDDEN] * 2
    return made | {"encoder_mlp_layers": layers, "nonlinearity": "tanh", "actor_critic_share_weights": False}


def main() -> None:
    """Train until killed."""
    parser = workloads.parser(__doc__ or "", *NAMES)
    parser.add_argument("--mode", choices=("serial", "sync", "async"), default="serial")
    parser.add_argument("--workers", type=int, default=2, help="processes that step environments, unless serial [2]")
    parser.add_argument("--splits", type=int, default=2, help="groups of environments that take turns in a worker [2]")
    parser.add_argument("--accumulate", type=int, default=2, help="batches that may wait for the learner [2]")
    parser.add_argument("--chunk", type=int, default=0, help="steps that an LSTM is trained through; 0 for all [0]")
    options = parser.parse_args()
    workloads.use_threads(options.threads)
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    telling_learner()
    made = settings(WORKLOADS[options.workload], options)
    register_env(made["env"], environment)
    line = []
    for name, value in made.items():
        line += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    settled, _ = parse_sf_args(line)
    run_rl(parse_full_cfg(settled, line))


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    telling_learner()
