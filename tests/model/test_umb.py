"""UMB files: written and read back, by ourselves and by others, whole and damaged."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import TabularMDP, aggregate, estimate_mdp, read_model
from bisim_abstract._base.tarball import read_tarball, write_tarball
from bisim_abstract._model.umb import read_umb, write_umb
from bisim_abstract.errors import BisimError, FileFormatError, InvalidArgumentError
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from bisim_abstract.wrappers import extract_mdp
from tests.support.checkers import many_names, random_model
from tests.support.models import TAXI


@given(st.integers(0, 10_000), st.booleans())
def test_a_model_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, seed: int, compress: bool
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 80))
    base = sparse_mdp(n, 2, support=min(3, n), seed=seed)
    available = rng.random((n, 2)) < 0.7
    available[~available.any(axis=1), 0] = True
    start = rng.random(n) * (rng.random(n) < 0.5)
    mdp = TabularMDP.from_rows(
        base.indptr,
        base.indices,
        base.probs,
        base.rewards,
        available=available if available.any(axis=0).all() else None,
        start=start / start.sum() if start.any() else None,
        state_ids=rng.permutation(n) + 5,
        names=many_names(n, rng),
    )
    path = tmp_path_factory.mktemp("umb") / "m.umb"
    write_umb(mdp, path, compress=compress)
    again = read_model(path)
    assert again == mdp
    assert [again.state_name(s) for s in range(n)] == [mdp.state_name(s) for s in range(n)]
    assert again.names.actions == mdp.names.actions
    for name, states in mdp.names.labels.items():
        assert again.names.labels[name].tolist() == states.tolist()


def test_terminal_states_and_quotients_come_back(tmp_path: Path) -> None:
    taxi = extract_mdp(TAXI)
    write_umb(taxi, tmp_path / "taxi.umb")
    assert read_model(tmp_path / "taxi.umb") == taxi
    mdp, groups = grouped_mdp(60, 5, noise=0.1, seed=0)
    small = aggregate(mdp, groups).mdp
    write_umb(small, tmp_path / "small.umb")
    assert read_model(tmp_path / "small.umb") == small


def test_several_rewards_are_structures_of_their_own(tmp_path: Path) -> None:
    joint = random_model(1).to_mdp(reward={"all": 1.0, "states": 2.0})
    write_umb(joint, tmp_path / "m.umb")
    assert read_model(tmp_path / "m.umb", reward=["all", "states"]) == joint
    again = read_model(tmp_path / "m.umb", reward="states")
    assert again == joint.for_reward("states")
    assert again.names.actions == joint.for_reward("states").names.actions
    assert "all" in str(refusal(tmp_path / "m.umb"))


def test_the_only_reward_keeps_its_name(tmp_path: Path) -> None:
    for reward, name in (("states", "states"), (["states"], "states"), ("-states", "reward")):
        write_umb(random_model(1).to_mdp(reward=reward), tmp_path / "m.umb")
        assert list(read_umb(tmp_path / "m.umb").rewards) == [name]
    assert read_model(tmp_path / "m.umb").metadata["reward"] == "reward"


def test_names_that_make_no_identifier_come_back(tmp_path: Path) -> None:
    """Long ones are no names of files; one may look like the number that stands for another."""
    names = ("a" * 300, "label-0", "label-3", "Some Goal!", "label-1")
    masks = {name: np.arange(5) == k for k, name in enumerate(names)}
    plain = sparse_mdp(5, 2, support=2, seed=0)
    mdp = plain.with_names(labels=masks).with_metadata(reward="r" * 5000)
    write_umb(mdp, tmp_path / "m.umb")
    again = read_model(tmp_path / "m.umb")
    assert again.metadata["reward"] == "r" * 5000
    assert {name: again.names.labels[name].tolist() for name in names} == {
        name: mask.tolist() for name, mask in masks.items()
    }
    assert read_umb(tmp_path / "m.umb").rewards.keys() == {"r" * 5000}


def refusal(path: Path, **options: Any) -> BisimError:
    with pytest.raises((FileFormatError, InvalidArgumentError)) as caught:
        read_model(path, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    mdp = sparse_mdp(5, seed=0)
    for name in ("a.umb", "b.umb"):
        write_umb(mdp, tmp_path / name)
    assert (tmp_path / "a.umb").read_bytes() == (tmp_path / "b.umb").read_bytes()


def test_estimates_are_refused(tmp_path: Path) -> None:
    seen = [0, 1], [0, 0], [0.0, 1.0], [1, 0]
    estimate = estimate_mdp(*seen, n_states=2, n_actions=1, reward_range=(0.0, 1.0))
    with pytest.raises(InvalidArgumentError, match=r"use mdp\.save"):
        write_umb(estimate, tmp_path / "m.umb")
    assert not (tmp_path / "m.umb").exists()


def parts(path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    files = read_tarball(path)
    return files, json.loads(files["index.json"])


def changed(path: Path, files: dict[str, bytes], index: dict[str, Any]) -> Path:
    write_tarball(path, (files | {"index.json": json.dumps(index).encode()}).items())
    return path


@pytest.fixture
def written(tmp_path: Path) -> Path:
    mdp = sparse_mdp(6, 2, support=2, seed=0)
    write_umb(
        mdp.with_names(states={"x": range(6)}, labels={"g": np.arange(6) < 2}), tmp_path / "m"
    )
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("time", "stochastic", "continuous time"),
        ("#players", 2, "game of 2 players"),
        ("#observations", 3, "POMDP"),
        ("branch-probability-type", {"type": "rational"}, "type rational; only floating-point"),
        ("branch-probability-type", {"type": "double-interval"}, "double-interval; only"),
        ("branch-probability-type", None, "without probabilities"),
        ("#states", -1, "must be a whole number"),
        ("#states", 5, "must have"),
        ("#choices", 10**12, "must have"),
        ("#branches", True, "must be a whole number"),
    ],
)
def test_what_is_no_mdp_is_refused(written: Path, key: str, value: object, words: str) -> None:
    files, index = parts(written)
    index["transition-system"][key] = value
    assert words in str(refusal(changed(written, files, index)))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("branch-to-target.bin", np.full(24, 99, "<u8"), "leads to state 99"),
        ("branch-to-probability.bin", np.full(24, np.nan), "no numbers"),
        ("branch-to-probability.bin", np.full(24, -1.0), "no numbers"),
        ("branch-to-probability.bin", np.zeros(24), "leads nowhere"),
        ("branch-to-probability.bin", np.ones(24), "does not describe an MDP"),
        ("state-to-choices.bin", np.array([0, 3, 2, 6, 8, 10, 12], "<u8"), "must rise"),
        ("state-to-choices.bin", np.full(7, 2**63, "<u8"), "goes beyond"),
        ("choice-to-branches.bin", np.zeros(13, "<u8"), "must rise"),
        ("state-is-initial.bin", np.zeros(1, "<u8"), "no initial state"),
        ("actions/choices/values.bin", np.full(12, 7, "<u4"), "has action 7"),
        ("annotations/rewards/reward/choices/values.bin", np.full(12, np.inf), "not finite"),
        ("valuations/states/valuations.bin", np.zeros(3, "u1"), "must have 6 bytes"),
        ("actions/choices/strings.bin", np.full(16, 255, "u1"), "damaged index"),
    ],
)
def test_wrong_arrays_are_refused(
    written: Path, name: str, content: np.ndarray[Any, Any], words: str
) -> None:
    files, index = parts(written)
    assert name in files
    files[name] = content.tobytes()
    assert words in str(refusal(changed(written, files, index)))


@pytest.mark.parametrize("kind", ["rational", "rational-interval", "double-interval"])
def test_exact_and_interval_rewards_are_refused(written: Path, kind: str) -> None:
    files, index = parts(written)
    index["annotations"]["rewards"]["reward"]["type"] = {"type": kind}
    assert f"type {kind}" in str(refusal(changed(written, files, index)))


def test_other_versions_and_other_archives_are_refused(written: Path, tmp_path: Path) -> None:
    files, index = parts(written)
    assert "version 2" in str(refusal(changed(written, files, index | {"format-version": 2})))
    write_tarball(tmp_path / "x", [("a.txt", b"")])
    assert "no index.json" in str(refusal(tmp_path / "x"))
    with pytest.raises(InvalidArgumentError, match="no constants"):
        read_model(changed(written, files, index), constants={"N": 1})


@pytest.mark.parametrize("kind", ["link", "twice", "cut", "device"])
def test_archives_that_are_more_than_files(written: Path, kind: str) -> None:
    files, _ = parts(written)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            for _ in range(2 if kind == "twice" else 1):
                archive.addfile(entry, io.BytesIO(data))
        if kind in ("link", "device"):
            entry = tarfile.TarInfo("more")
            entry.type = tarfile.SYMTYPE if kind == "link" else tarfile.CHRTYPE
            entry.linkname = "/etc/passwd"
            archive.addfile(entry)
    data = stream.getvalue()
    written.write_bytes(data[: len(data) // 2] if kind == "cut" else data)
    refusal(written)


@given(st.data())
def test_damage_is_noticed_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any change of any member ends in one sentence, or in a model that is one."""
    folder = tmp_path_factory.mktemp("umb")
    mdp = sparse_mdp(4, 2, support=2, seed=0).with_names(states={"x": range(4)})
    write_umb(mdp, folder / "m")
    files = dict(read_tarball(folder / "m"))
    name = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[name])
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "drop"]))
    if kind == "drop":
        del files[name]
    elif kind == "cut":
        files[name] = bytes(content[: data.draw(st.integers(0, len(content)))])
    elif kind == "grow":
        files[name] = bytes(content) + data.draw(st.binary(min_size=1, max_size=9))
    elif content:
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        files[name] = bytes(content)
    write_tarball(folder / "m", files.items(), compress=False)
    said = ""
    try:
        assert read_model(folder / "m").n_states == 4
    except (FileFormatError, InvalidArgumentError) as error:
        said = str(error)
    assert "\n" not in said


def test_a_reader_of_the_specifications_example(tmp_path: Path) -> None:
    """The bits of the specification's first example of valuations: v0, optional v1, words, v3."""
    from bisim_abstract._model.umb import _decode, _layout

    entries: list[dict[str, Any]] = [
        {"name": "v0", "type": {"type": "bool", "size": 2}},
        {"name": "v1", "type": {"type": "uint", "size": 6}, "is-optional": True},
        {"padding": 5},
        {"name": "v2", "type": {"type": "string", "size": 64}},
        {"name": "v3", "type": {"type": "bool", "size": 3}},
        {"padding": 7},
    ]
    fields, bits = _layout(entries)  # type: ignore[arg-type]
    assert bits == 88
    text = "01101101 01000001" + " 00000000" * 7 + " 01000000 00000000"
    data = np.array([int(byte, 2) for byte in text.split()], np.uint8)
    unpacked = np.unpackbits(data[None], axis=1, bitorder="little")
    values = [int(_decode(entry, unpacked, at, width)[0]) for _, entry, at, width in fields]
    assert values == [1, 27, 1, 1]
    signed: list[dict[str, Any]] = [
        {"name": "sv0", "type": {"type": "uint", "size": 8}, "offset": -128},
        {"name": "sv1", "type": {"type": "int", "size": 16}},
    ]
    fields, bits = _layout(signed)  # type: ignore[arg-type]
    data = np.array([0b10111000, 0b11111111, 0b10111101], np.uint8)
    unpacked = np.unpackbits(data[None], axis=1, bitorder="little")
    values = [int(_decode(entry, unpacked, at, width)[0]) for _, entry, at, width in fields]
    assert values == [56, -16897]


def test_chains_without_choices_are_read(tmp_path: Path) -> None:
    """Files that may be left out are: one choice each, one branch each."""
    write_umb(
        TabularMDP.from_dense(np.eye(3)[[1, 2, 2]][:, None, :], [1.0, 2.0, 0.0]), tmp_path / "m"
    )
    files, index = parts(tmp_path / "m")
    for name in ("state-to-choices.bin", "choice-to-branches.bin"):
        del files[name]
    model = read_umb(changed(tmp_path / "m", files, index))
    assert model.choices.tolist() == model.branches.tolist() == [0, 1, 2, 3]
