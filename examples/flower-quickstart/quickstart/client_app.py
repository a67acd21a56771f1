"""The client: trains on its own images. The `misbehave` mod simulates nodes that an attacker controls."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.malicious import misbehave
from quickstart.task import partition, test, train

app = ClientApp(mods=[misbehave])  # an honest app has no mods


@app.train()
def fit(message: Message, context: Context) -> Message:
    x, y = partition(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    model = message.content["arrays"].to_numpy_ndarrays()
    model, loss = train(
        model, x, y, int(context.run_config["local-epochs"]), float(context.run_config["learning-rate"])
    )
    metrics = MetricRecord({"num-examples": len(y), "train_loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    x, y = partition(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    loss, accuracy = test(message.content["arrays"].to_numpy_ndarrays(), x, y)
    metrics = MetricRecord({"num-examples": len(y), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
