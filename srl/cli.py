"""The command line: srl train | submit | resume | eval | play | show | list | doctor | bench.

Each verb is a short function that parses its words and calls the part that does the work. Nothing slow is imported
before it is needed, so that a typing error is answered at once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from srl import flags
from srl.errors import UserError, nearest
from srl.experiment import MAIN, Experiment
from srl.recipes import BUILT_IN
from srl.settings import demand_trust, outside, set_path, trusting

USER_ERROR, FAILED, INTERRUPTED = 2, 3, 130
DESCRIPTIONS = {
    "train": "train a recipe: srl train ppo --env CartPole-v1",
    "resume": "go on with a run that was stopped: srl resume RUN [--steps N]",
    "eval": "play episodes with a trained policy and print its reward: srl eval RUN",
    "play": "watch a trained policy, or record it: srl play RUN [--video FILE]",
    "show": "draw what a recipe would start, without starting it: srl show ppo --actors 4",
    "list": "recipes, and the runs of a folder",
    "doctor": "what is installed and what this machine can do",
    "versions": "the versions that a run has kept, with their results and tags: srl versions RUN",
    "tag": "give a version of a run a name, and keep it: srl tag RUN VERSION LABEL",
    "submit": "train on a Ray cluster as a job of its own: srl submit ppo --env CartPole-v1",
    "bench": "measure how fast this machine trains: srl bench w2 --seconds 60",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the exit code says how it ended."""
    words = list(sys.argv[1:] if words is None else words)
    # As with `python -m`: what lies in this folder can be named.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return _dispatch(words)
    except UserError as error:
        print(f"srl: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads our words, `head` say, has had enough; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(words: list[str]) -> int:
    verbs: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "submit": _submit,
        "resume": _resume,
        "eval": _eval,
        "play": _play,
        "show": _show,
        "list": _list,
        "doctor": _doctor,
        "versions": _versions,
        "tag": _tag,
        "bench": _bench,
    }
    if not words or words[0] in ("-h", "--help", "help"):
        print("usage: srl VERB ...; srl VERB --help says more\n")
        print("\n".join(f"  {verb:8} {text}" for verb, text in DESCRIPTIONS.items()))
        return 0
    if words[0] not in verbs:
        raise UserError(f"no verb {words[0]!r}{nearest(words[0], verbs)}; there are {', '.join(verbs)}")
    return verbs[words[0]](words[1:])


def _parser(verb: str, **options: Any) -> flags.Parser:
    return flags.Parser(prog=f"srl {verb}", description=DESCRIPTIONS[verb], **options)


def _runs_flag(parser: flags.Parser) -> None:
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of runs [runs]")


def _trust_flag(parser: flags.Parser) -> None:
    parser.add_argument(
        "--trust",
        type=lambda text: text.split(","),
        default=[],
        metavar="MODULE,...",
        help="modules outside srl that the run may import",
    )


def _experiment(verb: str, words: list[str], parser: flags.Parser) -> tuple[Experiment, Any]:
    """The experiment that the words describe, and the other options."""
    if not words or words[0].startswith("-"):
        if "-h" in words or "--help" in words:
            print(f"usage: srl {verb} RECIPE ...; recipes: {', '.join(BUILT_IN)}, or module:function")
            raise SystemExit(0)
        raise UserError(f"srl {verb} needs a recipe first: {', '.join(BUILT_IN)}, or module:function")
    recipe = flags.find_recipe(words[0])
    parser.prog = f"srl {verb} {words[0]}"
    parser.description = flags.first_line(recipe)
    flags.add_parameters(parser, recipe)
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b.c=VALUE", dest="settings", help="any setting, by its path"
    )
    options = parser.parse_all(words[1:])
    experiment = recipe(**flags.given(options, recipe))
    if not isinstance(experiment, Experiment):
        raise UserError(f"recipe {words[0]} returned {type(experiment).__name__}, not an Experiment")
    for setting in options.settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting!r} must look like a.b.c=VALUE")
        experiment = set_path(experiment, path, text, trusting())
    _check(experiment)
    return experiment, options


def _check(experiment: Experiment) -> None:
    from srl.envs.base import check_name

    experiment.check()
    for actors in experiment.actors.values():
        check_name(actors.env)


def _launcher_flags(parser: Any) -> None:
    where = "where workers live: processes here, one thread, or a Ray cluster [local]"
    parser.add_argument("--launcher", choices=("local", "serial", "ray"), default="local", help=where)
    parser.add_argument("--address", metavar="HOST:PORT", help="of the Ray cluster [the one here, or a new one]")


def _train_flags(parser: Any) -> None:
    _runs_flag(parser)
    parser.add_argument("--name", help="name of the run folder")
    parser.add_argument("--resume", metavar="RUN", help="go on with this run, which must have the same settings")
    parser.add_argument("--init", metavar="RUN[:VERSION]", help="begin with the weights of a run [its best or latest]")
    parser.add_argument("--init-part", default="", metavar="PREFIX", help="only weights whose names begin so")
    _launcher_flags(parser)
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _train(words: list[str]) -> int:
    parser = _parser("train")
    _train_flags(parser)
    experiment, options = _experiment("train", words, parser)
    from srl import control, origins

    if options.init:
        experiment = origins.initialised(experiment, options.runs, options.init, options.init_part)

    def run() -> control.Result:
        if options.resume:
            return control.resume(
                origins.same(experiment, options.runs, options.resume),
                experiment,
                launcher=options.launcher,
                address=options.address,
                quiet=options.quiet,
            )
        return control.train(
            experiment,
            launcher=options.launcher,
            address=options.address,
            runs_folder=options.runs,
            name=options.name,
            quiet=options.quiet,
            command=["srl", "train", *words],
        )

    return _run(run, experiment, options.quiet)


def _submit(words: list[str]) -> int:
    parser = _parser("submit")
    parser.add_argument("--dashboard", metavar="URL", help="of the cluster [RAY_API_SERVER_ADDRESS, or the one here]")
    parser.add_argument("--folder", metavar="DIR", help="a folder with code of yours that the job needs; it is sent")
    parser.add_argument("--detach", action="store_true", help="do not follow what the run says")
    options, rest = parser.parse_known_args(words)
    # What is wrong with the words for `srl train` is said here, and not after the cluster has found a place for them.
    trained = _parser("train")
    _train_flags(trained)
    _experiment("submit", rest, trained)
    from srl.submit import submit

    return submit(rest, dashboard=options.dashboard, folder=options.folder, follow=not options.detach)


def _resume(words: list[str]) -> int:
    parser = _parser("resume")
    parser.add_argument("run", metavar="RUN", help="a run folder, its name, or latest")
    parser.add_argument("--steps", type=flags.whole_number("--steps"), help="train on to so many steps in all")
    _launcher_flags(parser)
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    _runs_flag(parser)
    _trust_flag(parser)
    options = parser.parse_all(words)
    from srl import control, runs

    run = runs.find(options.runs, options.run)
    experiment = run.experiment(*options.trust)
    demand_trust(experiment, *options.trust)
    if options.steps:
        experiment = set_path(experiment, "stop.steps", str(options.steps), trusting())
    return _run(
        lambda: control.resume(
            run, experiment, launcher=options.launcher, address=options.address, quiet=options.quiet
        ),
        experiment,
        options.quiet,
    )


def _run(start: Callable[[], Any], experiment: Experiment, quiet: bool) -> int:
    """Train, and say how it ended; a worker's traceback is printed last but for the cause in one line."""
    from srl.launchers.base import WorkerFailed

    try:
        result = start()
    except WorkerFailed as failure:
        print(failure.traceback, file=sys.stderr, end="")
        print(f"srl: {failure}", file=sys.stderr)
        return FAILED
    if not quiet:
        modules = ",".join(outside(experiment))
        trust = f" --trust {modules}" if modules else ""
        print(f"run folder {result.path}")
        print(f"next: srl eval {result.path}{trust}")
        print(f"      srl play {result.path}{trust}")
        print(f"      tensorboard --logdir {result.path.parent}")
    return 0


def _eval(words: list[str]) -> int:
    options = _play_parser("eval", episodes=20).parse_all(words)
    run = _found(options)
    from srl import play

    print(play.evaluation(run, _play_options(options)))
    return 0


def _play(words: list[str]) -> int:
    parser = _play_parser("play", episodes=1)
    parser.add_argument("--video", type=Path, metavar="FILE", help="record an mp4 instead of opening a window")
    options = parser.parse_all(words)
    run = _found(options)
    from srl import play

    if options.video is None:
        play.watch(run, _play_options(options))
    else:
        count = play.record(run, _play_options(options), options.video)
        print(f"recorded {count:,} pictures in {options.video}")
    return 0


def _play_parser(verb: str, episodes: int) -> flags.Parser:
    parser = _parser(verb)
    parser.add_argument("run", metavar="RUN", help="a run folder, its name, or latest")
    for flag, default, text in (("--episodes", episodes, "episodes to play"), ("--seed", 0, "seed of the episodes")):
        kind = flags.whole_number(flag)
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=f"{text} [{default}]")
    parser.add_argument("--checkpoint", metavar="NAME", help="best, latest, or a checkpoint's name [best, else latest]")
    parser.add_argument("--sample", action="store_true", help="sample actions instead of taking the most likely")
    _runs_flag(parser)
    _trust_flag(parser)
    return parser


def _play_options(options: Any) -> Any:
    from srl import play

    names = ("episodes", "seed", "sample", "checkpoint")
    return play.Options(trust=tuple(options.trust), **{name: getattr(options, name) for name in names})


def _found(options: Any) -> Any:
    from srl import runs

    return runs.find(options.runs, options.run)


def _show(words: list[str]) -> int:
    experiment, _ = _experiment("show", words, _parser("show"))
    from srl import show

    print(show.drawn(experiment))
    return 0


def _list(words: list[str]) -> int:
    parser = _parser("list")
    _runs_flag(parser)
    options = parser.parse_all(words)
    print("recipes")
    for name in BUILT_IN:
        print(f"  {name:10} {flags.first_line(flags.find_recipe(name))}")
    from srl import runs

    print(f"runs in {options.runs}")
    for run in runs.listing(options.runs):
        print("  " + _run_line(run))
    return 0


def _run_line(run: Any) -> str:
    summary = run.summary()
    reward = summary.get("ep_rew_mean")
    said = "-" if reward is None else f"{reward:.1f}"
    return f"{run.name:60} {summary['status']:12} {summary.get('steps', 0):>12,} steps  reward {said}"


def _doctor(words: list[str]) -> int:
    _parser("doctor").parse_all(words)
    from srl import doctor

    started = time.monotonic()
    for line in doctor.report():
        print(line)
    print(f"looked around in {time.monotonic() - started:.1f} s")
    return 0


def _versions(words: list[str]) -> int:
    run, policy, store, _ = _store("versions", words)
    print(f"{run.name}, policy {policy}")
    print(f"{'version':>9} {'steps':>13} {'reward':>9} {'evaluated':>20}  tags")
    for version in store.versions(policy):
        reward = "-" if version.reward is None else f"{version.reward:.1f}"
        found = version.evaluation
        evaluated = "-" if found is None else f"{found.mean:.1f} +- {found.std:.1f}"
        gone = "" if version.folders else "  (weights not kept)"
        line = (
            f"{version.version:>9,} {version.steps:>13,} {reward:>9} {evaluated:>20}  {', '.join(version.tags)}{gone}"
        )
        print(line.rstrip())
    return 0


def _tag(words: list[str]) -> int:
    run, policy, store, options = _store("tag", words, "VERSION", "LABEL")
    version = store.tag(policy, options.VERSION, options.LABEL)
    print(f"{options.LABEL} is version {version.version:,} of {run.name}, {version.steps:,} steps")
    return 0


def _store(verb: str, words: list[str], *names: str) -> tuple[Any, str, Any, Any]:
    parser = _parser(verb)
    parser.add_argument("run", metavar="RUN", help="a run folder, its name, or latest")
    for name in names:
        parser.add_argument(name)
    parser.add_argument("--policy", default=MAIN, help=f"the policy's name [{MAIN}]")
    _runs_flag(parser)
    options = parser.parse_all(words)
    run = _found(options)
    from srl.store import Store

    return run, options.policy, Store(run.path / "store.sqlite"), options


def _bench(words: list[str]) -> int:
    parser = _parser("bench")
    parser.add_argument("workload", metavar="WORKLOAD", help="w1, w1v, w2, w2e1, w3, w3e1, w5 or w5e1")
    for flag, default, text in (("--seconds", 60.0, "length of the window"), ("--warmup", 20.0, "seconds before it")):
        parser.add_argument(flag, type=float, default=default, metavar="S", help=f"{text} [{default:.0f}]")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_all(words)
    from srl import bench

    figures = bench.measure_workload(options.workload, warmup=options.warmup, seconds=options.seconds)
    print(bench.as_json(options.workload, figures) if options.json else bench.said(options.workload, figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
