"""SBX's PPO, which is Stable-Baselines3's in JAX, on a workload: python run_sbx.py w1 --threads 2"""

from __future__ import annotations

import os
from typing import Any

import workloads

NAMES = ("w1", "w3", "w3e1")
FOREVER = 10**12


def main() -> None:
    """Train until killed."""
    options = workloads.parser(__doc__ or "", *NAMES).parse_args()
    workloads.use_threads(options.threads)
    if options.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        # XLA makes as many threads as there are processors to run on.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    train(workloads.WORKLOADS[options.workload], options)


def train(work: workloads.Workload, options: Any) -> None:
    """Build the algorithm and let it learn."""
    import torch
    from sbx import PPO
    from stable_baselines3.common.env_util import make_vec_env

    class Reporting(PPO):
        def train(self) -> None:
            super().train()
            workloads.report(self.num_timesteps)

    torch.set_num_threads(1)
    algorithm = Reporting(
        "MlpPolicy",
        make_vec_env(work.env, n_envs=work.envs, seed=1),
        learning_rate=work.learning_rate,
        n_steps=work.rollout,
        batch_size=work.minibatch,
        n_epochs=work.epochs,
        gamma=workloads.GAMMA,
        gae_lambda=workloads.LAMBDA,
        clip_range=work.clip,
        ent_coef=work.entropy,
        vf_coef=workloads.VALUE,
        max_grad_norm=workloads.GRAD_NORM,
        verbose=int(options.verbose),
        seed=1,
    )
    algorithm.learn(FOREVER, log_interval=1 if options.verbose else FOREVER)


if __name__ == "__main__":
    main()
