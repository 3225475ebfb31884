"""PufferLib's PuffeRL on a workload, with its Serial vectorisation: python run_pufferlib.py w2 --threads 2

Its minibatches are whole segments of `bptt_horizon` steps, drawn anew for each of them; with prio_alpha 0 all segments
are equally probable, which is as near to shuffled epochs as it goes.
"""

from __future__ import annotations

import tempfile
from typing import Any

import workloads
from workloads import HIDDEN, WORKLOADS, Workload

NAMES = ("w1", "w2", "w2e1", "w3", "w3e1")
FOREVER = 10**12


def main() -> None:
    """Train until killed."""
    options = workloads.parser(__doc__ or "", *NAMES).parse_args()
    workloads.use_threads(options.threads)
    import torch
    from pufferlib.pufferl import PuffeRL

    class Quiet(PuffeRL):
        """Without the panel, whose drawing would cost a tenth of the time."""

        def print_dashboard(self, *_: Any, **__: Any) -> None:
            pass

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    work = WORKLOADS[options.workload]
    made = environments(work)
    trainer = Quiet(settings(work), made, network(work, made))
    while True:
        trainer.evaluate()
        trainer.train()
        workloads.report(trainer.global_step)
        if options.verbose:
            stats = trainer.stats or trainer.last_stats
            print({name: sum(found) / len(found) for name, found in stats.items() if isinstance(found, list)})


def environments(work: Workload) -> Any:
    """The environments, stepped one after another into one buffer."""
    import gymnasium
    import pufferlib
    import pufferlib.emulation
    import pufferlib.vector

    if work.pictures:
        import games

    def one(buf: Any = None, seed: int = 0) -> Any:
        made = games.pong() if work.pictures else gymnasium.make(work.env.replace("-v5", "-v4"))
        return pufferlib.emulation.GymnasiumPufferEnv(env=pufferlib.EpisodeStats(made), buf=buf, seed=seed)

    return pufferlib.vector.make(one, backend=pufferlib.vector.Serial, num_envs=work.envs, seed=1)


def settings(work: Workload) -> dict[str, Any]:
    """PuffeRL's settings; all that it reads has to be there."""
    horizon = min(work.rollout, work.minibatch)
    return {
        "env": work.env,
        "seed": 1,
        "device": "cpu",
        "cpu_offload": False,
        "torch_deterministic": True,
        "precision": "float32",
        "use_rnn": False,
        "compile": False,
        "data_dir": tempfile.gettempdir(),
        "checkpoint_interval": FOREVER,
        "total_timesteps": FOREVER,
        "batch_size": work.batch,
        "bptt_horizon": horizon,
        "minibatch_size": work.minibatch,
        "max_minibatch_size": work.minibatch,
        "update_epochs": work.epochs,
        "prio_alpha": 0.0,
        "prio_beta0": 1.0,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "optimizer": "adam",
        "anneal_lr": False,
        "learning_rate": work.learning_rate,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-5,
        "max_grad_norm": workloads.GRAD_NORM,
        "gamma": workloads.GAMMA,
        "gae_lambda": workloads.LAMBDA,
        "clip_coef": work.clip,
        "ent_coef": work.entropy,
        "vf_coef": workloads.VALUE,
        "vf_clip_coef": 1e6,
    }


def network(work: Workload, made: Any) -> Any:
    """The network, with the two methods that PuffeRL calls."""
    import torch
    from pufferlib.pytorch import layer_init as layer
    from torch import Tensor, nn

    def mlp(inputs: int, outputs: int, std: float) -> nn.Sequential:
        hidden = [layer(nn.Linear(inputs, HIDDEN)), nn.Tanh(), layer(nn.Linear(HIDDEN, HIDDEN)), nn.Tanh()]
        return nn.Sequential(*hidden, layer(nn.Linear(HIDDEN, outputs), std=std))

    def cnn() -> nn.Sequential:
        convolutions = [nn.Conv2d(4, 32, 8, stride=4), nn.Conv2d(32, 64, 4, stride=2), nn.Conv2d(64, 64, 3)]
        layers = [part for made in convolutions for part in (layer(made), nn.ReLU())]
        return nn.Sequential(*layers, nn.Flatten(), layer(nn.Linear(64 * 7 * 7, 512)), nn.ReLU())

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            space = made.single_action_space
            self.continuous = not hasattr(space, "n")
            actions = space.shape[0] if self.continuous else int(space.n)
            inputs = made.single_observation_space.shape[0]
            if work.pictures:
                self.body: Any = cnn()
                self.actor, self.critic = layer(nn.Linear(512, actions), std=0.01), layer(nn.Linear(512, 1), std=1.0)
            else:
                self.body = nn.Identity()
                self.actor, self.critic = mlp(inputs, actions, 0.01), mlp(inputs, 1, 1.0)
            if self.continuous:
                self.log_std = nn.Parameter(torch.zeros(1, actions))

        def forward(self, obs: Tensor, state: Any = None) -> tuple[Any, Tensor]:
            hidden = self.body(obs.float() / 255.0 if work.pictures else obs.float())
            head = self.actor(hidden)
            if self.continuous:
                head = torch.distributions.Normal(head, self.log_std.expand_as(head).exp())
            return head, self.critic(hidden)

        forward_eval = forward

    return Policy()


if __name__ == "__main__":
    main()
