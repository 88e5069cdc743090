"""The search of the first slow commit, with simulated runs of commits of real histories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from simulated_commits import SimulatedPairs, simulated_run
from slow_history import commit, git, new_repository

from annot.bisect.repository import Repository
from annot.bisect.search import Answer, Question, Search
from annot.bisect.target import Contrast, Target
from annot.errors import AnnotError

FAST: Mapping[str, float] = {f"blocks.{number}": 20_000.0 for number in range(5)} | {"head": 9_000.0}
SLOW = FAST | {"blocks.3": 26_000.0}


def answer(
    folder: Path, commits: Mapping[str, Mapping[str, float] | str], *, noise: float = 0.02, seed: int = 0,
    said: list[str] | None = None, **options: object,
) -> Answer:  # fmt: skip
    """Search between the first and the last commit of the branch."""
    repository = Repository(folder)
    first = git(folder, "rev-list", "--max-parents=0", "HEAD")
    question = Question(good=repository.commit(first), bad=repository.commit("HEAD"), **options)  # type: ignore[arg-type]
    pairs = SimulatedPairs(commits, noise, seed)
    return Search(repository, pairs, question, (lambda line: None) if said is None else said.append).run()


def linear(folder: Path, count: int) -> Path:
    """Create a repository with the commits 0, 1, ..."""
    new_repository(folder)
    for number in range(count):
        commit(folder, str(number))
    return folder


def subjects(answer: Answer, result: str) -> list[str]:
    return [trial.commit.subject for trial in answer.trials if trial.result == result]


@pytest.mark.parametrize("slow", [1, 4, 7])
def test_the_first_slow_commit_and_its_layer(slow: int, tmp_path: Path) -> None:
    said: list[str] = []
    times = {str(number): SLOW if number >= slow else FAST for number in range(8)}
    result = answer(linear(tmp_path / "project", 8), times, said=said)
    assert result.first_slow is not None
    assert result.parent is not None
    assert (result.first_slow.subject, result.parent.subject) == (str(slow), str(slow - 1))
    assert result.target is not None
    assert result.change_target is not None
    assert result.target.name == result.change_target.name == "blocks.3 Linear forward"
    assert result.target.column == "relative_speedup"  # the speed of the machine differs between runs
    factor, low, high = result.change_target.interval(0.01)
    assert low < 1.3 < high
    assert factor == pytest.approx(1.3, rel=0.1)
    assert len(result.trials) <= 3
    assert all(int(number) < slow for number in subjects(result, "good"))
    assert all(int(number) >= slow for number in subjects(result, "bad"))
    assert [line for line in said if "7 commits: about 3 to try" in line]


@pytest.mark.parametrize("seed", range(12))
def test_a_layer_of_another_name_is_no_change(seed: int) -> None:
    """Chance alone makes the new layer or the step a little longer: the interval of the target has no change in it."""
    random = Random(seed)
    renamed = {name.replace("blocks.3", "layers.3"): time for name, time in FAST.items()}
    pairs = [(simulated_run(FAST, random, 0.02), simulated_run(renamed, random, 0.02)) for _ in range(2)]
    assert Contrast.of(pairs, above=1.0, level=0.005).target() is None


def test_commits_that_do_not_run_are_skipped(tmp_path: Path) -> None:
    """Beside the slow commit they leave several suspects, elsewhere they do not matter."""
    folder = linear(tmp_path / "project", 10)
    times: dict[str, Mapping[str, float] | str] = {str(number): SLOW if number >= 6 else FAST for number in range(10)}
    result = answer(folder, times | {"3": "exit status 1", "4": "exit status 2", "8": "no profile"})
    assert result.first_slow is not None
    assert result.first_slow.subject == "6"
    broken = {name: f"exit status {name}" for name in "56"}
    result = answer(folder, times | broken)
    assert result.first_slow is None
    assert {commit.subject for commit in result.suspects} == {"5", "6", "7"}
    assert result.suspects[-1].subject == "7"
    assert {trial.commit.subject: trial.reason for trial in result.trials if trial.reason} == broken
    for name in "09":
        with pytest.raises(AnnotError, match="exit status 1"):
            answer(folder, times | {name: "exit status 1"})


def test_a_commit_with_half_of_the_change_is_unclear(tmp_path: Path) -> None:
    folder = linear(tmp_path / "project", 5)
    half = FAST | {"blocks.3": 20_000 * 1.3**0.5}
    result = answer(folder, {"0": FAST, "1": FAST, "2": half, "3": SLOW, "4": SLOW}, noise=0.005, most=4)
    [unclear] = [trial for trial in result.trials if trial.reason]
    assert (unclear.commit.subject, len(unclear.differences)) == ("2", 4)
    assert unclear.reason == "4 pairs of runs cannot separate it from either"
    assert {commit.subject for commit in result.suspects} == {"2", "3"}


def test_equal_commits_end_the_search(tmp_path: Path) -> None:
    result = answer(linear(tmp_path / "project", 3), dict.fromkeys("012", FAST), pairs=3)
    assert (result.target, result.trials, result.first_slow) == (None, (), None)
    assert len(result.before.pairs) == 6
    faster = answer(tmp_path / "project", {"0": SLOW, "1": FAST, "2": FAST})
    assert faster.target is None


def test_a_layer_can_be_chosen(tmp_path: Path) -> None:
    """Another layer that became slower at another commit is not looked at."""
    folder = linear(tmp_path / "project", 8)
    slower = {"blocks.3": 6, "head": 2}
    times = {
        str(number): {layer: ns * (1.3 if number >= slower.get(layer, 99) else 1) for layer, ns in FAST.items()}
        for number in range(8)
    }
    assert [answer(folder, times).first_slow, answer(folder, times, layer="head").first_slow] == [
        Repository(folder).commit("HEAD~1"), Repository(folder).commit("HEAD~5"),
    ]  # fmt: skip
    assert answer(folder, times, layer="blocks.1").target is None
    assert answer(folder, times, layer="head", above=1.5).target is None
    with pytest.raises(AnnotError, match=r"no run has a layer 'blocks\.9'"):
        answer(folder, times, layer="blocks.9")


def test_a_new_layer(tmp_path: Path) -> None:
    """It is the target; commits without it are like good."""
    folder = linear(tmp_path / "project", 5)
    times = {str(number): FAST | ({"extra": 15_000.0} if number >= 3 else {}) for number in range(5)}
    result = answer(folder, times)
    assert result.target is not None
    assert result.change_target is not None
    assert subject(result) == "3"
    assert result.target.name == result.change_target.name == "extra Linear forward"
    assert result.change_target.sentence(0.01).startswith("everything, with the new extra Linear forward, takes 1.1")


def test_a_renamed_layer_is_no_slow_commit(tmp_path: Path) -> None:
    """Its new name replaces another one: the step counts."""
    folder = linear(tmp_path / "project", 6)
    renamed = {layer.replace("blocks.3", "layers.3"): ns for layer, ns in FAST.items()}
    times = {"0": FAST, "1": FAST, "2": renamed, "3": renamed, **dict.fromkeys("45", renamed | {"layers.3": 60_000.0})}
    result = answer(folder, times, noise=0.005)
    assert result.target is not None
    assert result.change_target is not None
    assert (subject(result), result.target.name) == ("4", "a step")
    assert result.change_target.name == "layers.3 Linear forward"


def test_a_slow_program_is_a_slow_batch(tmp_path: Path) -> None:
    """All layers alike: the times relative to each other are the same."""
    folder = linear(tmp_path / "project", 5)
    slow = {layer: 1.5 * ns for layer, ns in FAST.items()}
    result = answer(folder, {str(number): slow if number >= 2 else FAST for number in range(5)}, noise=0.005)
    assert result.target is not None
    assert result.first_slow is not None
    assert (result.target.name, result.target.column, result.first_slow.subject) == ("Batch #", "speedup", "2")


def test_one_hiccup_does_not_hide_an_expected_change() -> None:
    random = Random(5)

    def contrast(b: Mapping[str, float]) -> Contrast:
        """Compare runs, of which one of the first side has a hiccup in the layer."""
        pairs = [(simulated_run(FAST, random, 0.01), simulated_run(b, random, 0.01)) for _ in range(10)]
        pairs[3] = simulated_run(FAST | {"blocks.3": 80_000.0}, random, 0.01), pairs[3][1]
        return Contrast.of(pairs, above=1.0, level=0.005)

    key = ("blocks.3", "Linear", "forward")
    expected = Target(key=key, column="relative_speedup", differences=(0.26, 0.27, 0.25, 0.26, 0.27))
    slower = contrast(SLOW)
    assert slower.measured(key) is None
    assert slower.like(expected) is not None
    assert contrast(FAST).like(expected) is None


def test_merged_branches(tmp_path: Path) -> None:
    """The slow commit is on a branch: it is found there, or as the merge with first parents only."""
    folder = new_repository(tmp_path / "project")
    commit(folder, "base")
    git(folder, "checkout", "--quiet", "-b", "side")
    for name in ("s1", "s2", "s3"):
        commit(folder, name)
    git(folder, "checkout", "--quiet", "main")
    for name in ("m1", "m2"):
        commit(folder, name)
    git(folder, "merge", "--quiet", "--no-ff", "--message", "merge", "side")
    commit(folder, "last")
    slow = {"s2", "s3", "merge", "last"}
    times = {name: SLOW if name in slow else FAST for name in ("base", "s1", "s2", "s3", "m1", "m2", "merge", "last")}
    assert subject(answer(folder, times)) == "s2"
    first = answer(folder, times, first_parent=True)
    assert subject(first) == "merge"
    assert first.parent is not None
    assert first.parent.subject == "m2"
    both = answer(folder, times | {"s2": FAST, "s3": FAST})  # only together they are slow
    assert subject(both) == "merge"


def subject(answer: Answer) -> str:
    assert answer.first_slow is not None
    return answer.first_slow.subject


@pytest.mark.slow
@pytest.mark.simulation
def test_noise_leads_to_more_runs_and_no_wrong_answer(tmp_path: Path) -> None:
    folder = linear(tmp_path / "project", 30)
    wrong, unclear = 0, 0
    for seed in range(10):
        slow = 1 + seed * 7 % 29
        times = {str(number): SLOW if number >= slow else FAST for number in range(30)}
        result = answer(folder, times, noise=0.06, seed=seed)
        unclear += result.first_slow is None
        wrong += result.first_slow is not None and result.first_slow.subject != str(slow)
    assert wrong == 0
    assert unclear <= 2
