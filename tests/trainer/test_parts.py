"""Fragments, configuration, text, model, durable state, tape, outbox: each part alone."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.harness import toy_config, toy_fragments
from trainer import launch
from trainer.config import Config, ConfigError, Model, from_mapping, load
from trainer.durable import DurableError, Store, read_contributions, read_fragment
from trainer.effects import PersistMembers, PersistMerge
from trainer.fragments import TensorSpec, balance, fragments_of, initial_theta, total_size
from trainer.merge import Contribution
from trainer.messages import Fragment, Progress, Pull
from trainer.model import Transformer, inner_optimiser, train_step, use_one_thread
from trainer.network import OUTBOX_MAX, Outbox
from trainer.stopwatch import Stopwatch
from trainer.tape import Tape, versions_told
from trainer.text import Corpus
from trainer.wire import Decoder

use_one_thread()

# ---- fragments

specs = st.lists(st.integers(1, 1000), min_size=1, max_size=24).map(
    lambda sizes: [TensorSpec(f"t{index:02d}", (size,), False, 0.1) for index, size in enumerate(sizes)]
)


@given(tensors=specs, P=st.integers(1, 24))
def test_fragments_hold_every_tensor_once_and_no_fragment_is_much_heavier_than_another(
    tensors: list[TensorSpec], P: int
) -> None:
    P = min(P, len(tensors))
    fragments = balance(tensors, P)
    placed = [(f.offset + p.start, f.offset + p.stop, p.spec.name) for f in fragments for p in f.tensors]
    assert sorted(name for _, _, name in placed) == sorted(spec.name for spec in tensors)
    assert [start for start, _, _ in placed] == [0, *[stop for _, stop, _ in placed[:-1]]]
    assert total_size(fragments) == sum(spec.size for spec in tensors)
    sizes = [fragment.size for fragment in fragments]
    assert max(sizes) - min(sizes) <= max(spec.size for spec in tensors)


@given(tensors=specs, P=st.integers(1, 6), order=st.randoms(use_true_random=False))
def test_the_cut_does_not_depend_on_the_order_of_the_tensors(tensors: list[TensorSpec], P: int, order: object) -> None:
    shuffled = list(tensors)
    order.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random
    P = min(P, len(tensors))
    assert balance(tensors, P) == balance(shuffled, P)


def test_the_demo_model_is_cut_as_the_paper_says() -> None:
    fragments = fragments_of(Model(), 8)
    assert total_size(fragments) == 117_056
    assert [placed.spec.name for placed in fragments[0].tensors] == ["embed.token", "embed.position"]
    sizes = [fragment.size for fragment in fragments[1:]]
    assert max(sizes) <= 1.4 * min(sizes)


def test_more_fragments_than_tensors_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose P <= 16"):
        fragments_of(Model(), 17)


def test_fragments_that_no_frame_can_carry_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 64 MiB"):
        fragments_of(Model(width=4096, heads=4, layers=1), 4)


def test_the_first_parameters_depend_on_the_seed_and_the_tensor_only() -> None:
    def by_name(P: int, seed: int) -> dict[str, bytes]:
        return {
            placed.spec.name: initial_theta(fragment, seed)[placed.start : placed.stop].tobytes()
            for fragment in fragments_of(Model(), P)
            for placed in fragment.tensors
        }

    assert by_name(1, 5) == by_name(8, 5)
    assert by_name(8, 5) != by_name(8, 6)


# ---- configuration


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"protocl": {}}, "unknown section [protocl]; did you mean 'protocol'?"),
        ({"task": {"step": 3}}, "unknown key task.step; did you mean 'steps'?"),
        ({"task": {"steps": 33}}, "must be a positive multiple of protocol.H = 16"),
        ({"protocol": {"K": 9}}, "protocol.K = 9 must be between 1 and protocol.M = 4"),
        ({"protocol": {"K": "two"}}, "Expected `int`, got `str`"),
        ({"protocol": {"tau": 0}}, "protocol.tau = 0 must be between 1"),
        ({"model": {"width": 30}}, "must be a positive multiple of model.heads"),
        ({"model": {"width": 0}}, "model.width = 0 must be a positive multiple"),
        ({"model": {"width": -4}}, "model.width = -4 must be a positive multiple"),
        ({"timing": {"ping_s": 20.0}}, "ping_s < silent_s < idle_s"),
        ({"protocol": 3}, "protocol must be a section"),
    ],
)
def test_a_wrong_configuration_is_refused_with_what_was_expected(raw: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping(raw, "job.toml")
    assert text in str(error.value)
    assert str(error.value).startswith("job.toml: ")


def test_a_configuration_survives_its_own_toml(tmp_path: Path) -> None:
    config = load(None, ["task.steps=64", "task.corpus=/some/where", "protocol.K=3"])
    path = tmp_path / "config.toml"
    path.write_text(launch.to_toml(config), encoding="utf-8")
    assert load(path) == config
    assert config.digest() != Config().digest()


def test_overrides_and_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        load(None, ["steps=3"])
    with pytest.raises(ConfigError, match="there is no such configuration file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot be read .*expected a TOML file"):
        load(tmp_path)
    (tmp_path / "bad.toml").write_text("[task", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(tmp_path / "bad.toml")


@pytest.mark.parametrize("name", ["text", "smoke"])
def test_the_configurations_that_ship_are_valid(name: str) -> None:
    config = load(Path(__file__).parents[2] / "faults" / "targets" / f"{name}.config.toml")
    assert len(fragments_of(config.model, config.protocol.P)) == config.protocol.P


# ---- text


def test_a_batch_is_a_function_of_seed_learner_and_step() -> None:
    one, other = Corpus(Config(), 1), Corpus(Config(), 1)
    assert np.array_equal(one.batch_for(2, 77), other.batch_for(2, 77))
    assert not np.array_equal(one.batch_for(2, 77), one.batch_for(2, 78))
    assert not np.array_equal(one.batch_for(2, 77), one.batch_for(1, 77))
    assert not np.array_equal(one.batch_for(2, 77), Corpus(Config(), 2).batch_for(2, 77))
    assert one.batch_for(0, 0).shape == (8, 33)
    assert one.batch_for(0, 0).max() < 128


def test_learners_and_the_held_out_sample_never_share_a_block(tmp_path: Path) -> None:
    blocks = [bytes([index]) * 4096 for index in range(64)]
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"".join(blocks))
    corpus = Corpus(load(None, [f"task.corpus={path}"]), 1)
    seen = [{int(v) for step in range(40) for v in np.unique(corpus.batch_for(m, step))} for m in range(4)]
    seen.append({int(value) for value in np.unique(corpus.held_out_sample(64))})
    assert seen[4] == {15, 31, 47, 63}
    assert sum(len(s) for s in seen) == len(set().union(*seen))


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("short", encoding="utf-8")
    with pytest.raises(ConfigError, match="too few for 4 learners"):
        Corpus(load(None, [f"task.corpus={path}"]), 1)
    with pytest.raises(ConfigError, match="no such file or folder"):
        Corpus(load(None, [f"task.corpus={tmp_path}/none"]), 1)


# ---- model


def test_a_step_changes_the_flat_vector_in_place_and_the_loss_falls() -> None:
    config = Config()
    fragments = fragments_of(config.model, 8)
    flat = np.concatenate([initial_theta(fragment, 1) for fragment in fragments])
    before = flat.copy()
    transformer = Transformer(config.model, fragments, flat)
    optimiser = inner_optimiser(transformer, config.task)
    corpus = Corpus(config, 1)
    losses = [train_step(transformer, optimiser, corpus.batch_for(0, step)) for step in range(30)]
    assert not np.array_equal(flat, before)
    assert np.log(128) - 0.5 < losses[0] < np.log(128) + 0.5
    assert np.mean(losses[-5:]) < losses[0] - 0.8


def test_the_same_steps_give_the_same_bits_and_no_byte_sees_the_future() -> None:
    config = Config()
    fragments = fragments_of(config.model, 8)
    corpus = Corpus(config, 1)

    def trained() -> tuple[Transformer, bytes]:
        flat = np.concatenate([initial_theta(fragment, 1) for fragment in fragments])
        transformer = Transformer(config.model, fragments, flat)
        optimiser = inner_optimiser(transformer, config.task)
        for step in range(3):
            train_step(transformer, optimiser, corpus.batch_for(0, step))
        return transformer, flat.tobytes()

    transformer, bits = trained()
    assert bits == trained()[1]
    tokens = torch.from_numpy(corpus.batch_for(0, 9)[:1, :-1])
    changed = tokens.clone()
    changed[0, 20:] = 5
    with torch.no_grad():
        torch.testing.assert_close(transformer.logits(tokens)[0, :20], transformer.logits(changed)[0, :20])


# ---- durable state


def persisted(version: int, value: float, learners: int = 2) -> PersistMerge:
    theta = np.full(5, value, np.float32)
    parts = tuple(
        Contribution(f"learner-{i}", 1, f"learner-{i}.1.0.1", 0, 0, 16, 2, "", theta + i) for i in range(learners)
    )
    record = {"fragment": 0, "version": version, "h_out": "x"}
    return PersistMerge(0, version, theta, -theta, {"learner-0": 10 * version}, record, parts)


def test_what_was_stored_is_loaded_again(tmp_path: Path) -> None:
    fragments = toy_fragments(2)
    store = Store(tmp_path, fragments, 1)
    state, records = store.load(seed=3)
    assert state.versions == [0, 0]
    assert records == [None, None]
    store.persist_members(PersistMembers({"learner-0": 4}, {"learner-0": "p"}, {"learner-0": 7}))
    merge = persisted(1, 2.5)
    store.persist_merge(merge)
    state, records = Store(tmp_path, fragments, 1).load(seed=999)  # the seed only matters for a fresh start
    assert state.versions == [1, 0]
    assert state.theta[0].tobytes() == merge.theta.tobytes()
    assert state.momentum[0].tobytes() == merge.momentum.tobytes()
    assert state.theta[1].tobytes() == initial_theta(fragments[1], 3).tobytes()
    assert (state.incarnations, state.processes) == ({"learner-0": 4}, {"learner-0": "p"})
    assert state.cursors == {"learner-0": 10}
    assert records[0] == merge.record
    kept = read_contributions(tmp_path, fragments[0], 1)
    assert [(c.learner, c.theta.tobytes()) for c in kept] == [
        (c.learner, c.theta.tobytes()) for c in merge.contributions
    ]


@given(position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_damaged_state_file_is_refused_and_the_version_before_it_is_kept(position: int, flip: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = Store(folder, toy_fragments(1), 1)
        store.load(seed=1)
        store.persist_merge(persisted(1, 1.0))
        store.persist_merge(persisted(2, 2.0))
        path = folder / "durable" / "fragment-000.bin"
        data = bytearray(path.read_bytes())
        data[position % len(data)] ^= flip
        path.write_bytes(bytes(data))
        with pytest.raises(DurableError, match="damaged"):
            Store(folder, toy_fragments(1), 1).load(seed=1)
        path.with_name("fragment-000.last.bin").replace(path)
        assert read_fragment(folder, toy_fragments(1)[0]).version == 1


def test_a_start_that_never_came_to_its_end_is_begun_again_and_a_lost_file_is_not(tmp_path: Path) -> None:
    fragments = toy_fragments(2)
    Store(tmp_path, fragments, 1).load(seed=1)
    (tmp_path / "durable" / "members.bin").unlink()
    state, _ = Store(tmp_path, fragments, 1).load(seed=1)
    assert state.versions == [0, 0]
    (tmp_path / "durable" / "fragment-001.bin").unlink()
    with pytest.raises(DurableError, match="gone"):
        Store(tmp_path, fragments, 1).load(seed=1)


@pytest.mark.parametrize("lost", ["members.bin", "fragment-001.bin"])
def test_a_trained_model_is_never_overwritten_because_another_state_file_is_lost(lost: str, tmp_path: Path) -> None:
    fragments = toy_fragments(2)
    store = Store(tmp_path, fragments, 0)
    store.load(seed=1)
    store.persist_merge(persisted(1, 2.5))
    (tmp_path / "durable" / lost).unlink()
    with pytest.raises(DurableError) as error:
        Store(tmp_path, fragments, 0).load(seed=1)
    assert str(tmp_path / "durable" / lost) in str(error.value)
    assert "a new run in an empty folder" in str(error.value)
    assert read_fragment(tmp_path, fragments[0]).version == 1
    assert not (tmp_path / "durable" / lost).exists()


def test_a_damaged_file_is_told_of_its_predecessor_only_when_it_has_one(tmp_path: Path) -> None:
    store = Store(tmp_path, toy_fragments(1), 0)
    store.load(seed=1)
    for name in ("members", "fragment-000"):
        (tmp_path / "durable" / f"{name}.bin").write_bytes(b"garbage")
        with pytest.raises(DurableError) as error:
            Store(tmp_path, toy_fragments(1), 0).load(seed=1)
        assert "last.bin" not in str(error.value)


def test_recorded_contributions_are_bounded(tmp_path: Path) -> None:
    store = Store(tmp_path, toy_fragments(1), 0)
    store.load(seed=1)
    store.persist_merge(persisted(1, 1.0))
    with pytest.raises(FileNotFoundError):
        read_contributions(tmp_path, toy_fragments(1)[0], 1)


# ---- tape and outbox


def test_a_tape_is_readable_line_by_line_and_tells_a_successor_what_was_told(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "syncer.1.jsonl", "syncer", 1.0)
    tape.write(2.0, "publish", {"fragment": 3, "version": 7, "digest": "d"})
    with (tmp_path / "syncer.1.jsonl").open("ab") as file:
        file.write(b'{"t":3.0,"kind":"publish","fragment":3,"ver')  # killed in the middle of a record
    records = launch.TapeReader(tmp_path / "syncer.1.jsonl").new()
    assert [record["kind"] for record in records] == ["start", "publish"]
    assert versions_told(tmp_path / "syncer.2.jsonl", "publish") == {3: 7}
    assert versions_told(tmp_path / "syncer.2.jsonl", "merge") == {}
    assert versions_told(tmp_path / "evaluator.1.jsonl", "publish") == {}


def drained(outbox: Outbox) -> list[object]:
    decoder = Decoder()
    while frame := outbox.pop():
        decoder.feed(frame)
    out = []
    while got := decoder.next():
        out.append(got.message)
    return out


def test_an_outbox_keeps_only_the_newest_progress_and_the_newest_of_each_fragment() -> None:
    outbox = Outbox(lambda: None)
    progress = [Progress(1, step, step, 0.1, [1], [1], [0]) for step in range(3)]
    outbox.put(progress[0])
    outbox.put(Pull(1, 0, 1))
    for step in (1, 2):
        outbox.put(progress[step])
        outbox.put(Fragment(0, step, "d", "broadcast"), b"")
        outbox.put(Fragment(1, step, "d", "broadcast"), b"")
    sent = drained(outbox)
    assert sent == [progress[2], Pull(1, 0, 1), Fragment(0, 2, "d", "broadcast"), Fragment(1, 2, "d", "broadcast")]


def test_an_outbox_that_nobody_empties_ends_its_connection_and_stays_small() -> None:
    outbox = Outbox(lambda: None)
    for number in range(OUTBOX_MAX + 1):
        outbox.put(Pull(number, 0, 1))
    assert outbox.closing is not None
    assert "too slow" in outbox.closing
    assert drained(outbox) == []


def test_the_toy_configuration_is_one_that_could_run() -> None:
    assert toy_config().rounds_total == 40


# ---- stopwatch


def test_a_busy_lap_is_not_blocked_and_a_waiting_one_is() -> None:
    stopwatch = Stopwatch()
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < 0.05:
        pass
    busy_s, busy_blocked_s = stopwatch.lap()
    threading.Event().wait(0.05)
    idle_s, idle_blocked_s = stopwatch.lap()
    if busy_blocked_s is None or idle_blocked_s is None:
        pytest.skip("this kernel does not count how long a thread was ready to run (/proc/thread-self/schedstat)")
    assert idle_blocked_s >= 0.045
    # Compared with one another: how much of a busy lap a virtual machine takes away is not ours to say.
    assert busy_blocked_s / busy_s < idle_blocked_s / idle_s
