"""A run as a job of a Ray cluster: it starts beside the head, and goes on when whoever sent it has gone.

    srl submit WORDS --> job: srl train WORDS --launcher ray --> workers all over the cluster

What the job prints is followed here; its run folder is where the cluster's hosts see it.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from srl.errors import UserError

FAILED = 3
LOOK_SECONDS = 1.0
"""How often the job is asked what it has said."""


def submit(words: Sequence[str], *, dashboard: str | None, folder: str | None, follow: bool) -> int:
    """Send `srl train` with these words to the cluster; the exit code says how it ended, if it is followed."""
    client = _client(dashboard)
    environment = {"working_dir": folder} if folder else {}
    command = shlex.join(["srl", "train", *words, *(() if "--launcher" in words else ("--launcher", "ray"))])
    job = client.submit_job(entrypoint=command, runtime_env=environment)
    print(f"job {job}: {command}")
    if not follow:
        print(f"follow it with: ray job logs --follow {job}")
        return 0
    try:
        return 0 if _followed(client, job) == "SUCCEEDED" else FAILED
    except KeyboardInterrupt:
        print(f"the job goes on; stop it with: ray job stop {job}", file=sys.stderr)
        raise


def _followed(client: Any, job: str) -> str:
    """Print what the job says until it ends; how it ended."""
    said = 0
    while True:
        # Asked before the words are read, so that the last ones are not missed.
        status = client.get_job_status(job)
        words = client.get_job_logs(job)
        print(words[said:], end="", flush=True)
        said = len(words)
        if status.is_terminal():
            return str(status.value)
        time.sleep(LOOK_SECONDS)


def _client(dashboard: str | None) -> Any:
    try:
        from ray.job_submission import JobSubmissionClient

        return JobSubmissionClient(dashboard)
    except (ImportError, RuntimeError) as error:
        raise UserError(f"srl submit needs Ray's jobs: pip install 'srl[ray]' 'ray[default]' ({error})") from error
    except ConnectionError as error:
        where = dashboard or "the default address"
        raise UserError(f"no cluster's dashboard answers at {where}; say --dashboard http://HEAD:8265") from error
