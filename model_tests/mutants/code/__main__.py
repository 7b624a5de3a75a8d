"""`python -m model_tests.mutants.code`: try mutants of the important modules, and print the survivors."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

import click
import msgspec
from model_tests.mutants.code import kept
from model_tests.mutants.code.generate import Mutant
from model_tests.mutants.code.run import CannotTellError, tried
from model_tests.mutants.code.server import KILLED, Result
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from longpoll.output import Exit, emit_json, err, fail, json_option, out, progress_bar, table, user_mistakes
from longpoll_spec.errors import UserError

SAMPLE_MAX = 100_000


def changed_modules(base: str) -> list[str]:
    """Return the modules whose files differ from a revision; raises UserError if git does not know it."""
    command = ["git", "diff", "--name-only", "--relative", base, "--", kept.REFERENCE]
    done = subprocess.run(command, cwd=kept.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"git cannot compare with {base!r}: name a revision with BASE=, or a module with MODULE=")
    changed = {kept.ROOT / line for line in done.stdout.splitlines()}
    return [name for name, file in kept.modules().items() if file in changed]


def chosen(names: Iterable[str], sample: int | None, seed: int) -> dict[str, list[Mutant]]:
    """Mutants by module; as many as `sample`, by chance."""
    found = {name: list(kept.module_of(name).mutants) for name in names}
    if sample is not None:
        every = [(name, each) for name, mutants in found.items() for each in mutants]
        drawn = {each.id for _, each in random.Random(seed).sample(every, min(sample, len(every)))}
        found = {name: [each for each in mutants if each.id in drawn] for name, mutants in found.items()}
    return {name: mutants for name, mutants in found.items() if mutants}


def results_of(name: str, mutants: Sequence[Mutant], *, anew: bool) -> Iterator[Result]:
    """Results of a module's mutants: first the stored ones that still hold, then new ones as they come."""
    stamp = kept.stamp_of(name)
    held = {} if anew else kept.still_hold(name, stamp)
    yield from (held[each.id] for each in mutants if each.id in held)
    wanted = frozenset(each.id for each in mutants if each.id not in held)
    if wanted:
        tests = [f"model_tests/{test}" for test in kept.tests_of_module(name)]
        for result in tried(kept.modules()[name], name, tests, wanted):
            kept.keep(name, result, stamp)
            yield result


def all_results(plan: dict[str, list[Mutant]], *, anew: bool) -> dict[str, list[Result]]:
    """Results by module, told on a bar as they come."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: dict[str, list[Result]] = {}
    with progress_bar(*columns) as progress:
        task = progress.add_task("", total=sum(map(len, plan.values())))
        for name, mutants in plan.items():
            rows = found[name] = []
            for result in results_of(name, mutants, anew=anew):
                rows.append(result)
                alive = sum(each.outcome not in KILLED for each in rows)
                progress.update(task, advance=1, description=f"{name}: {alive} survive")
            places = {each.id: index for index, each in enumerate(mutants)}
            rows.sort(key=lambda row: places[row.id])
    return found


def _show(figures: Iterable[kept.Figures], alive: Sequence[Result], wrong: Sequence[str]) -> None:
    if alive:
        columns = ("mutant", "line", "change", "outcome", "tests")
        rows = ((each.id, each.line, each.change, each.outcome, each.ran) for each in alive)
        table("Mutants that survive and have no reason", columns, rows, right=("line", "tests"))
    heads = ("module", "mutants", "killed", "stuck", "explained", "open")
    table("Mutants of the code", heads, map(msgspec.structs.astuple, figures), right=heads[1:])
    for each in wrong:
        out.tell(each)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--module", "glob", default="*", metavar="GLOB", help="Only modules whose dotted name this matches.")
@click.option("--changed-since", "base", metavar="REVISION", help="Only modules that differ from this git revision.")
@click.option("--sample", type=click.IntRange(1, SAMPLE_MAX), metavar="N", help="Only so many mutants, by chance.")
@click.option("--seed", type=click.IntRange(0), default=0, metavar="S", show_default=True, help="Which chance.")
@click.option("--anew", is_flag=True, help="Try also those whose result is kept and still holds.")
@click.option("--write", is_flag=True, help="Put the figures into code_figures.json.")
@json_option
@user_mistakes
def main(
    *,
    glob: str,
    base: str | None,
    sample: int | None,
    seed: int,
    anew: bool,
    write: bool,
    as_json: bool,
) -> None:
    """Try mutants of the hold table, the store, the broker's services and the judge's rules.

    \b
    Examples:
      make mutants                                            modules changed since the last commit
      make mutants BASE=v0.1.0                                modules changed since a revision
      make mutants MODULE='longpoll_broker.store.*'           modules by name

    Exit codes: 0 every survivor has a reason, 1 one has none, 2 a mistake in the call, 3 the tests could not be run.
    """  # noqa: D301 - click reads a real backspace: the lines after it keep their breaks
    if write and sample:
        fail("--write wants every mutant of a module: leave out --sample")
    changed = kept.modules() if base is None else changed_modules(base)
    plan = chosen([name for name in changed if fnmatchcase(name, glob)], sample, seed)
    if base is not None and not plan:
        err.tell(f"no module with mutants differs from {base}; name one with MODULE=GLOB, or a revision with BASE=")
    elif not plan:
        fail(f"no module fits {glob!r}: write a dotted name, such as longpoll_broker.hold.pull, or longpoll_judge.*")
    try:
        found = all_results(plan, anew=anew)
    except CannotTellError as error:
        fail(str(error), Exit.UNKNOWN)
    except KeyboardInterrupt:
        fail("stopped: what was tried is kept, and the same command goes on from there", Exit.UNKNOWN)
    accepted = kept.survivors()
    figures = [kept.figures_of(name, rows, accepted) for name, rows in found.items()]
    alive = [each for rows in found.values() for each in kept.unexplained(rows, accepted)]
    wrong = [] if sample else [said for name, rows in found.items() for said in kept.problems(name, rows, accepted)]
    if write:
        kept.write(figures)
    if as_json:
        emit_json(msgspec.to_builtins({"figures": figures, "open": alive, "problems": wrong}))
    else:
        _show(figures, alive, [each for each in wrong if " survives: " not in each])
    sys.exit(Exit.VIOLATED if alive or wrong else Exit.OK)


if __name__ == "__main__":
    main()
