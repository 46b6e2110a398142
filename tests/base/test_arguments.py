"""Arguments that many functions take: wherever one is wrong, the same sentence says so."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    QLearning,
    TabularMDP,
    abstract_env,
    aggregate,
    bisimulation_metric,
    certify,
    compare_models,
    estimate_mdp,
    learning_curve,
    mico_distance,
    prove_value,
    value_iteration,
    verify,
    write_report,
)
from bisim_abstract._base.checks import check_callback
from bisim_abstract.encoders import ActionMaxEncoder, collect_transitions
from bisim_abstract.errors import HEAD, TAIL
from bisim_abstract.parts import (
    build_blocks,
    make_witnesses,
    match_actions,
    repair_labels,
    single_build,
    sparse_mdp,
    split_labels,
    value_bracket,
    value_features,
)
from bisim_abstract.wrappers import ModelEnv, extract_mdp

SURFACES = ("bisim_abstract", "bisim_abstract.parts", "bisim_abstract.wrappers")
ENV = "FrozenLake-v1"


def takers(argument: str) -> dict[str, Callable[..., Any]]:
    """Public functions that take an argument, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for surface in (*SURFACES, "bisim_abstract.encoders"):
        module = importlib.import_module(surface)
        functions = ((name, getattr(module, name)) for name in module.__all__)
        for name, function in functions:
            if inspect.isfunction(function) and argument in inspect.signature(function).parameters:
                found[name] = function
    return found


@pytest.fixture(scope="module")
def mdp() -> TabularMDP:
    return sparse_mdp(5, 2, seed=0)


@pytest.fixture(scope="module")
def certificate(mdp: TabularMDP) -> Certificate:
    return certify(mdp, 0.5)


# -- resources, callbacks, arguments of environments, checkpoints ------------------------------


@pytest.mark.parametrize("value", [4, None, {"threads": 2}])
@pytest.mark.parametrize("name", takers("resources"))
def test_resources_are_resources(name: str, value: Any) -> None:
    function = takers("resources")[name]
    needed = {
        parameter.name: None
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    with pytest.raises(InvalidArgumentError, match=r"resources must be Resources\(\.\.\.\), such"):
        function(**needed, resources=value)


CALLS: dict[str, Callable[[TabularMDP, Certificate], Any]] = {
    "abstract_env": lambda mdp, _: abstract_env(mdp, gamma=0.5, callback=3),  # type: ignore
    "bisimulation_metric": lambda mdp, _: bisimulation_metric(mdp, 0.5, callback=3),  # type: ignore
    "certify": lambda mdp, _: certify(mdp, 0.5, callback=3),  # type: ignore
    "collect_transitions": lambda mdp, _: collect_transitions(ENV, 9, callback=3),  # type: ignore
    "compare_models": lambda mdp, _: compare_models(mdp, mdp, 0.5, callback=3),  # type: ignore
    "enumerate_mdp": lambda mdp, _: takers("callback")["enumerate_mdp"](ModelEnv(mdp), callback=3),
    "estimate_mdp": lambda mdp, _: estimate_mdp(
        ENV,
        gamma=0.5,
        reward_range=(0, 1),
        max_steps=9,
        seed=0,
        callback=3,  # type: ignore
    ),
    "extract_mdp": lambda mdp, _: extract_mdp(ENV, callback=3),  # type: ignore
    "learning_curve": lambda mdp, _: learning_curve(
        "x",
        lambda seed: QLearning(ModelEnv(mdp), gamma=0.5, seed=seed),
        lambda policy: 0.0,
        [1],
        callback=3,  # type: ignore
    ),
    "make_witnesses": lambda mdp, _: make_witnesses(
        *(None,) * 6,  # type: ignore
        tol=0.1,
        callback=3,  # type: ignore
    ),
    "mico_distance": lambda mdp, _: mico_distance(mdp, 0.5, [0] * 5, callback=3),  # type: ignore
    "single_build": lambda mdp, _: single_build(mdp, 0.5, tau=0.1, callback=3),  # type: ignore
    "value_features": lambda mdp, _: value_features(mdp, 0.5, callback=3),  # type: ignore
    "value_iteration": lambda mdp, _: value_iteration(mdp, 0.5, callback=3),  # type: ignore
    "verify": lambda mdp, certificate: verify(mdp, certificate, callback=3),  # type: ignore
    "write_report": lambda mdp, certificate: write_report(
        "x.html",
        mdp,
        certificate,
        callback=3,  # type: ignore
    ),
    "Certificate.frontier": lambda mdp, certificate: certificate.frontier(callback=3),  # type: ignore
    "Encoder.fit": lambda mdp, _: ActionMaxEncoder(dim=2, gamma=0.5, steps=1).fit(
        mdp,
        callback=3,  # type: ignore
    ),
}


def test_all_that_report_are_tried() -> None:
    assert set(takers("callback")) <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_callbacks_are_functions(
    name: str, mdp: TabularMDP, certificate: Certificate, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="callback must be a function"):
        CALLS[name](mdp, certificate)
    assert not list(tmp_path.iterdir())


def test_callbacks_may_be_left_out() -> None:
    check_callback(None)
    check_callback(print)


@pytest.mark.parametrize("value", [["a"], "a", 4, {1: 2}])
@pytest.mark.parametrize("make", [extract_mdp, abstract_env])
def test_arguments_of_environments_have_names(make: Any, value: Any) -> None:
    more = {"gamma": 0.5} if make is abstract_env else {}
    with pytest.raises(InvalidArgumentError, match="env_args must be a mapping from names to"):
        make(ENV, env_args=value, **more)


def test_checkpoints_and_files_have_names(mdp: TabularMDP, certificate: Certificate) -> None:
    number: Any = 5
    with pytest.raises(InvalidArgumentError, match="checkpoint must be the name of a file, got 5"):
        certify(mdp, 0.5, checkpoint=number)
    for call in (mdp.save, certificate.save, TabularMDP.load, Certificate.load):
        with pytest.raises(InvalidArgumentError, match="path must be the name of a file, got 5"):
            call(number)


# -- thresholds, weights, labels ---------------------------------------------------------------


def test_a_threshold_is_a_number_or_auto(mdp: TabularMDP) -> None:
    with pytest.raises(InvalidArgumentError, match="tau must be a number or \"auto\", got 'x'"):
        certify(mdp, 0.5, tau="x")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_weights_are_told_what_is_wrong_with_them(mdp: TabularMDP, wrong: float) -> None:
    with pytest.raises(InvalidArgumentError, match=f"at least 0, got {wrong} at state 2"):
        aggregate(mdp, np.zeros(5, int), weighting=[1, 1, wrong, 1, 1])
    with pytest.raises(InvalidArgumentError, match="5 numbers, got shape"):
        aggregate(mdp, np.zeros(5, int), weighting=[1, 1])


@pytest.mark.parametrize(
    "take",
    [
        aggregate,
        build_blocks,
        match_actions,
        lambda mdp, labels: prove_value(mdp, labels, 0.5),
        lambda mdp, labels: value_bracket(mdp, labels, 0.5),
        lambda mdp, labels: repair_labels(mdp, labels, 3),
        lambda mdp, labels: split_labels(np.zeros((5, 1)), labels),
    ],
)
def test_labels_are_not_negative(mdp: TabularMDP, take: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="labels must be at least 0, got -1 at state 3"):
        take(mdp, [0, 0, 1, -1, 1])


# -- messages ----------------------------------------------------------------------------------


def test_values_in_messages_are_short(mdp: TabularMDP) -> None:
    long: Any = "[" * 5_000
    for call in (
        lambda: certify(mdp, 0.5, tau=long),
        lambda: certify(mdp, 0.5, relation=long),
        lambda: certify(mdp, long),
        lambda: certify(mdp, 0.5, n_clusters=long),
        lambda: extract_mdp(ENV, env_args=long),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert len(str(caught.value)) < 250


def test_messages_end_somewhere() -> None:
    text = str(InvalidArgumentError("begin" + "x" * 10_000 + "remedy"))
    assert len(text) == HEAD + TAIL + 5
    assert text.startswith("begin")
    assert text.endswith("remedy")
