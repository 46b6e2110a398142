"""What commands print of the relation of optimal action values."""

from __future__ import annotations

from typing import Any

import pytest

from bisim_abstract.parts import random_mdp
from tests.support.action_values import ARMS
from tests.support.commands import World, check_refused, loaded

OPTIMAL = ("--relation", "optimal")


def test_commands_speak_of_action_values(call: Any, world: World) -> None:
    lake = ("FrozenLake-v1", "--seed", "1")
    for words in (
        ("certify", *lake, *OPTIMAL, "-o", "c.npz"),
        ("verify", lake[0], "c.npz"),
        ("verify", lake[0], "c.npz", "--mode", "sampled"),
        ("run", *lake, *OPTIMAL, "-o", "run", "--learn", "0"),
        ("verify", "run"),
    ):
        ended = call(*words)
        assert ended.code == 0, ended
        assert not ARMS.findall(ended.out), ended.out
        if words[0] == "verify":
            assert ended.out.startswith("verified: ")
            (line,) = (x for x in ended.out.splitlines() if x.startswith("  checked"))
            assert line.split("  ")[-1].endswith(" bounds on values, float arithmetic")
    found = loaded(call("verify", lake[0], "c.npz", "--mode", "sampled", "--json").out)
    assert (found["verdict"], found["mode"]) == ("verified", "float")


@pytest.mark.parametrize("relation", ["optimal", "auto"])
def test_relations_that_take_no_encoder(relation: str, call: Any, world: World) -> None:
    asked = ("no such environment", "--relation", relation)
    words = f"relation='{relation}' ", "takes no embedding: leave out the encoder"
    for training in (("--train", "always"), ("--steps", "5")):
        check_refused(call("run", *asked, *training, "-o", "run"), *words)
    check_refused(call("certify", *asked, "--encoder", world.encoder), *words)
    check_refused(call("certify", *asked, "--max-pairs", "5"), "option")


def test_poor_runs_say_that_the_relation_takes_no_encoder(call: Any) -> None:
    random_mdp(12, seed=2).save("m.npz")
    for relation in ("optimal", "auto"):
        words = ("m.npz", "--relation", relation, "--max-loss", "1e-300", "--learn", "0")
        ended = call("run", *words, "-o", relation)
        assert ended.code in (3, 5), ended
        assert f"not trained: relation='{relation}' takes none" in ended.out
