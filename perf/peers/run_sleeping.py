"""RLlib's IMPALA on environments that sleep: python run_sleeping.py --actors 4 --envs 8 --rollout 32 --sleep 0.02

Its env runners are the actors; the learner is in the main process. A batch has one rollout of each env runner. What
environments, acting and learning take is counted in the folder that SRL_SPENT names.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
sys.path.insert(0, HERE)

import workloads  # noqa: E402 the line above lets env runners find it, too


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--actors", "--envs", "--rollout"):
        parser.add_argument(flag, type=int, required=True)
    parser.add_argument("--sleep", type=float, required=True)
    options = parser.parse_args()
    workloads.use_threads(1)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    import ray
    import torch
    from ray.tune.registry import register_env

    torch.set_num_threads(1)
    ray.init(num_cpus=options.actors + 2, include_dashboard=False, log_to_driver=False, object_store_memory=2 * 10**8)
    register_env("sleeping", lambda context: made(context, options.sleep))
    algorithm = configured(options).build_algo()
    trained = 0
    while True:
        learners = algorithm.train().get("learners", {}).get("__all_modules__", {})
        rows = int(learners.get("num_env_steps_trained_lifetime", 0))
        # Each rollout has one row more than steps, for the value of what comes after it.
        now = rows * options.rollout // (options.rollout + 1)
        if now > trained:
            trained = now
            workloads.report(trained)


def made(context: Any, seconds: float) -> Any:
    """The environments of one env runner."""
    from sleeping import Sleeping

    return Sleeping(context.get("num_envs", 1), seconds, os.environ.get("SRL_SPENT", ""))


def configured(options: argparse.Namespace) -> Any:
    """The algorithm's settings."""
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from rllib_counted import CountedLearner, CountedModule

    model = DefaultModelConfig(
        fcnet_hiddens=[workloads.HIDDEN] * 2, fcnet_activation="tanh", head_fcnet_hiddens=[], vf_share_layers=False
    )
    batch = options.actors * options.envs * options.rollout
    return (
        IMPALAConfig()
        .training(
            train_batch_size_per_learner=batch,
            lr=6e-4,
            entropy_coeff=0.01,
            grad_clip=workloads.GRAD_NORM,
        )
        .environment("sleeping")
        .env_runners(
            num_env_runners=options.actors,
            num_envs_per_env_runner=options.envs,
            rollout_fragment_length=options.rollout,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .learners(num_learners=0, learner_class=CountedLearner)
        .reporting(min_time_s_per_iteration=1)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=CountedModule, model_config=model))
    )


if __name__ == "__main__":
    main()
