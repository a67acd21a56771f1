"""The rounds of a federation: sample clients, train, attack, aggregate, evaluate; one record per round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from honestly.aggregate import aggregate
from honestly.arrays import LARGEST
from honestly.federation.server import make_server
from honestly.result import Aggregate, AggregationError
from honestly.runs.record import RoundRecord
from honestly.sim import metrics
from honestly.sim.attacks import DataAttack, UpdateAttack
from honestly.sim.attacks.attack import check_memory
from honestly.sim.attacks.learnt import LearntTrigger
from honestly.sim.attacks.none import NoAttack
from honestly.sim.attacks.vectors import DrawnAhead
from honestly.sim.clients import Clients, gather
from honestly.sim.data import Dataset, load
from honestly.sim.experiment import Experiment
from honestly.sim.models import build
from honestly.sim.painting import Painter
from honestly.sim.seeds import generator
from honestly.sim.state import Record, RoundPlan, State, apply_server
from honestly.sim.stragglers import MOST_LATE, aggregate_late, first_to_answer, train_late
from honestly.sim.train.choose import choose_trainer
from honestly.sim.train.flat import Layout
from honestly.sim.train.trainer import Model, Trainer, TrainingResult
from honestly.sim.views import clean_models, draw_noise, look


class Federation:
    """K clients, a server and an adversary in one process.

    Args:
        experiment: what to run.
        data: the data set, if it is in memory already.
        folder: where the data sets are.
        device: "cpu", "cuda", "cuda:1".
        record: a folder for the honest updates of every round.

    >>> e = Experiment.of({"rounds": 2, "clients": 4, "epochs": 1, "rule": "mean"})
    >>> [record.numbers["round"] for record in Federation(e).rounds()]
    [1, 2]
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        data: Dataset | None = None,
        folder: Path | str | None = None,
        device: str = "cpu",
        record: Path | None = None,
    ) -> None:
        self.experiment = experiment
        self.device = torch.device(device)
        self.data = load(experiment.dataset, folder) if data is None else data
        self.attack = experiment.make_attack()
        self.adversary = experiment.adversary
        self.needs = experiment.make_pipeline().needs
        self.clients: Clients = gather(experiment, self.data, self.device)
        seed = int(generator(experiment.seed, "initial model").integers(2**31))
        self.module = build(experiment.model, self.clients.test.size, len(self.data.classes), seed)
        #: the tensors that lie one after the other in a model's parameters
        self.layers = {name: tensor.numel() for name, tensor in self.module.named_parameters() if tensor.requires_grad}
        if "buffers" in self.needs and not Layout.of_statistics(self.module).size:
            raise ValueError(
                f"rule {experiment.rule.name} judges clients by BatchNorm's running statistics, which model "
                f"{experiment.model} does not have: take one that has, such as cnn_norm or resnet8, or another rule"
            )
        local = experiment.model_copy(update={"batch": self.clients.batch})
        self.trainer: Trainer = choose_trainer(self.module, self.clients.pixels, local)
        self.record = record
        self.painter = Painter(self, self.attack) if isinstance(self.attack, LearntTrigger) else None

    def start(self) -> State:
        """The state before the first round."""
        e = self.experiment
        return State(0, Model.of(self.module, self.device), e.make_pipeline(), server=make_server(e.server))

    def rounds(self, state: State | None = None) -> Iterator[Record]:
        """One record for each round that is left, from ``state`` on."""
        state = self.start() if state is None else state
        with ThreadPoolExecutor(1) as ahead:  # the next round's schedules are made while this one trains
            plans: Future[RoundPlan] = ahead.submit(self._plan, state.round + 1)
            while state.round < self.experiment.rounds:
                plan = plans.result()
                plans = ahead.submit(self._plan, state.round + 2)
                record = self._round(state, plan)
                state = record.state
                yield record

    def _plan(self, round: int) -> RoundPlan:
        """Who takes part, who attacks, and everybody's schedule: all of it follows from the seed."""
        e = self.experiment
        K = e.clients
        taking_part = np.arange(K)
        if e.participation < 1:
            drawn = generator(e.seed, "sample", round).choice(K, size=e.participants, replace=False)
            taking_part = np.sort(drawn)
        if e.dropout > 0:
            stays = generator(e.seed, "dropout", round).random(len(taking_part)) >= e.dropout
            if not stays.any():
                stays[0] = True
            taking_part = taking_part[stays]
        late: list[int] | None = None
        if e.buffer:
            taking_part, late = first_to_answer(e, round)
        active = self.adversary.active(round=round)
        attacking = active[taking_part]
        schedules = [
            self.clients.schedule(round, int(k), attacking=bool(a)) for k, a in zip(taking_part, attacking, strict=True)
        ]
        root = self.clients.root_schedule(round) if "root" in self.needs else None
        sizes = None if e.sizes == "none" else [schedule.reported for schedule in schedules]
        noise: DrawnAhead | None = None
        # a CPU has no core left for it while the clients train
        if isinstance(self.attack, UpdateAttack) and self.attack.noise_ahead and self.device.type != "cpu":
            noise = draw_noise(e.seed, round, int(attacking.sum()), sum(self.layers.values()))
        return RoundPlan(round, taking_part.tolist(), attacking, schedules, root, late, sizes, noise)

    def _round(self, state: State, plan: RoundPlan) -> Record:
        clock = Clock(self.device)
        root: Tensor | None = None
        if self.painter is not None:
            state = replace(state, attack=self.painter.ready(state, plan))
        if plan.late is not None:
            trained = train_late(self.trainer, (state.model, *state.past), plan.schedules, plan.late)
            if plan.root is not None:
                root = self.trainer.train(state.model, [plan.root]).theta[0]
        elif plan.root is None:
            trained = self.trainer.train(state.model, plan.schedules)
        else:  # the server trains on its own images, beside the clients
            both = self.trainer.train(state.model, [*plan.schedules, plan.root])
            root = both.theta[-1]
            trained = TrainingResult(both.theta[:-1], both.statistics[:-1], both.counters[:-1], both.loss[:-1])
        clock.lap("train")
        sent, memory = self.forge(state, plan, trained.theta, root)
        if self.record is not None:
            self._save_updates(state, plan, trained.theta, sent)
        clock.lap("attack")
        out = self._aggregate(state, plan, sent, root, trained.statistics)
        model, pipeline, server = state.model, state.pipeline, state.server
        if isinstance(out, Aggregate):
            pipeline = pipeline.after(out.diagnostics)
            model, server = apply_server(state, self._merge(state, trained, out))
        clock.lap("aggregate")
        verdict = self._verdict(plan, out)
        verdict = replace(verdict, train_loss=finite(float(trained.loss.double().mean())))
        if self.experiment.evaluates(plan.round):
            score = metrics.evaluate(self.trainer, model, self.clients.test, len(self.data.classes))
            verdict = replace(verdict, accuracy=score.accuracy, loss=finite(score.loss), per_class=score.per_class)
            if self.clients.triggered is not None:
                verdict = replace(verdict, asr=metrics.success_rate(self.trainer, model, self.clients.triggered))
        clock.lap("evaluate")
        images = sum(s.images for s in plan.schedules)
        past = (state.model, *state.past)[:MOST_LATE] if plan.late is not None else ()
        return Record(verdict, clock.laps, images, State(plan.round, model, pipeline, past, server, memory))

    def forge(
        self, state: State, plan: RoundPlan, theta: Tensor, root: Tensor | None = None
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """The models that the server receives, with forged ones from the attackers; and what the attackers remember."""
        rows = np.flatnonzero(plan.attacking)
        if not isinstance(self.attack, UpdateAttack) or len(rows) == 0 or isinstance(self.attack, NoAttack):
            return theta, state.attack
        view = look(self, self.attack, state, plan, theta, root)
        with np.errstate(over="ignore", invalid="ignore"):  # where training has diverged, lies are not finite either
            forged = self.attack.forge(view)
        sent = theta.clone()
        sent[torch.as_tensor(rows, device=theta.device)] = state.model.theta + forged
        return sent, check_memory(self.attack, self.attack.remember(view, forged))

    def _aggregate(
        self, state: State, plan: RoundPlan, sent: Tensor, root: Tensor | None, statistics: Tensor
    ) -> Aggregate | AggregationError:
        """The robust average; why there is none if too few clients are usable (the model then stays as it is)."""
        everybody = len(plan.clients) == self.experiment.clients
        reference, layers = state.model.theta, self.layers
        if "buffers" in self.needs:  # for judging only: buffers do not change how the parameters are averaged
            sent = torch.cat([sent, statistics], dim=1)
            reference = torch.cat([reference, state.model.statistics])
            layers = {**layers, **Layout.of_statistics(self.module).sizes}
        updates: Any = sent if everybody else dict(zip(plan.clients, sent, strict=True))
        if root is not None and not bool((root.abs() <= LARGEST["float32"]).all()):
            return AggregationError("the server's own training has diverged")  # as when that of the clients has
        steps = state.pipeline if root is None else state.pipeline.with_rule(root=root)
        try:
            if plan.late is not None:
                named = dict(zip(plan.clients, sent, strict=True))
                out = aggregate_late(named, steps, reference=reference, layers=layers, late=plan.late)
            else:
                out = aggregate(updates, steps, reference=reference, layers=layers, sizes=plan.sizes)
            return replace(out, value=out.value[: len(state.model.theta)])
        except AggregationError as error:
            return error
        except ValueError as error:
            if len(plan.clients) == self.experiment.participants:
                raise  # the settings fit in no round
            return AggregationError(f"after drop-outs {error}")  # the next round may have more clients

    def _merge(self, state: State, trained: TrainingResult, out: Aggregate) -> Model:
        """The new global model: buffers are averaged with the same weights, counters are the most frequent ones.

        A coordinate-wise rule has no weights: it then reduces the buffers as it reduces the parameters. Where a rule
        gives nobody a weight the model stays as it is, and so do its buffers.
        """
        statistics, counters = state.model.statistics, state.model.counters
        if trained.statistics.shape[1]:
            if out.weights is None:
                statistics = aggregate(trained.statistics, state.rule, reference=statistics).value
            else:
                used = torch.as_tensor(out.weights, device=self.device)
                positive = used > 0  # 0 * inf is nan: a client without weight must not enter the sum
                if positive.any():
                    statistics = (used[positive] @ trained.statistics[positive].double()).to(statistics.dtype)
        if trained.counters.shape[1]:
            counters = trained.counters.mode(dim=0).values
        return replace(state.model, theta=out.value, statistics=statistics, counters=counters)

    def _verdict(self, plan: RoundPlan, out: Aggregate | AggregationError) -> RoundRecord:
        """Who attacked, and which clients the rule believed."""
        K, here = self.experiment.clients, plan.clients
        attacked = [k for k, a in zip(here, plan.attacking, strict=True) if a]
        record = RoundRecord(
            round=plan.round, attacked=attacked, participants=here, staleness=plan.late,
            excluded=[int(k) for k in out.reasons],  # type: ignore[call-overload]
            reasons={str(k): reason for k, reason in out.reasons.items()},
        )  # fmt: skip
        if isinstance(out, AggregationError):
            return replace(record, status=f"refused: {out}")
        record = replace(
            record,
            status=str(out.status),
            steps=out.steps,
            accusations={str(k): why for k, why in out.accusations.items()},
            honesty=None if out.honesty is None else spread(out.honesty, here, K),
            malicious_estimate=None if out.honesty is None else out.malicious,
            weights=None if out.weights is None else spread(out.weights, here, K),
        )
        blamed = metrics.accused_clients(out)
        if blamed is None:
            return record
        accused = [k for k, b in zip(here, blamed, strict=True) if b]
        false, missed = len(set(accused) - set(attacked)), len(set(attacked) - set(accused) - set(record.excluded))
        return replace(record, accused=accused, false_accusations=false, misses=missed)

    def _save_updates(self, state: State, plan: RoundPlan, trained: Tensor, sent: Tensor) -> None:
        """The honest updates of a round, and what attackers with poisoned data sent, as an .npz file."""
        from honestly.sim.checkpoint import write_updates

        assert self.record is not None
        rows = np.flatnonzero(plan.attacking)
        honest, extra = trained, {}
        if isinstance(self.attack, DataAttack) and len(rows):
            mine = torch.as_tensor(rows, device=self.device)
            honest = trained.clone()
            honest[mine] = clean_models(self, state, plan)
            extra[getattr(self.attack, "name", "poisoned")] = sent[mine] - state.model.theta
        write_updates(self.record, plan.round, honest - state.model.theta, state.model.theta, extra)


class Clock:
    """Laps of wall-clock time; on a GPU a lap ends when its work is done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        """End the lap of that name."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        now = time.perf_counter()
        self.laps[name], self.last = now - self.last, now


def finite(x: float) -> float | None:
    """JSON has no NaN."""
    return x if np.isfinite(x) else None


def spread(values: Any, clients: list[int], K: int) -> list[float | None]:
    """One value for each of K clients, None for those who did not take part."""
    row: list[float | None] = [None] * K
    for k, value in zip(clients, values, strict=True):
        row[k] = float(value)
    return row
