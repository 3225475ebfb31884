"""PPO in the way CleanRL writes it: one file, a plain loop, tensors for the rollout: python run_cleanrl.py w2 --compile

CleanRL is a collection of single files and no library, so this is written anew after its shape: SyncVectorEnv for
vectors, EnvPool for pictures, orthogonal layers, Adam with eps 1e-5, minibatches of shuffled indices. With --compile
the parts that take time go through torch.compile, as LeanRL does with the same files. Returns are not cut at
truncations, as in CleanRL.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
import workloads
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from workloads import GAMMA, GRAD_NORM, HIDDEN, LAMBDA, VALUE, WORKLOADS, Workload

NAMES = ("w1", "w2", "w2e1", "w3", "w3e1")


def layer(made: Any, std: float = 2**0.5) -> Any:
    """A layer with orthogonal weights and no bias to begin with."""
    nn.init.orthogonal_(made.weight, std)
    nn.init.constant_(made.bias, 0.0)
    return made


def mlp(inputs: int, outputs: int, std: float) -> nn.Sequential:
    """Two hidden layers."""
    hidden = [layer(nn.Linear(inputs, HIDDEN)), nn.Tanh(), layer(nn.Linear(HIDDEN, HIDDEN)), nn.Tanh()]
    return nn.Sequential(*hidden, layer(nn.Linear(HIDDEN, outputs), std))


class VectorAgent(nn.Module):
    """Separate networks for policy and value."""

    def __init__(self, inputs: int, actions: int, continuous: bool) -> None:
        super().__init__()
        self.actor, self.critic = mlp(inputs, actions, 0.01), mlp(inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(1, actions)) if continuous else None

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs).flatten()


class PictureAgent(nn.Module):
    """The Nature CNN, shared by policy and value."""

    log_std = None

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, stride=4)),
            nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            layer(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.actor, self.critic = layer(nn.Linear(512, actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.network(obs / 255.0)
        return self.actor(hidden), self.critic(hidden).flatten()


def log_prob_entropy(agent: Any, head: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """How probable an action was, and the entropy it was drawn with."""
    if agent.log_std is None:
        chosen = Categorical(logits=head, validate_args=False)
        return chosen.log_prob(action), chosen.entropy()
    normal = Normal(head, agent.log_std.expand_as(head).exp(), validate_args=False)
    return normal.log_prob(action).sum(1), normal.entropy().sum(1)


def act(agent: Any, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Actions with their log-probabilities, and values."""
    head, value = agent(obs)
    if agent.log_std is None:
        action = Categorical(logits=head, validate_args=False).sample()
    else:
        action = head + torch.randn_like(head) * agent.log_std.exp()
    return action, log_prob_entropy(agent, head, action)[0], value


def advantages_of(rewards: Tensor, values: Tensor, dones: Tensor, last: Tensor, last_done: Tensor) -> Tensor:
    """Generalised advantages; dones[t] says that the episode ended before step t."""
    found = torch.zeros_like(rewards)
    carried = torch.zeros_like(last)
    for t in reversed(range(len(rewards))):
        final = t == len(rewards) - 1
        goes_on = 1.0 - (last_done if final else dones[t + 1])
        delta = rewards[t] + GAMMA * (last if final else values[t + 1]) * goes_on - values[t]
        carried = delta + GAMMA * LAMBDA * goes_on * carried
        found[t] = carried
    return found


def loss_of(agent: Any, work: Workload, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """PPO's loss of a minibatch, and how far the policy has moved."""
    head, value = agent(batch["obs"])
    log_prob, entropy = log_prob_entropy(agent, head, batch["action"])
    log_ratio = log_prob - batch["log_prob"]
    ratio = log_ratio.exp()
    advantage = batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - work.clip, 1 + work.clip)).mean()
    critic = 0.5 * (value - batch["return"]).square().mean()
    moved = (ratio - 1 - log_ratio).mean().detach()
    return policy - work.entropy * entropy.mean() + VALUE * critic, moved


def environments(work: Workload, threads: int) -> Any:
    """The environments, all stepped by one call; threads are EnvPool's, 0 lets it choose."""
    if work.pictures:
        import envpool

        game = {"episodic_life": False, "reward_clip": True, "repeat_action_probability": 0.0, "seed": 1}
        return envpool.make("Pong-v5", env_type="gymnasium", num_envs=work.envs, num_threads=threads, **game)
    import gymnasium

    def one() -> Any:
        made = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(work.env))
        return gymnasium.wrappers.ClipAction(made) if work.env.startswith("Half") else made

    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.vector.SyncVectorEnv([one] * work.envs, autoreset_mode=mode)


class Trainer:
    """The loop, and what it keeps between rollouts."""

    def __init__(self, work: Workload, options: Any) -> None:
        self.work, self.envs = work, environments(work, options.env_threads)
        obs_space = getattr(self.envs, "single_observation_space", None) or self.envs.observation_space
        action_space = getattr(self.envs, "single_action_space", None) or self.envs.action_space
        continuous = not hasattr(action_space, "n")
        actions = action_space.shape[0] if continuous else int(action_space.n)
        self.agent: Any = (
            PictureAgent(actions) if work.pictures else VectorAgent(obs_space.shape[0], actions, continuous)
        )
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=work.learning_rate, eps=1e-5)
        shape = (work.rollout, work.envs)
        self.obs = torch.zeros((*shape, *obs_space.shape))
        self.action = torch.zeros((*shape, actions) if continuous else shape, dtype=None if continuous else torch.long)
        self.log_prob, self.reward, self.done, self.value = (torch.zeros(shape) for _ in range(4))
        self.next_obs = torch.as_tensor(self.envs.reset()[0], dtype=torch.float32)
        self.next_done = torch.zeros(work.envs)
        heavy = (act, loss_of, advantages_of)
        self.act, self.loss_of, self.advantages_of = map(torch.compile, heavy) if options.compile else heavy
        self.scores, self.score = deque[float](maxlen=100), np.zeros(work.envs)

    @torch.no_grad()
    def collect(self) -> dict[str, Tensor]:
        """Play a rollout; its steps as one flat batch."""
        for t in range(self.work.rollout):
            self.obs[t], self.done[t] = self.next_obs, self.next_done
            self.action[t], self.log_prob[t], self.value[t] = self.act(self.agent, self.next_obs)
            obs, reward, terminated, truncated, _ = self.envs.step(self.action[t].numpy())
            self.reward[t] = torch.as_tensor(reward)
            self.next_obs = torch.as_tensor(obs, dtype=torch.float32)
            self.keep_score(reward, terminated | truncated)
        last = self.agent(self.next_obs)[1]
        advantage = self.advantages_of(self.reward, self.value, self.done, last, self.next_done)
        steps = {"obs": self.obs, "action": self.action, "log_prob": self.log_prob, "advantage": advantage}
        return {name: rows.flatten(0, 1) for name, rows in {**steps, "return": advantage + self.value}.items()}

    def keep_score(self, reward: np.ndarray, done: np.ndarray) -> None:
        """Add rewards to the scores of their episodes."""
        self.next_done = torch.as_tensor(done, dtype=torch.float32)
        self.score += reward
        if done.any():
            self.scores.extend(self.score[done])
            self.score[done] = 0.0

    def learn(self, batch: dict[str, Tensor]) -> None:
        """Learn from a batch."""
        indices = np.arange(self.work.batch)
        for _ in range(self.work.epochs):
            np.random.shuffle(indices)
            for start in range(0, self.work.batch, self.work.minibatch):
                chosen = torch.as_tensor(indices[start : start + self.work.minibatch])
                loss, _ = self.loss_of(self.agent, self.work, {name: rows[chosen] for name, rows in batch.items()})
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), GRAD_NORM)
                self.optimizer.step()


def main() -> None:
    """Train until killed."""
    parser = workloads.parser(__doc__ or "", *NAMES)
    parser.add_argument("--env-threads", type=int, default=0, help="threads of EnvPool; 0 lets it choose [0]")
    parser.add_argument("--compile", action="store_true", help="compile acting, returns and the loss")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    np.random.seed(1)
    torch.manual_seed(1)
    trainer, steps = Trainer(WORKLOADS[options.workload], options), 0
    while True:
        trainer.learn(trainer.collect())
        steps += trainer.work.batch
        workloads.report(steps)
        if options.verbose:
            print("reward", np.mean(trainer.scores) if trainer.scores else None, flush=True)


if __name__ == "__main__":
    main()
