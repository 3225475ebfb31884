"""Stable-Baselines3's PPO, and sb3-contrib's RecurrentPPO, on a workload: python run_sb3.py w2 --vector subproc."""

from __future__ import annotations

from typing import Any

import workloads

NAMES = ("w1", "w2", "w2e1", "w3", "w3e1", "w5", "w5e1")
FOREVER = 10**12


def main() -> None:
    """Train until killed."""
    parser = workloads.parser(__doc__, *NAMES)
    parser.add_argument("--vector", choices=("dummy", "subproc"), default="dummy", help="a loop, or a process each")
    options = parser.parse_args()
    workloads.use_threads(options.threads)
    train(workloads.WORKLOADS[options.workload], options)


def train(work: workloads.Workload, options: Any) -> None:
    """Build the algorithm and let it learn."""
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3 import PPO

    torch.set_num_threads(options.threads)
    family = "Cnn" if work.pictures else "Mlp"
    algorithm = reporting(RecurrentPPO if work.lstm else PPO)(
        f"{family}LstmPolicy" if work.lstm else f"{family}Policy",
        environments(work, options.vector),
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
        policy_kwargs=memory(work) if work.lstm else {},
        verbose=int(options.verbose),
        seed=1,
        device="cpu",
    )
    algorithm.learn(FOREVER, log_interval=1 if options.verbose else FOREVER)


def memory(work: workloads.Workload) -> dict[str, Any]:
    """One LSTM for actor and critic."""
    return {"lstm_hidden_size": work.lstm, "shared_lstm": True, "enable_critic_lstm": False}


def reporting(algorithm: type[Any]) -> type[Any]:
    """The same algorithm, telling of each update."""

    class Reporting(algorithm):
        def train(self) -> None:
            super().train()
            workloads.report(self.num_timesteps)

    return Reporting


def environments(work: workloads.Workload, vector: str) -> Any:
    """The environments, in a loop or in a process each."""
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    how = {"n_envs": work.envs, "seed": 1, "vec_env_cls": SubprocVecEnv if vector == "subproc" else DummyVecEnv}
    if not work.pictures:
        return make_vec_env(work.env, **how)
    return VecFrameStack(make_atari_env(atari, wrapper_kwargs={"terminal_on_life_loss": False}, **how), n_stack=4)


def atari(**options: Any) -> Any:
    """One game; a process that steps it has to make it known first."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return gymnasium.make(workloads.PONG, **options)


if __name__ == "__main__":
    main()
