"""Encoders: gradients, fixed points, determinism, files, and what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from bisim_abstract import (
    InvalidArgumentError,
    TabularMDP,
    bisimulation_metric,
    evaluate_embedding,
)
from bisim_abstract._base.npz import read_npz, write_npz
from bisim_abstract._base.types import FloatArray
from bisim_abstract._propose.embedding import Embedding, as_points
from bisim_abstract.encoders import (
    ActionMaxEncoder,
    DBCEncoder,
    Encoder,
    MICoEncoder,
    RandomEmbedding,
    RewardEmbedding,
    Transitions,
    load_encoder,
    sample_transitions,
)
from bisim_abstract.encoders._losses import angles
from bisim_abstract.encoders._nets import Samples
from bisim_abstract.encoders.action_max import ActionMaxLearner
from bisim_abstract.encoders.mico import MICoLearner
from bisim_abstract.errors import FileFormatError
from bisim_abstract.parts import grouped_mdp, random_mdp
from tests.support import ROOT
from tests.support.learners import QUICK, halves, learner_of, pushed_points, steps_down

CLASSES: list[type[Encoder]] = [ActionMaxEncoder, DBCEncoder, MICoEncoder]


def all_pairs(n: int) -> tuple[Any, Any]:
    return np.arange(n)[:, None], np.arange(n)


# -- what they imitate -------------------------------------------------------------------------


def test_encoders_say_what_they_are_trained_for(tmp_path: Path) -> None:
    assert ActionMaxEncoder().trained_for == "bisimulation"
    assert DBCEncoder().trained_for == "on_policy"
    assert DBCEncoder(pairs="same_action").trained_for == "bisimulation"
    assert MICoEncoder().trained_for == "mico"
    assert MICoEncoder(pairs="same_action").trained_for == "bisimulation"
    mdp = random_mdp(5, 2, seed=0)
    MICoEncoder(**QUICK).fit(mdp, n_transitions=50).save(tmp_path / "e.npz")
    again = load_encoder(tmp_path / "e.npz")
    found = evaluate_embedding(bisimulation_metric(mdp, again.gamma), again, mdp=mdp)
    assert found.trained_for is not None
    assert found.trained_for.name == again.trained_for == "mico"


# -- angles ------------------------------------------------------------------------------------


def test_angles_are_exact_near_both_ends() -> None:
    for true in (0.0, 1e-6, 1e-4, 0.3, np.pi / 2, np.pi - 1e-4, np.pi - 1e-6, np.pi):
        x = torch.tensor([[2.0, 0.0]])
        y = torch.tensor([[3.0 * np.cos(true), 3.0 * np.sin(true)]], dtype=torch.float32)
        assert float(angles(x, y)) == pytest.approx(true, rel=1e-3, abs=2e-7)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1.0, 2.0], [1.0, 2.0]),
        ([1.0, 2.0], [-1.0, -2.0]),
        ([0.0, 0.0], [1.0, 0.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1.0, 0.0], [1.0, 1e-20]),
        ([1e-18, 0.0], [0.0, 1.0]),
    ],
)
def test_angles_have_finite_slopes(x: list[float], y: list[float]) -> None:
    a = torch.tensor([x], requires_grad=True)
    b = torch.tensor([y], requires_grad=True)
    value = angles(a, b).sum()
    torch.autograd.backward(value)
    assert torch.isfinite(value)
    assert a.grad is not None
    assert b.grad is not None
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(b.grad).all()


# -- who receives gradients --------------------------------------------------------------------


def test_dbc_models_shape_points_only_if_joint() -> None:
    data = sample_transitions(random_mdp(6, 2, seed=0), 200)
    grads = []
    for joint in (False, True):
        learner, samples = learner_of(DBCEncoder(joint=joint, **QUICK), data)
        torch.autograd.backward(learner.loss(samples, *halves(samples)))
        grads.append(learner.phi.table.weight.grad)
    assert not torch.allclose(grads[0], grads[1])


def test_dbc_distance_loss_does_not_move_the_dynamics() -> None:
    learner, samples = learner_of(
        DBCEncoder(**QUICK), sample_transitions(random_mdp(6, 2, seed=0), 200)
    )
    learner.model_loss = lambda *_: torch.zeros(())
    torch.autograd.backward(learner.loss(samples, *halves(samples)))
    assert all(x.grad is None for x in learner.dynamics.parameters())
    assert all(x.grad is None for x in learner.reward.parameters())


def test_mico_bootstraps_from_the_slow_copy() -> None:
    data = sample_transitions(random_mdp(6, 2, seed=0), 200)
    learner, samples = learner_of(MICoEncoder(target_every=3, **QUICK), data)
    assert isinstance(learner, MICoLearner)
    rows, columns = halves(samples)
    both = torch.cat([rows, columns])
    before = learner.target(samples, both, 16)
    torch.autograd.backward(learner.loss(samples, rows, columns))
    assert learner.phi.table.weight.grad is not None
    assert learner.slow.table.weight.grad is None
    assert not before.requires_grad
    learner.phi.table.weight.data += 1.0
    learner.after_step(0)
    assert torch.equal(learner.target(samples, both, 16), before)
    learner.after_step(2)
    assert not torch.allclose(learner.target(samples, both, 16), before)
    assert torch.equal(learner.slow.table.weight, learner.phi.table.weight)


def test_action_max_heads_and_points_are_apart() -> None:
    learner, samples = learner_of(ActionMaxEncoder(**QUICK), pushed_points())
    assert isinstance(learner, ActionMaxLearner)
    assert learner.heads is not None
    rows, columns = halves(samples)
    torch.autograd.backward(
        learner.model_loss(samples, rows, learner.told(samples.now[rows], samples))
    )
    assert all(x.grad is None for x in learner.phi.parameters())
    assert any(x.grad is not None for x in learner.heads.parameters())
    told = learner.told(samples.now[torch.cat([rows, columns])], samples)
    assert not learner.target(told, 16).requires_grad


def test_action_max_target_by_hand() -> None:
    mdp = random_mdp(5, 3, seed=2)
    learner, samples = learner_of(
        ActionMaxEncoder(gamma=0.5, **QUICK), sample_transitions(mdp, 4_000)
    )
    z = learner.phi.table.weight.detach().numpy()
    told = learner.counts.told(torch.arange(5).repeat(2), learner.phi.of_states)
    found = learner.target(told, 5).detach().numpy()
    data = sample_transitions(mdp, 4_000)
    expected = np.zeros((5, 5))
    for a in range(3):
        mean = np.zeros((5, 6))
        for s in range(5):
            after = z[data.next_states[(data.states == s) & (data.actions == a)]]
            centre = after.mean(axis=0)
            mean[s] = np.r_[centre, np.abs(after - centre).mean(axis=0)]
        paid = np.abs(mdp.rewards[:, None, a] - mdp.rewards[None, :, a]) / samples.scale
        moved = np.linalg.norm(mean[:, None] - mean, axis=2)
        expected = np.maximum(expected, paid + 0.5 * moved)
    np.testing.assert_allclose(found, expected, atol=1e-4)


# -- fixed points ------------------------------------------------------------------------------


def mico_truth(mdp: TabularMDP, gamma: float, *, same_action: bool) -> FloatArray:
    n, a = mdp.rewards.shape
    P, R = mdp.kernel().toarray().reshape(n, a, n), mdp.rewards
    pairs = [(b, b) for b in range(a)] if same_action else list(np.ndindex(a, a))
    system, gaps = np.eye(n * n), np.zeros((n, n))
    for b, c in pairs:
        gaps += np.abs(R[:, None, b] - R[None, :, c]) / len(pairs)
        system -= gamma * np.kron(P[:, b], P[:, c]) / len(pairs)
    return np.asarray(np.linalg.solve(system, gaps.ravel()).reshape(n, n))


@pytest.mark.slow
@pytest.mark.parametrize("pairs", ["any", "same_action"])
def test_mico_approaches_its_fixed_point(pairs: str) -> None:
    mdp = random_mdp(5, 2, seed=3)
    encoder = MICoEncoder(
        dim=5, gamma=0.7, steps=1_500, batch_size=64, target_every=20, pairs=pairs, seed=1
    ).fit(mdp, n_transitions=20_000)
    truth = mico_truth(mdp, 0.7, same_action=pairs == "same_action")
    found = encoder.distance(*all_pairs(5))
    assert np.abs(found - truth).max() < 0.08 * truth.max()
    # A state is away from itself, as published.
    assert np.diag(truth).min() > 0.01
    np.testing.assert_allclose(np.diag(found), np.diag(truth), atol=0.08 * truth.max())


@pytest.mark.slow
def test_dbc_approaches_the_metric_of_a_chain() -> None:
    # State i pays i and moves to i - 1. Rewards rise, so the metric is that of the values, a
    # line, which L1 distances can follow exactly. More than one coordinate lets points pass.
    gamma, n = 0.8, 5
    P = steps_down(n).kernel().toarray()[:, None, :]
    mdp = TabularMDP.from_dense(P, np.arange(n) / 4.0, terminal_state=0)
    encoder = DBCEncoder(
        dim=4,
        gamma=gamma,
        steps=2_500,
        batch_size=32,
        transport="coordinates",
        hidden=(32,),
        seed=0,
    )
    encoder.fit(mdp, n_transitions=5_000)
    values = np.zeros(n)
    for i in range(1, n):
        values[i] = i / 4.0 + gamma * values[i - 1]
    truth = np.abs(values[:, None] - values)
    found = encoder.distance(*all_pairs(n))
    assert np.abs(found - truth).max() < 0.1 * truth.max()
    assert (np.diag(found) == 0.0).all()


def test_action_max_approaches_the_metric_of_a_chain() -> None:
    mdp = steps_down(6)
    encoder = ActionMaxEncoder(dim=2, gamma=0.8, steps=1_500, batch_size=32, seed=0).fit(
        mdp, n_transitions=2_000
    )
    truth = bisimulation_metric(mdp, 0.8).lower
    found = encoder.distance(*all_pairs(6))
    assert np.abs(found - truth).max() < 0.05 * truth.max()


def test_action_max_finds_planted_groups() -> None:
    mdp, planted = grouped_mdp(60, 4, noise=0.01, seed=0)
    encoder = ActionMaxEncoder(dim=4, steps=400, batch_size=64).fit(mdp, n_transitions=20_000)
    points = encoder.encode(np.arange(60)).astype(np.float64)
    gaps = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(gaps, np.inf)
    assert (planted[gaps.argmin(axis=1)] == planted).mean() > 0.95


# -- all of them -------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("kind", ["table", "vectors"])
def test_same_seed_same_bits(cls: type[Encoder], kind: str) -> None:
    data = pushed_points() if kind == "vectors" else sample_transitions(steps_down(), 200)
    inputs = data.states[:20]
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    first, again = (cls(**QUICK, seed=4).fit(data).encode(inputs) for _ in range(2))
    other = cls(**QUICK, seed=5).fit(data).encode(inputs)
    assert first.dtype == np.float32
    assert first.shape == (20, 3)
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("kind", ["table", "vectors"])
def test_files_bring_encoders_back(cls: type[Encoder], kind: str, tmp_path: Path) -> None:
    data = pushed_points() if kind == "vectors" else sample_transitions(steps_down(), 200)
    encoder = cls(**QUICK).fit(data)
    path = tmp_path / "encoder"
    encoder.save(path)
    inputs = data.states[:20]
    for back in (load_encoder(path), cls.load(path)):
        assert type(back) is cls
        assert back.encode(inputs).tobytes() == encoder.encode(inputs).tobytes()
        assert (back.distance(inputs, inputs[:1]) == encoder.distance(inputs, inputs[:1])).all()
        assert back.config() == encoder.config()
        assert (back.seen == encoder.seen).all()
    wrong = next(other for other in CLASSES if other is not cls)
    with pytest.raises(FileFormatError, match="load_encoder"):
        wrong.load(path)


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "encoder.npz"
    DBCEncoder(**QUICK).fit(sample_transitions(steps_down(), 200)).save(path)
    whole, arrays = path.read_bytes(), read_npz(path)
    header = json.loads(arrays["header"].tobytes())

    def refused() -> None:
        with pytest.raises(FileFormatError):
            load_encoder(path)

    for content in (b"", whole[:200], b"\x80\x04K."):
        path.write_bytes(content)
        refused()
    table = arrays["weight/phi.table.weight"]
    changes: list[dict[str, Any]] = [
        {"weight/phi.table.weight": table[:-1]},
        {"weight/phi.table.weight": table.astype(np.float64)},
        {"weight/phi.table.weight": table * np.nan},
        {"weight/more": table},
        {"seen": np.zeros(2, bool)},
        {"header": np.frombuffer(b"{}", np.uint8)},
    ]
    for change in changes:
        write_npz(path, arrays | change)
        refused()
    edits: list[dict[str, Any]] = [
        {"kind": "os.system"},
        {"version": 2},
        {"config": header["config"] | {"dim": 10**12}},
        {"config": header["config"] | {"dim": 10**30}},
        {"config": header["config"] | {"hidden": [10**9, 10**9]}},
        {"config": header["config"] | {"unheard_of": 1}},
        {"config": header["config"] | {"gamma": 2.0}},
        {"config": None},
        {"shape": header["shape"] | {"n_states": 10**12}},
        {"shape": header["shape"] | {"n_features": 3}},
        {"shape": header["shape"] | {"scale": -1.0}},
        {"shape": {}},
    ]
    for edit in edits:
        text = json.dumps(header | edit).encode()
        write_npz(path, arrays | {"header": np.frombuffer(text, np.uint8)})
        refused()


@pytest.mark.parametrize("cls", CLASSES)
def test_nothing_is_known_before_fitting(cls: type[Encoder], tmp_path: Path) -> None:
    encoder = cls()
    calls = [lambda: encoder.encode([0]), lambda: encoder.distance(0, 1), lambda: encoder.seen]
    for call in [*calls, lambda: encoder.save(tmp_path / "x")]:
        with pytest.raises(InvalidArgumentError, match="call fit"):
            call()  # type: ignore[no-untyped-call]
    assert not encoder.is_fitted


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "bad",
    [
        {"dim": 0},
        {"gamma": 1.0},
        {"steps": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"hidden": (0,)},
        {"hidden": 8},
        {"device": "abacus"},
        {"seed": -1},
    ],
)
def test_wrong_arguments(cls: type[Encoder], bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(bad))):
        cls(**bad)


def test_wrong_inputs() -> None:
    encoder = ActionMaxEncoder(**QUICK).fit(sample_transitions(steps_down(), 200))
    assert isinstance(encoder, Embedding)
    assert as_points(encoder, 5).shape == (5, 3)
    for bad in ([5], [-1], [0.5]):
        with pytest.raises(InvalidArgumentError, match="states"):
            encoder.encode(bad)
    assert encoder.encode(np.empty(0, np.int64)).shape == (0, 3)
    for ragged in ([[0], [0, 1]], [[0, 1], 2]):
        with pytest.raises(InvalidArgumentError, match="regular array"):
            encoder.encode(ragged)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"broadcast.*\(2,\) and \(3,\)"):
        encoder.distance([0, 1], [0, 1, 2])
    assert encoder.distance([[0], [1]], [0, 1, 2]).shape == (2, 3)
    with pytest.raises(InvalidArgumentError, match="source must be"):
        encoder.fit(3)  # type: ignore[arg-type]
    flat = ActionMaxEncoder(**QUICK).fit(pushed_points())
    with pytest.raises(InvalidArgumentError, match="2 features"):
        flat.encode([[1.0, 2.0, 3.0]])
    with pytest.raises(InvalidArgumentError, match="finite"):
        flat.encode([[1.0, np.inf]])
    assert flat.n_states is None
    assert flat.distance(np.zeros((4, 1, 2)), np.ones((3, 2))).shape == (4, 3)


def test_states_come_in_any_shape() -> None:
    """A single pair ended in an error of torch."""
    encoder = ActionMaxEncoder(**QUICK).fit(sample_transitions(steps_down(), 200))
    points = encoder.encode(np.arange(5))
    assert np.array_equal(encoder.encode(3), points[3])
    assert np.array_equal(encoder.encode(np.int64(3)), points[3])
    assert np.array_equal(encoder.encode(range(5)), points)
    assert np.array_equal(encoder.encode([[0, 1], [2, 3]]), points[[[0, 1], [2, 3]]])
    one = encoder.distance(0, 1)
    assert one.shape == ()
    assert float(one) > 0.0
    every = encoder.distance(np.arange(5)[:, None], range(5))
    assert every.shape == (5, 5)
    assert every[0, 1] == one
    assert np.array_equal(encoder.distance(2, [0, 1, 3]), every[2, [0, 1, 3]])
    assert encoder.distance([], []).shape == (0,)
    flat = ActionMaxEncoder(**QUICK).fit(pushed_points())
    assert flat.encode([0.5, 0.5]).shape == (3,)
    assert flat.encode(np.zeros((2, 4, 2))).shape == (2, 4, 3)
    assert flat.distance([0.5, 0.5], [0.0, 1.0]).shape == ()
    assert flat.encode(np.empty((0, 2))).shape == (0, 3)


def test_the_end_is_one_more_state() -> None:
    encoder = ActionMaxEncoder(**QUICK).fit("FrozenLake-v1", n_transitions=500)
    assert encoder.n_states == 17
    assert encoder.seen[16]
    assert not encoder.seen[15]
    env = gym.make("FrozenLake-v1")
    assert ActionMaxEncoder(**QUICK).fit(env, n_transitions=500).n_states == 17


def test_ended_steps_lead_to_the_end_and_stay_there() -> None:
    data = Transitions(
        states=np.array([0, 1]),
        actions=np.array([0, 1]),
        rewards=np.array([2.0, 4.0]),
        next_states=np.array([1, 0]),
        terminated=np.array([False, True]),
        n_actions=2,
        n_states=2,
    )
    samples = Samples.of(data, torch.device("cpu"))
    assert (samples.end, samples.n_rows, samples.scale) == (2, 3, 4.0)
    assert samples.now.tolist() == [0, 1, 2, 2]
    assert samples.after.tolist() == [1, 2, 2, 2]
    assert samples.actions.tolist() == [0, 1, 0, 1]
    assert samples.rewards.tolist() == [0.5, 1.0, 0.0, 0.0]


def test_progress_is_told() -> None:
    reports: list[Any] = []
    MICoEncoder(**QUICK).fit(steps_down(), n_transitions=50, callback=reports.append)
    assert [(x.stage, x.done, x.total) for x in reports] == [("training", 20, 20)]
    reports.clear()
    MICoEncoder(**QUICK).fit("FrozenLake-v1", n_transitions=50, callback=reports.append)
    assert [x.stage for x in reports] == ["collecting", "training"]


def test_large_tables_update_used_rows_only() -> None:
    n = 200_001
    steps = {"actions": [0, 0], "rewards": [0.0, 1.0], "terminated": [False, False]}
    data = Transitions(
        states=np.array([3, n - 1]),
        next_states=np.array([n - 1, 3]),
        n_actions=1,
        n_states=n,
        **steps,  # type: ignore[arg-type]
    )
    for cls in CLASSES:
        learner, samples = learner_of(cls(**QUICK), data)
        before = learner.phi.table.weight.detach().clone()
        encoder = cls(**QUICK)
        encoder._train(learner, samples, torch.Generator().manual_seed(0), None)
        moved = (learner.phi.table.weight != before).any(dim=1)
        assert torch.nonzero(moved).ravel().tolist() == [3, n - 1]


def test_baselines() -> None:
    mdp = random_mdp(4, 3, seed=0)
    rewards = RewardEmbedding(mdp)
    assert isinstance(rewards, Embedding)
    np.testing.assert_allclose(rewards.encode([2, 0]), mdp.rewards[[2, 0]], rtol=1e-6)
    first, again = (RandomEmbedding(4, dim=2, seed=1).encode([0, 3]) for _ in range(2))
    assert (first == again).all()
    assert (first != RandomEmbedding(4, dim=2, seed=2).encode([0, 3])).all()
    with pytest.raises(InvalidArgumentError, match="states"):
        rewards.encode([4])


def test_torch_is_loaded_late_and_its_lack_explained() -> None:
    code = (
        "import sys, bisim_abstract.encoders as e\n"
        "e.Transitions, e.RandomEmbedding(3), dir(e)\n"
        "print('torch' in sys.modules)\n"
        "sys.modules['torch'] = None\n"
        "try:\n    e.DBCEncoder\nexcept ImportError"
        " as error:\n    print(type(error).__name__, error)\n"
        "try:\n    e.unheard_of\nexcept AttributeError:\n    print('none')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    late, missing, none = run.stdout.splitlines()
    assert late == "False"
    assert missing.startswith("MissingDependency")
    line = missing.partition("run in your clone of bisim_abstract: ")[2]
    assert line == "pip install -c constraints.txt torch"
    assert line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert none == "none"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("encoder", "least"),
    [
        (ActionMaxEncoder(), 0.98),
        (DBCEncoder(pairs="same_action"), 0.9),
        (MICoEncoder(pairs="same_action"), 0.9),
    ],
)
def test_rooms_are_found(encoder: Encoder, least: float) -> None:
    env = gym.make("bisim_abstract/RoomsGrid-v0")
    rooms = env.unwrapped.rooms  # type: ignore[attr-defined]
    points = encoder.fit(env, n_transitions=150_000).encode(np.arange(2500)).astype(np.float64)
    norms = (points**2).sum(axis=1)
    gaps = norms[:, None] + norms - 2.0 * points @ points.T
    np.fill_diagonal(gaps, np.inf)
    nearest = np.argpartition(gaps, 10, axis=1)[:, :10]
    assert (rooms[nearest] == rooms[:, None]).mean() > least


# -- classes of one's own ----------------------------------------------------------------------


def test_a_variant_without_a_kind_leaves_files_alone(tmp_path: Path) -> None:
    mdp = random_mdp(5, seed=0)
    original = ActionMaxEncoder(dim=2, steps=1).fit(mdp, n_transitions=50)
    original.save(tmp_path / "original.npz")

    class Variant(ActionMaxEncoder):
        """Has no kind of its own."""

    assert type(load_encoder(tmp_path / "original.npz")) is ActionMaxEncoder
    variant = Variant(dim=2, steps=1).fit(mdp, n_transitions=50)
    with pytest.raises(InvalidArgumentError, match="Variant has no `kind` of its own"):
        variant.save(tmp_path / "variant.npz")


def test_two_classes_cannot_have_one_kind() -> None:
    with pytest.raises(InvalidArgumentError, match="kind 'mico' is MICoEncoder's"):

        class Thief(ActionMaxEncoder):
            kind = "mico"


def test_arguments_passed_on_are_kept(tmp_path: Path) -> None:
    class Passing(ActionMaxEncoder):
        kind = "passing_on"

        def __init__(self, *, own: int = 1, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.own = own

    mdp = random_mdp(5, seed=0)
    Passing(own=3, dim=2, steps=1, seed=4).fit(mdp, n_transitions=50).save(tmp_path / "e.npz")
    again = load_encoder(tmp_path / "e.npz")
    assert isinstance(again, Passing)
    assert (again.own, again.dim, again.seed) == (3, 2, 4)


@pytest.mark.parametrize("cls", [ActionMaxEncoder, DBCEncoder, MICoEncoder])
def test_files_cannot_ask_for_layers_without_end(cls: type[Encoder], tmp_path: Path) -> None:
    """Found by fuzzing: 4 kB that kept the loader busy for minutes."""
    path = tmp_path / "encoder.npz"
    cls(dim=2, steps=1, hidden=(2,)).fit(pushed_points(50)).save(path)
    arrays = read_npz(path)
    header = json.loads(arrays["header"].tobytes())
    header["config"]["hidden"] = [1] * 100_000
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    write_npz(path, arrays)
    with pytest.raises(FileFormatError, match="at most 100"):
        load_encoder(path)
