"""RLlib on a workload: PPO, or IMPALA where data may be a little old: python run_rllib.py w2e1 --runners 2

Env runners are processes that play; the learner is in the main process, or with --learners 1 in one of its own. IMPALA
takes one step on each batch, and its batch cannot be less than what an env runner brings at a time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import workloads
from workloads import WORKLOADS, Workload

PPO_NAMES, IMPALA_NAMES = ("w1", "w2", "w3"), ("w2e1", "w5e1")
CHUNK = 16
"""Steps that an LSTM is trained through."""


def main() -> None:
    """Train until killed."""
    parser = workloads.parser(__doc__ or "", *PPO_NAMES, *IMPALA_NAMES)
    parser.add_argument("--runners", type=int, default=2, help="processes that play; 0 plays in the main process [2]")
    parser.add_argument("--learners", type=int, default=0, help="processes that learn; 0 for the main process [0]")
    options = parser.parse_args()
    workloads.use_threads(options.threads)
    here = str(Path(__file__).resolve().parent)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    import ray
    import torch
    from ray.tune.registry import register_env

    torch.set_num_threads(options.threads)
    # Ray's own notion of processors only keeps it from starting what was asked for.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=options.verbose, object_store_memory=10**9)
    work = WORKLOADS[options.workload]
    register_env("pong", lambda _: pong())
    train(configured(work, options).build_algo(), work, options)


def train(algorithm: Any, work: Workload, options: Any) -> None:
    """Train, and tell of each result."""
    trained = 0
    while True:
        result = algorithm.train()
        now = trained_on(result, work, options.workload in IMPALA_NAMES)
        if now > trained:
            trained = now
            workloads.report(trained)
        if options.verbose:
            print("reward", result["env_runners"].get("episode_return_mean"), file=sys.stderr)


def trained_on(result: dict[str, Any], work: Workload, impala: bool) -> int:
    """Steps trained on, each counted once; PPO learns from all that it has just played."""
    if not impala:
        return int(result["env_runners"]["num_env_steps_sampled_lifetime"])
    rows = int(result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0))
    # Each rollout has one row more than steps, for the value of what comes after it.
    return rows * work.rollout // (work.rollout + 1)


def configured(work: Workload, options: Any) -> Any:
    """The algorithm's settings."""
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    impala = options.workload in IMPALA_NAMES
    envs = work.envs // max(1, options.runners)
    config = impala_settings(work, envs * work.rollout) if impala else ppo_settings(work)
    config = config.environment("pong" if work.pictures else work.env)
    config = config.env_runners(
        num_env_runners=options.runners, num_envs_per_env_runner=envs, rollout_fragment_length=work.rollout
    )
    config = config.learners(num_learners=options.learners)
    config = config.reporting(min_time_s_per_iteration=0, metrics_num_episodes_for_smoothing=20)
    if work.pictures:
        from rllib_module import Nature

        model = {"lstm": work.lstm, "max_seq_len": CHUNK}
        return config.rl_module(rl_module_spec=RLModuleSpec(module_class=Nature, model_config=model))
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    hidden = [workloads.HIDDEN] * 2
    model = DefaultModelConfig(
        fcnet_hiddens=hidden, fcnet_activation="tanh", head_fcnet_hiddens=[], vf_share_layers=False
    )
    return config.rl_module(model_config=model)


def ppo_settings(work: Workload) -> Any:
    """PPO's settings."""
    from ray.rllib.algorithms.ppo import PPOConfig

    return PPOConfig().training(
        train_batch_size_per_learner=work.batch,
        minibatch_size=work.minibatch,
        num_epochs=work.epochs,
        lr=work.learning_rate,
        gamma=workloads.GAMMA,
        lambda_=workloads.LAMBDA,
        clip_param=work.clip,
        entropy_coeff=work.entropy,
        vf_loss_coeff=workloads.VALUE,
        vf_clip_param=1e6,
        grad_clip=workloads.GRAD_NORM,
        use_kl_loss=False,
    )


def impala_settings(work: Workload, batch: int) -> Any:
    """IMPALA's settings."""
    from ray.rllib.algorithms.impala import IMPALAConfig

    return IMPALAConfig().training(
        train_batch_size_per_learner=batch,
        lr=work.learning_rate,
        gamma=workloads.GAMMA,
        entropy_coeff=work.entropy,
        vf_loss_coeff=workloads.VALUE,
        grad_clip=workloads.GRAD_NORM,
    )


def pong() -> Any:
    """A game: each action lasts 4 frames, the maximum of the last 2 is seen in grey 84x84, with the 3 before it."""
    import ale_py
    import gymnasium
    from gymnasium import wrappers

    gymnasium.register_envs(ale_py)
    game = wrappers.AtariPreprocessing(gymnasium.make(workloads.PONG), noop_max=30, frame_skip=4, screen_size=84)
    return wrappers.FrameStackObservation(game, 4)


if __name__ == "__main__":
    main()
