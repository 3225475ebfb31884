"""Train from Python, load the policy back, and play an episode with it."""

import gymnasium

from srl import load, train
from srl.recipes.ppo import ppo

if __name__ == "__main__":
    result = train(ppo("CartPole-v1", steps=50_000, learning_rate=1e-3))
    print(f"{result.summary['status']}, mean reward {result.summary['ep_rew_mean']:.1f}")

    policy = load(result.path)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    state, over, reward = None, False, 0.0
    while not over:
        action, state = policy.predict(obs, state)
        obs, step_reward, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        reward += float(step_reward)
    print(f"one episode with the trained policy: {reward:.0f}")
